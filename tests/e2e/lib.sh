# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the end-to-end tests share: a fresh folder, a server and agents in it, and checks that say what they saw.
# Use: BIN is the folder of `hold`; source this file; end with `finish`.
set -u
BIN=${BIN:?the folder of hold}
export LIBEXEC
LIBEXEC=$(cd "$BIN/../libexec/holdfast" && pwd)
WORK=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-e2e-XXXXXX")
chmod 0711 "$WORK"
export HOLDFAST_SERVER="unix:$WORK/hold.sock"
export NO_COLOR=1
PATH="$BIN:$PATH"
failures=0
declare -A pids=()
# Jobs never run as root: root submits for another user.
as_user=()
[ "$(id -u)" = 0 ] && as_user=(--user nobody)

fail() {
    failures=$((failures + 1))
    printf 'FAILED: %s\n' "$*"
}

# expect CODE PATTERN COMMAND…: exit code and a pattern (extended regex) in stdout and stderr together.
expect() {
    local code=$1 pattern=$2 output status
    shift 2
    output=$("$@" 2>&1)
    status=$?
    if [ "$status" != "$code" ]; then
        fail "\`$*\` ended with $status, not $code: $output"
    elif ! grep -qE -- "$pattern" <<<"$output"; then
        fail "\`$*\` printed no /$pattern/: $output"
    else
        printf 'ok: %s\n' "$*"
    fi
}

# eventually SECONDS PATTERN COMMAND…: repeats until the pattern is printed.
eventually() {
    local seconds=$1 pattern=$2 output=
    shift 2
    for _ in $(seq $((seconds * 10))); do
        output=$("$@" 2>&1)
        if grep -qE -- "$pattern" <<<"$output"; then
            printf 'ok: %s\n' "$*"
            return 0
        fi
        sleep 0.1
    done
    fail "\`$*\` did not print /$pattern/ within $seconds s: $output"
}

# shellcheck disable=SC2120 # flags are optional
start_server() { # [flags…]
    "$BIN/hold" server --data "$WORK/server" --socket "$WORK/hold.sock" "$@" >>"$WORK/server.log" 2>&1 &
    pids[server]=$!
    eventually 20 '"nodes"' hold nodes --json
}

start_agent() { # NAME [flags…]
    local name=$1
    shift
    "$BIN/hold" agent --server "$HOLDFAST_SERVER" --state "$WORK/$name" --name "$name" \
        --kill-tasks-on-exit "$@" >>"$WORK/$name.log" 2>&1 &
    pids[$name]=$!
}

stop() { # NAME [SIGNAL]
    kill "-${2:-TERM}" "${pids[$1]}" 2>/dev/null
    wait "${pids[$1]}" 2>/dev/null
    unset "pids[$1]"
}

# submit FLAGS…: prints the job's number.
submit() { hold submit "${as_user[@]}" "$@" --json | grep -oE '"job": *[0-9]+' | grep -oE '[0-9]+'; }

finish() {
    local name
    for name in "${!pids[@]}"; do
        [ "$name" != server ] && stop "$name"
    done
    [ -n "${pids[server]:-}" ] && stop server
    if pgrep -f "$WORK" >/dev/null; then
        fail "processes were left: $(pgrep -af "$WORK")"
        pkill -KILL -f "$WORK"
    fi
    if [ "$failures" = 0 ]; then
        rm -rf "$WORK"
        printf 'all checks passed\n'
    else
        printf '%d checks failed; the logs are in %s\n' "$failures" "$WORK"
        tail -n 5 "$WORK"/*.log
        exit 1
    fi
}
