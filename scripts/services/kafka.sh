#!/usr/bin/env bash
# Apache Kafka on loopback, one KRaft node that is broker and controller, from Maven Central.
# usage: kafka.sh [start | stop | status | install | wipe | crash | tool CLASS ARGS...]
# Prints OUTMILL_KAFKA_ADDR and OUTMILL_KAFKA_BROKERS.
# `wipe` also drops the data, `crash` kills the server and keeps them, `tool` runs
# one of Kafka's own classes, such as kafka.tools.StorageTool.
# OUTMILL_KAFKA_PORT (19092; the port above it is the controller's),
# OUTMILL_KAFKA_VERSION (4.4.0), OUTMILL_KAFKA_ARGS (more options for kafka.Kafka,
# such as `--override num.partitions=1`).
# Needs mvn to install, and Java 17 or newer: that on PATH, else one under /usr/lib/jvm.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PORT=${OUTMILL_KAFKA_PORT:-19092}
RUN=$SVC_HOME/run/$SVC-$PORT
VERSION=${OUTMILL_KAFKA_VERSION:-4.4.0}

# java_here: sets JAVA to the first Java that is new enough.
java_here() {
	local java major
	for java in "$(command -v java)" "${JAVA_HOME:-/usr}/bin/java" /usr/lib/jvm/*/bin/java; do
		[ -x "$java" ] || continue
		major=$("$java" -XX:-UsePerfData -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
		[ "${major:-0}" -ge 17 ] && JAVA=$java && return
	done
	die "needs Java 17 or newer"
}

install() {
	java_here
	PREFIX=$SVC_HOME/pkg/kafka-$VERSION
	[ -e "$PREFIX/manifest" ] && return
	command -v mvn >/dev/null || die "needs mvn"
	mkdir -p "$SVC_HOME/pkg"
	exec 8>"$SVC_HOME/pkg/kafka.lock"
	flock 8
	if [ -e "$PREFIX/manifest" ]; then # another script has just done it
		exec 8>&-
		return
	fi
	local t0 new=$PREFIX.new
	t0=$(now)
	rm -rf "$new" "$PREFIX"
	mkdir -p "$new"
	# Kafka's pom leaves the logger to the user; slf4j-simple is of the API version it uses.
	cat >"$new/pom.xml" <<-EOF
		<project>
		  <modelVersion>4.0.0</modelVersion>
		  <groupId>outmill</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
		  <dependencies>
		    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$VERSION</version></dependency>
		    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
		  </dependencies>
		</project>
	EOF
	# Java takes the home from the user database; these scripts take $HOME.
	MAVEN_OPTS="-Duser.home=$HOME -XX:-UsePerfData ${MAVEN_OPTS:-}" mvn -B -ntp -f "$new/pom.xml" \
		org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory="$new/libs" </dev/null >"$new/mvn.log" 2>&1 ||
		{ tail -n 30 "$new/mvn.log" >&2; die "cannot get Kafka $VERSION: see mvn's message above"; }
	{
		echo "# Kafka $VERSION, $(date -u +%FT%TZ); $(($(now) - t0)) ms" \
			"($(du -cb "$new"/libs/*.jar | awk 'END { print $1 }') bytes)"
		(cd "$new/libs" && ls)
	} >"$new/manifest"
	mv "$new" "$PREFIX"
	exec 8>&-
	say "$(sed -n '1s/^# //p' "$PREFIX/manifest")"
}

# conf DATA: the server's settings. Internal topics have few partitions, as each
# costs files at the start and checks after a crash. A broker is not let in again
# before the session of the one that was killed is over (9 s unless told).
conf() {
	cat <<-EOF
		process.roles=broker,controller
		node.id=1
		controller.quorum.voters=1@127.0.0.1:$((PORT + 1))
		controller.listener.names=CONTROLLER
		listeners=PLAINTEXT://127.0.0.1:$PORT,CONTROLLER://127.0.0.1:$((PORT + 1))
		advertised.listeners=PLAINTEXT://127.0.0.1:$PORT
		listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
		log.dirs=$1
		auto.create.topics.enable=true
		num.partitions=12
		offsets.topic.replication.factor=1
		offsets.topic.num.partitions=4
		transaction.state.log.replication.factor=1
		transaction.state.log.min.isr=1
		transaction.state.log.num.partitions=4
		share.coordinator.state.topic.replication.factor=1
		share.coordinator.state.topic.min.isr=1
		share.coordinator.state.topic.num.partitions=4
		group.initial.rebalance.delay.ms=0
		broker.heartbeat.interval.ms=500
		broker.session.timeout.ms=3000
		log.cleaner.dedupe.buffer.size=16777216
	EOF
}

# java_run CLASS ARGS...: sets CMD to the command. Nothing is left in /tmp.
java_run() {
	local log=-Dorg.slf4j.simpleLogger
	CMD=("$JAVA" -Xmx512m -XX:-UsePerfData -Djava.awt.headless=true "-Djava.io.tmpdir=$RUN/tmp"
		"$log.showDateTime=true" "$log.dateTimeFormat=HH:mm:ss.SSS" "$log.showThreadName=false"
		"$log.log.org.apache.kafka.common.config=warn" "$log.log.kafka.server.KafkaConfig=warn"
		-cp "$PREFIX/libs/*" "$@")
}

boot() {
	data_for "$VERSION"
	vacant "$((PORT + 1))"
	rm -rf "$RUN/tmp" # a killed server leaves unpacked libraries
	mkdir -p "$RUN/tmp"
	if [ ! -d "$RUN/data" ]; then
		rm -rf "$RUN/data.new"
		conf "$RUN/data.new" >"$RUN/init.properties"
		java_run kafka.tools.StorageTool format --config "$RUN/init.properties" \
			--cluster-id "O$(head -c 15 /dev/urandom | base64 | tr '+/' '-_')A"
		"${CMD[@]}" >"$RUN/init.log" 2>&1 || { tail -n 30 "$RUN/init.log" >&2; die "cannot initialise"; }
		mv "$RUN/data.new" "$RUN/data"
	fi
	conf "$RUN/data" >"$RUN/server.properties"
	# shellcheck disable=SC2086
	java_run kafka.Kafka "$RUN/server.properties" ${OUTMILL_KAFKA_ARGS:-}
	spawn kafka "${CMD[@]}"
}

# Ask for metadata of no topic: the answer lists one broker once that is let in.
ready() {
	timeout 3 bash -c '
		exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
		printf "\0\0\0\016\0\03\0\01\0\0\0\01\377\377\0\0\0\0" >&3
		[ "$(head -c 12 <&3 | od -An -tx1 -j8 | tr -d " ")" = 00000001 ]' sh "$PORT"
}

quit() { halt kafka; }

address() {
	echo "OUTMILL_KAFKA_ADDR=127.0.0.1:$PORT"
	echo "OUTMILL_KAFKA_BROKERS=127.0.0.1:$PORT"
}

if [ "${1:-}" = tool ]; then
	shift
	install
	mkdir -p "$RUN/tmp"
	java_run "$@"
	exec "${CMD[@]}"
fi
main "$@"
