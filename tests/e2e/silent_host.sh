#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Goal: a host that falls silent (link down, no FIN) is noticed by missing heartbeats, training goes on, and when the
# link is back the host's old workers are fenced and new ones join. Over TLS with enrolment tokens. Needs root for
# namespaces.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [ "$(id -u)" != 0 ] || ! ip netns add holdfast-probe-$$ 2>/dev/null; then
    echo "skipped: network namespaces need root and iproute2"
    rm -rf "$WORK"
    exit 77
fi
ip netns del holdfast-probe-$$
cd "$WORK" || exit 1
flags=(--steps 40)
[ "${TORCH:-ON}" = ON ] || flags+=(--backend reference)
hold demo --fault link-down --json --directory "$WORK/demo" "${flags[@]}" >demo.json 2>demo.txt ||
    fail "the demo failed: $(cat demo.txt)"
for claim in '"ok": true' '"restarts": 0' '"loss_max_abs_diff": 0.0'; do
    expect 0 "$claim" cat demo.json
done
finish
