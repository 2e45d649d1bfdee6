# shellcheck shell=bash
# Shared by the service scripts in this folder; not run by itself.
#
# What it gives them:
#   prefix   unpack Debian packages of any suite, with every library they need
#            and that suite's own libc, into one folder. The host's package
#            database and libc stay as they are, and root is not needed.
#   gotool   build a Go program at a pinned version.
#   spawn, alive, halt, await
#            start, find, stop and wait for a server by its process id.
#   unprivileged
#            the user to run a server as that refuses root.
#   main     the command line every script has.
#
# Settings, all optional:
#   OUTMILL_SERVICES_DIR    where everything is kept
#                            (default ${XDG_CACHE_HOME:-$HOME/.cache}/outmill-services)
#   OUTMILL_SERVICES_WAIT   seconds to wait for a server to answer (default 90)
#   OUTMILL_DEBIAN_MIRROR   Debian archive to use (default: the host's own)

set -euo pipefail
umask 022
export LC_ALL=C

SVC=$(basename "$0" .sh)
SVC_HOME=${OUTMILL_SERVICES_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/outmill-services}
SVC_WAIT=${OUTMILL_SERVICES_WAIT:-90}

say() { printf '%s: %s\n' "$SVC" "$*" >&2; }
die() { say "$*"; exit 1; }
now() { date +%s%3N; }

# ---------------------------------------------------------------- packages

# Packages that only maintainer scripts, or parts we do not run, ask for.
SKIP='perl|perl-base|perl-modules-.*|libperl5.*|lib.*-perl|python3.*|libpython3.*'
SKIP+='|media-types|systemd|systemd-.*|libsystemd-shared|opensysusers|dpkg|tar'
SKIP+='|passwd|base-passwd|login|login.defs|adduser|mount|netbase|usrmerge'
SKIP+='|init-system-helpers|sysvinit-utils|lsb-base|procps|debconf|cdebconf'
SKIP+='|libdebconfclient0|ucf|sensible-utils|locales|libc-l10n|libc-bin'
SKIP+='|libc-gconv-modules-extra|readline-common|tzdata|ssl-cert|logrotate|socat'
SKIP+='|openssl|rabbitmqadmin-ng|postgresql-common|postgresql-client-common'
SKIP+='|libllvm.*|libz3-.*|gcc-[0-9]+-base'

# The archive that the host itself installs from.
debian_mirror() {
	if [ -n "${OUTMILL_DEBIAN_MIRROR:-}" ]; then
		echo "${OUTMILL_DEBIAN_MIRROR%/}"
		return
	fi
	local code
	code=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
		awk -v c="$code" '($2 == c || $2 ~ /^(old|un)?stable$|^testing$|^sid$/) && !u { u = $1 }
			END { if (!u) exit 1; sub(/\/$/, "", u); print u }' ||
		die "no Debian archive in the host's apt sources; set OUTMILL_DEBIAN_MIRROR"
}

debian_keyring() {
	local f
	for f in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp}; do
		[ -r "$f" ] && { echo "$f"; return; }
	done
	die "the package debian-archive-keyring is missing"
}

# aptget SUITE COMMAND...: apt-get with sources, lists and cache of its own.
# Signatures are checked against Debian's keyring. Of the host's settings only
# transport and date checks are taken over (a mirror may lag).
aptget() {
	local dir=$SVC_HOME/apt/$1
	shift
	APT_CONFIG=$dir/apt.conf apt-get "$@"
}

apt_setup() {
	local suite=$1 dir=$SVC_HOME/apt/$1 mirror keyring
	mirror=$(debian_mirror)
	keyring=$(debian_keyring)
	mkdir -p "$dir"/{state/lists/partial,cache/archives/partial,none}
	: >"$dir/state/status"
	echo "deb [signed-by=$keyring] $mirror $suite main" >"$dir/sources.list"
	{
		apt-config dump |
			grep -E '^Acquire::(https?|Retries|Check-Valid-Until|Check-Date|ForceIPv[46])' || true
		cat <<-CONF
			Dir::Etc::main "$dir/none/apt.conf";
			Dir::Etc::parts "$dir/none";
			Dir::Etc::sourcelist "$dir/sources.list";
			Dir::Etc::sourceparts "$dir/none";
			Dir::Etc::preferences "$dir/none/preferences";
			Dir::Etc::preferencesparts "$dir/none";
			Dir::State "$dir/state";
			Dir::State::status "$dir/state/status";
			Dir::Cache "$dir/cache";
			Dir::Cache::srcpkgcache "";
			Acquire::Languages "none";
			Acquire::GzipIndexes "true";
			Acquire::Retries "3";
			APT::Install-Recommends "false";
			APT::Update::Error-Mode "any";
			APT::Sandbox::User "root";
		CONF
	} >"$dir/apt.conf"
}

# Packages PKG... and all that they depend on, as name=version lines.
apt_closure() {
	aptget "$1" install -s -qq "${@:2}" |
		awk '/^Inst / { v = $3; sub(/^\(/, "", v); print $2 "=" v }' |
		grep -vE "^($SKIP)="
}

# prefix NAME SUITE PKG...: sets PREFIX to a folder with the packages unpacked
# and every program in it bound to the libc and libraries beside it.
# What a script wants done to the folder goes in a function `unpacked NEW FINAL`.
prefix() {
	local name=$1 suite=$2
	shift 2
	PREFIX=$SVC_HOME/pkg/$name-$suite
	[ -e "$PREFIX/manifest" ] && return
	if ! command -v apt-get >/dev/null; then die "needs apt-get"; fi

	mkdir -p "$SVC_HOME/apt" "$SVC_HOME/pkg"
	exec 8>"$SVC_HOME/apt/$suite.lock"
	flock 8
	if [ -e "$PREFIX/manifest" ]; then # another script has just done it
		exec 8>&-
		return
	fi
	local t0 t1 t2 t3 new=$PREFIX.new debs=$PREFIX.debs list try
	t0=$(now)
	for try in 1 2; do
		if [ "$try" = 2 ] || [ -z "$(find "$SVC_HOME/apt/$suite/updated" -mmin -60 2>/dev/null)" ]; then
			apt_setup "$suite"
			aptget "$suite" update -qq >&2 || die "no package lists for $suite"
			touch "$SVC_HOME/apt/$suite/updated"
		fi
		t1=$(now)
		list=$(apt_closure "$suite" "$@" patchelf) || list=
		rm -rf "$debs"
		mkdir -p "$debs"
		# shellcheck disable=SC2086
		[ -n "$list" ] && (cd "$debs" && aptget "$suite" download -qq $list >&2) && break
		[ "$try" = 1 ] || die "cannot get $* from $suite now: see apt's message above"
	done
	t2=$(now)

	rm -rf "$new" "$PREFIX"
	mkdir -p "$new"/usr/{bin,sbin,lib,lib64}
	local d
	for d in bin sbin lib lib64; do ln -s "usr/$d" "$new/$d"; done
	find "$debs" -name '*.deb' -print0 | xargs -0 -P "$(nproc)" -I{} bash -o pipefail -c '
		dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --keep-directory-symlink --no-same-owner \
			--exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale \
			--exclude=./usr/share/info --exclude=./usr/share/lintian "--exclude=./usr/lib/*/gconv"' unpack {} "$new"
	relink "$new" "$PREFIX"
	if declare -F unpacked >/dev/null; then unpacked "$new" "$PREFIX"; fi
	t3=$(now)
	{
		echo "# $suite, $(date -u +%FT%TZ); lists $((t1 - t0)) ms, download $((t2 - t1)) ms" \
			"($(du -cb "$debs"/*.deb | awk 'END { print $1 }') bytes), unpack $((t3 - t2)) ms"
		echo "$list"
	} >"$new/manifest"
	rm -rf "$debs"
	mv "$new" "$PREFIX"
	exec 8>&-
	say "$(sed -n '1s/^# //p' "$PREFIX/manifest")"
}

# Make every program under NEW use the loader and libraries of FINAL.
relink() {
	local new=$1 final=$2 ld lib f n=0
	ld=$(cd "$new" && find usr/lib64 usr/lib -name 'ld-linux*.so.*' | head -n 1)
	lib=$(cd "$new" && dirname "$(find usr/lib -name libc.so.6 | head -n 1)")
	if [ -z "$ld" ] || [ "$lib" = . ]; then die "no libc among the packages"; fi
	local elf=("$new/$ld" --inhibit-cache --library-path "$new/$lib" "$new/usr/bin/patchelf")
	while IFS= read -r -d '' f; do
		[ "$f" != "$new/usr/bin/patchelf" ] || continue
		"${elf[@]}" --print-interpreter "$f" >/dev/null 2>&1 || continue
		"${elf[@]}" --set-interpreter "$final/$ld" --force-rpath --set-rpath "$final/$lib" "$f" ||
			die "cannot relink $f"
		n=$((n + 1))
	done < <(find "$new/usr" -type f -perm -u+x ! -name '*.so' ! -name '*.so.*' -print0)
	[ "$n" -gt 0 ] || die "nothing to relink in $new"
}

# version_of PKG: its version in PREFIX.
version_of() { sed -n "s/^$1=//p" "$PREFIX/manifest"; }

# gotool BINARY PACKAGE@VERSION: sets TOOL to the program, built if missing.
gotool() {
	TOOL=$SVC_HOME/go/${2##*@}/$1
	[ -x "$TOOL" ] && return
	command -v go >/dev/null || die "needs go"
	local t0 tmp
	t0=$(now)
	tmp=$(mktemp -d "$SVC_HOME/go.XXXXXX")
	(cd "$tmp" && GOBIN=$tmp GOFLAGS='' GOWORK=off CGO_ENABLED=0 go install -trimpath -ldflags=-s "$2") >&2 ||
		{ rm -rf "$tmp"; die "cannot build $2"; }
	mkdir -p "${TOOL%/*}"
	mv "$tmp"/* "$TOOL"
	rm -rf "$tmp"
	say "built $2 in $(($(now) - t0)) ms"
}

# --------------------------------------------------------------- processes
# Each server has a folder RUN, and in it NAME.log and NAME.pid. NAME.pid holds
# the process id and the moment it began, so a number used again by another
# program is never taken for ours.

# birth PID: when it began; nothing if it has ended, collected by its parent or not.
birth() {
	local stat
	{ read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
	# shellcheck disable=SC2086
	set -- "$1" ${stat##*) } # $2 is its state, $21 when it began
	if [ "$2" = Z ] && [ -z "$(find "/proc/$1/task" -mindepth 1 -maxdepth 1 ! -name "$1" 2>/dev/null)" ]; then
		return 0
	fi
	echo "${21}"
}

pid_of() {
	local pid born
	[ -r "$RUN/$1.pid" ] && read -r pid born <"$RUN/$1.pid" &&
		[ -n "$born" ] && [ "$(birth "$pid")" = "$born" ] && echo "$pid"
}

alive() { pid_of "$1" >/dev/null; }

# bury NAME: make way for a new start. Servers refuse while the number in their
# lock files looks alive, as it does until the dead process is collected.
bury() {
	local pid i
	if { read -r pid _ <"$RUN/$1.pid"; } 2>/dev/null; then
		for ((i = 0; i < 100; i++)); do
			grep -qs '^State:.Z' "/proc/$pid/status" || break
			sleep 0.1
		done
	fi
	drop_sockets
}

# spawn NAME COMMAND...: in a session of its own, holding none of our locks.
spawn() {
	local name=$1
	shift
	# A server must not inherit the caller's descriptors: a lock held there would never be freed.
	(
		for fd in "/proc/$BASHPID/fd/"*; do
			fd=${fd##*/}
			[ "$fd" -le 2 ] || eval "exec $fd>&-"
		done
		exec setsid "$@"
	) >>"$RUN/$name.log" 2>&1 </dev/null &
	echo "$! $(birth $!)" >"$RUN/$name.pid"
	disown
}

# halt NAME [SIGNAL]: ask, wait, then kill.
halt() {
	local pid i signal=${2:-TERM}
	pid=$(pid_of "$1") || return 0
	kill -"$signal" "$pid"
	for ((i = 0; i < 300; i++)); do
		alive "$1" || break
		sleep 0.1
	done
	if alive "$1"; then
		say "$1 ($pid) ignored SIG$signal for 30 s: killed"
		kill -KILL "$pid"
	elif [ "$signal" != KILL ]; then
		rm -f "$RUN/$1.pid" # ended in order: nothing left to bury
	fi
}

# unprivileged: for servers that refuse to run as root. Sets AS, to be put before their
# commands, and AS_USER. That user may not be let into root's home: then the script
# keeps its files under /var/tmp.
unprivileged() {
	AS=()
	[ "$(id -u)" = 0 ] || return 0
	AS_USER=postgres
	id -u "$AS_USER" >/dev/null 2>&1 || AS_USER=nobody
	AS=(setpriv "--reuid=$AS_USER" "--regid=$(id -g "$AS_USER")" --clear-groups --)
	mkdir -p "$SVC_HOME"
	if ! "${AS[@]}" test -x "$SVC_HOME"; then
		SVC_HOME=/var/tmp/outmill-services
		mkdir -p "$SVC_HOME"
		[ -O "$SVC_HOME" ] || die "$SVC_HOME belongs to someone else"
	fi
}

# settle NAME CHECK...: until the check passes (0), the server ends (1) or time is up (2).
settle() {
	local name=$1 end=$((SECONDS + SVC_WAIT))
	shift
	until "$@" >/dev/null 2>&1; do
		alive "$name" || return 1
		[ "$SECONDS" -lt "$end" ] || return 2
		sleep 0.1
	done
}

# await NAME CHECK...: settle, or give up with the end of the log.
await() {
	local rc=0
	settle "$@" || rc=$?
	[ "$rc" != 0 ] || return 0
	tail -n 30 "$RUN/$1.log" >&2
	quit
	if [ "$rc" = 1 ]; then die "$1 died while starting (log: $RUN/$1.log)"; fi
	die "$1 gave no answer in $SVC_WAIT s (log: $RUN/$1.log)"
}

# answers PORT SEND WANT: send bytes (a printf format), match what comes back.
answers() {
	timeout 3 bash -c '
		exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
		[ -z "$2" ] || printf "$2" >&3
		got=$(head -c "${#3}" <&3 | tr -d "\0")
		[ "$got" = "$3" ]' sh "$1" "$2" "$3"
}

vacant() {
	if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then
		die "port $1 is taken by a program that this script did not start"
	fi
}

# socket_dir: a short private folder for Unix sockets (their paths end at 107 bytes).
socket_dir() {
	if [ ! -s "$RUN/sockets" ]; then mktemp -d "${TMPDIR:-/tmp}/outmill-$SVC.XXXXXX" >"$RUN/sockets"; fi
	cat "$RUN/sockets"
}

drop_sockets() {
	if [ -s "$RUN/sockets" ]; then rm -rf "$(cat "$RUN/sockets")" "$RUN/sockets"; fi
}

# The data is throw-away: begin anew when the server's version has changed.
data_for() {
	if [ "$(cat "$RUN/version" 2>/dev/null)" != "$1" ]; then
		rm -rf "$RUN/data" "$RUN/data.new"
		echo "$1" >"$RUN/version"
	fi
}

# settings_sum: differs when a start would use other settings: another script or other
# options in the environment.
settings_sum() {
	local args=OUTMILL_${SVC^^}_ARGS
	{
		cat "${BASH_SOURCE[-1]}"
		echo "${!args:-} ${SETTINGS:-}"
	} | cksum
}

# ------------------------------------------------------------ command line
# A script sets RUN (by PORT), defines install, boot, ready, quit, address, and may set
# CRASH (a signal) and SETTINGS (what else a running server depends on).

main() {
	mkdir -p "$SVC_HOME" "$RUN"
	exec 9>"$RUN/lock"
	case ${1:-start} in
	install)
		flock 9
		install
		;;
	start)
		flock 9
		install
		local t0
		t0=$(now)
		if alive "$SVC" && settle "$SVC" ready; then
			say "already running"
			[ "$(cat "$RUN/settings" 2>/dev/null)" = "$(settings_sum)" ] ||
				say "its settings are older than this script: stop it to take the new ones"
		else
			quit # it may be there, but hung
			bury "$SVC"
			vacant "$PORT"
			settings_sum >"$RUN/settings"
			boot
			await "$SVC" ready
			say "started in $(($(now) - t0)) ms"
		fi
		address
		;;
	status)
		alive "$SVC" || { say "not running"; exit 3; }
		install
		ready >/dev/null 2>&1 || { say "started, but gives no answer"; exit 4; }
		say "running, pid $(pid_of "$SVC")"
		address
		;;
	stop | wipe)
		flock 9
		quit
		drop_sockets
		say "stopped"
		if [ "$1" = wipe ]; then rm -rf "$RUN"; fi
		;;
	crash)
		flock 9
		halt "$SVC" "${CRASH:-KILL}"
		;;
	*)
		echo "usage: $0 [start | stop | status | install | wipe | crash]" >&2
		exit 2
		;;
	esac
}
