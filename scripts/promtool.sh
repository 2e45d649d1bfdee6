#!/usr/bin/env bash
# promtool, from Debian's package prometheus, unpacked beside the services' own: no
# server is installed or started.
# usage: promtool.sh        prints OUTMILL_PROMTOOL, for eval
. "$(dirname "${BASH_SOURCE[0]}")/services/lib.sh"

prefix promtool "${OUTMILL_PROMTOOL_SUITE:-bookworm}" prometheus
echo "OUTMILL_PROMTOOL=$PREFIX/usr/bin/promtool"
