#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Goal: the demo's claims hold. With libtorch where the build has it (TORCH=ON), else with the reference kernels.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$WORK" || exit 1
flags=(--steps 40)
[ "${TORCH:-ON}" = ON ] || flags+=(--backend reference)
hold demo --json --directory "$WORK/demo" "${flags[@]}" >demo.json 2>demo.txt || fail "the demo failed: $(cat demo.txt)"
for claim in '"ok": true' '"restarts": 0' '"loss_max_abs_diff": 0.0' '"redone_iterations": [01]\b' '"workers": 6'; do
    expect 0 "$claim" cat demo.json
done
finish
