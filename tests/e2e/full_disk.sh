#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Goal: a server whose disk is full refuses submits with a clear error, lives, and takes submits again once there is
# room.
# Method: the data directory is a small tmpfs, filled up by a file. Needs root to mount: skipped otherwise.
# shellcheck source-path=SCRIPTDIR source=lib.sh disable=SC2119
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [ "$(id -u)" != 0 ]; then
    echo "skipped: mounting a small file system needs root"
    rm -rf "$WORK"
    exit 77
fi
mkdir "$WORK/server"
mount -t tmpfs -o size=12m,mode=0700 tmpfs "$WORK/server" || exit 77
trap 'umount -l "$WORK/server" 2>/dev/null' EXIT
cd "$WORK" || exit 1
start_server
printf 'name: small\nrun: "true"\n' >job.yaml
expect 0 '' hold submit --user nobody job.yaml
dd if=/dev/zero of="$WORK/server/filler" bs=4k 2>/dev/null
full=0
for _ in $(seq 200); do
    if ! hold submit --user nobody job.yaml >out.txt 2>&1; then
        full=1
        break
    fi
done
[ "$full" = 1 ] || fail "200 submits were taken by a full disk"
expect 0 'space|full' cat out.txt
expect 0 'small' hold jobs
rm "$WORK/server/filler"
eventually 10 'small|[0-9]' hold submit --user nobody job.yaml
before=$(hold sql -o csv --no-headers "select count(*) from job")
stop server KILL
start_server
expect 0 "^$before\$" hold sql -o csv --no-headers "select count(*) from job"
finish
