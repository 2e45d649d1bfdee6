# make check is what CI runs.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PKG ?= ./...
SERVICES ?= postgres mysql mariadb kafka rabbitmq nats redis pgbouncer toxiproxy
BENCH_ARGS ?=
TEST_ARGS ?=

# In `make test` a server that happens to be there makes no difference.
WITHOUT_SERVERS := env $(foreach v,TEST_SERVICES TEST_LONG POSTGRES_URL PGBOUNCER_URL KAFKA_BROKERS TOXIPROXY_ADDR \
	MYSQL_DSN MARIADB_DSN RABBITMQ_URL NATS_URL REDIS_URL PROMTOOL,-u OUTMILL_$(v))
# Starts what is not running yet and exports the addresses.
WITH_SERVERS = started=$$(scripts/services/all.sh start $(SERVICES)); set -a; eval "$$started"; set +a;
WITH_TOOLS = $(WITH_SERVERS) started=$$(scripts/promtool.sh); set -a; eval "$$started"; set +a;

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: check
check: tidy lint test-services ## what CI runs: go.mod, linters, every test with its server

.PHONY: tidy
tidy: ## is go.mod as it should be?
	go mod tidy -diff
	go mod verify

.PHONY: test
test: ## tests that need no server; the others are counted as skipped
	$(WITHOUT_SERVERS) scripts/gotest.sh $(TEST_ARGS) $(PKG)

.PHONY: test-services
test-services: ## all tests, with real servers; a missing one is a failure
	$(WITH_TOOLS) OUTMILL_TEST_SERVICES=1 scripts/gotest.sh -count=1 -timeout 15m $(TEST_ARGS) $(PKG)

.PHONY: test-long
test-long: ## crash runs, soak and fuzz as well
	$(WITH_TOOLS) OUTMILL_TEST_SERVICES=1 OUTMILL_TEST_LONG=1 \
		scripts/gotest.sh -count=1 -timeout 2h $(TEST_ARGS) $(PKG)
	scripts/fuzz.sh $(FUZZ_TIME)

.PHONY: lint
lint: ## golangci-lint, rules of the tree
	scripts/check-tree.sh
	scripts/lint.sh run $(PKG)

.PHONY: fmt
fmt: ## gofumpt and import groups
	scripts/lint.sh fmt

.PHONY: bench
bench: ## benchmarks against real servers; BENCH_ARGS=...
	$(WITH_SERVERS) go run ./benchmarks $(BENCH_ARGS)

.PHONY: services
services: ## start the servers and print their addresses, for eval
	@started=$$(scripts/services/all.sh start $(SERVICES)); sed 's/^/export /' <<<"$$started"

.PHONY: services-stop
services-stop: ## stop them
	@scripts/services/all.sh stop $(SERVICES)

.PHONY: demo
demo: ## the quick start, as a program
	go run ./examples/quickstart
