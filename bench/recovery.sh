#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How long a training job stands still when a node goes: from the fault to the death row, and to the first new optimizer
# step, for the two ways a node goes. Each run is a whole `hold demo`; min, median and max over the runs.
# use: [STEPS=40] bench/recovery.sh [RUNS [FAULT…]]   (default: 5 runs of sigkill and, as root, of link-down)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
hold=$root/build/release/bin/hold
runs=${1:-5}
shift || true
faults=("$@")
if [ ${#faults[@]} = 0 ]; then
    faults=(sigkill)
    [ "$(id -u)" != 0 ] || faults+=(link-down)
fi
[ -x "$hold" ] || {
    echo "build it first: ./dev build release" >&2
    exit 1
}

# summary VALUES…: min, median, max.
summary() {
    printf '%s\n' "$@" | sort -g | awk '{ v[NR] = $1 }
        END { printf "%10.0f %10.0f %10.0f", v[1], NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2, v[NR] }'
}

work=$(mktemp -d)
chmod 0711 "$work" # tasks run as another user when this is root
trap 'rm -rf "$work"' EXIT
printf '%-10s %-22s %5s %10s %10s %10s\n' fault measure runs min median max
for fault in "${faults[@]}"; do
    detect=() resume=() undisturbed=() degraded=() after=()
    for run in $(seq "$runs"); do
        "$hold" demo --json --steps "${STEPS:-40}" --fault "$fault" --directory "$work/$fault-$run" \
            >"$work/out" 2>"$work/err" || {
            cat "$work/out" "$work/err" >&2
            exit 1
        }
        number() { sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p" "$work/out" | head -n 1; }
        detect+=("$(number detect_ms)")
        resume+=("$(number resume_ms)")
        undisturbed+=("$(number undisturbed)")
        degraded+=("$(number degraded)")
        after+=("$(number after_rejoin)")
        rm -rf "$work/$fault-$run"
    done
    printf '%-10s %-22s %5d %s\n' "$fault" detect_ms "$runs" "$(summary "${detect[@]}")"
    printf '%-10s %-22s %5d %s\n' "$fault" resume_ms "$runs" "$(summary "${resume[@]}")"
    printf '%-10s %-22s %5d %s\n' "$fault" step_ms_undisturbed "$runs" "$(summary "${undisturbed[@]}")"
    printf '%-10s %-22s %5d %s\n' "$fault" step_ms_degraded "$runs" "$(summary "${degraded[@]}")"
    printf '%-10s %-22s %5d %s\n' "$fault" step_ms_after_rejoin "$runs" "$(summary "${after[@]}")"
done
