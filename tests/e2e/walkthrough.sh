#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Goal: every verb of the first release does what its help says, on real programs, and every bad input gets an error
# that names what, where and what to do.
# shellcheck source-path=SCRIPTDIR source=lib.sh disable=SC2119
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$WORK" || exit 1

# --- first start
start_server
eventually 10 'one-time enrolment token' cat "$WORK/server.log"
expect 5 "${pids[server]}|in use|another server|holds" hold server --data "$WORK/server" --socket "$WORK/other.sock"
start_agent n1 --cpus 4 --gpus 2
start_agent n2 --cpus 4
eventually 10 'n2 .*up|up.* n2' hold nodes
expect 0 '"schema": *1' hold nodes --json

# --- two agents with one name: the second is refused, the first stays
expect 5 'n1' hold agent --server "$HOLDFAST_SERVER" --state "$WORK/n1-again" --name n1 --cpus 1
expect 0 'n1' hold nodes

# --- a job from a file
cat >job.yaml <<'Y'
name: hello
tasks: 2
env: {GREETING: "good day"}
run: |
  echo "$GREETING from rank $RANK of $WORLD_SIZE as $(id -un), job $SLURM_JOB_ID"
Y
expect 0 '' hold submit "${as_user[@]}" --dry-run job.yaml
expect 0 'completed|COMPLETED|CD' hold submit "${as_user[@]}" --wait job.yaml
expect 0 'good day from rank [01] of 2 as (nobody|[a-z]+), job [0-9]+' hold logs 1
expect 0 'good day from rank 1' hold logs 1.1
expect 0 'hello' hold jobs -a
expect 0 'insert' hold history job-1
expect 0 'completed' hold sql "select state from job where id = 1"
expect 0 'hello' hold sql -o csv "select name from job"

# --- run: output and exit code of the command
expect 7 'out of here' hold run "${as_user[@]}" -n 1 -- sh -c 'echo out of here; exit 7'

# --- wrong words in a job file
printf 'name: x\nrnu: echo\n' >bad.yaml
expect 2 'at bad.yaml:2:1' hold submit "${as_user[@]}" bad.yaml
expect 2 'did you mean .run' hold submit "${as_user[@]}" bad.yaml
printf 'run: echo\nsecrets: [a]\n' >later.yaml
expect 2 'secrets' hold submit "${as_user[@]}" later.yaml
expect 3 'nothing.yaml' hold submit "${as_user[@]}" nothing.yaml
expect 2 'subnit|submit' hold subnit

# --- jobs that wait, and why
cat >big.yaml <<'Y'
name: big
gpus_per_node: 8
run: "true"
Y
big=$(submit big.yaml)
expect 0 '8.*(gpu|GPU)' hold why "$big"
expect 0 'PD.*' hold jobs
expect 0 'cancel' hold cancel "$big"
expect 3 '9999' hold why 9999

# --- array
cat >array.yaml <<'Y'
name: sweep
array: 0-4%2
run: echo "element $SLURM_ARRAY_TASK_ID"
Y
array=$(submit array.yaml)
expect 0 '' hold wait "$array"
expect 0 'element 3' hold logs "${array}_3"

# --- cancel a running job: its processes are gone
cat >long.yaml <<'Y'
name: long
run: exec sleep 1234.5
Y
long=$(submit long.yaml)
eventually 10 'sleep 1234.5' pgrep -af 'sleep 1234.5'
expect 0 '' hold cancel "$long"
for _ in $(seq 100); do pgrep -f 'sleep 1234.5' >/dev/null || break; sleep 0.1; done
expect 1 '' pgrep -f 'sleep 1234.5'
expect 1 'cancelled' hold wait "$long"

# --- drain, undrain
expect 0 'drain' hold node drain n2 --reason maintenance
expect 0 'maintenance' hold nodes -o wide
expect 0 'n2' hold node undrain n2

# --- tokens and pools
expect 0 'hf' hold token create --user alice --description laptop
expect 0 'alice' hold token list
expect 0 'batch' hold pool create batch
expect 0 'batch' hold pool list
expect 0 '' hold pool delete batch

# --- SQL is read-only and bounded
expect 4 'only reads' hold sql "delete from job"
expect 4 'ATTACH' hold sql "attach 'x.db' as x"
expect 4 'token.hash' hold sql "select hash from token"
expect 2 'nosuch' hold sql "select nosuch from job"

# --- the server dies while a job runs: the agent keeps it, and all of it is there afterwards
cat >through.yaml <<'Y'
name: through
run: sleep 3; echo still here
Y
through=$(submit through.yaml)
eventually 10 'R ' hold jobs
stop server KILL
expect 6 'no server answers' hold jobs
start_server
expect 0 '' hold wait "$through"
expect 0 'still here' hold logs "$through"
expect 0 '^0$' hold sql -o csv --no-headers "select restarts from job where id = $through"

# --- root runs nothing itself
if [ "$(id -u)" = 0 ]; then
    expect 4 'root' hold submit job.yaml
fi
finish
