#!/bin/bash
# How much programs notice of conversions: a tree is copied into a mount, a large file written, and the tree copied
# again, once while files are converted as they are closed and once while none are, in turn, on a new ext4 each time.
#
#     examples/bench_foreground.sh WORKDIR BIN SOURCE [RUNS]     (as root)
#
# BIN is a directory with the programs (target/release). WORKDIR needs 6 GB. Prints seconds, then the sums and their
# ratio: how fast programs are beside conversions.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,9s/^# \?//p' "$0"; exit 2; }
work=$1 bin=$2 source=$3 runs=${4:-3}
mkdir -p "$work/fs" "$work/mnt"
tar cf - "$source" 2> /dev/null | cat > /dev/null # everybody finds the source in memory

one() {
    truncate -s 6G "$work/image"
    mkfs.ext4 -qF "$work/image"
    mount -o loop "$work/image" "$work/fs"
    mkdir "$work/fs/dir"
    "$bin/dedupfs" "$work/fs/dir" "$work/mnt" --foreground --dedup "$1" 2> /dev/null &
    local daemon=$!
    until mountpoint -q "$work/mnt"; do sleep 0.1; done
    local start first large second
    start=$(date +%s%N)
    cp -r "$source" "$work/mnt/first"
    first=$(date +%s%N)
    dd if=/dev/zero of="$work/mnt/large" bs=1M count=512 conv=fsync status=none
    large=$(date +%s%N)
    cp -r "$source" "$work/mnt/second"
    second=$(date +%s%N)
    stubs=$(find "$work/fs/dir/first" "$work/fs/dir/second" -type f -size 0 | wc -l)
    kill "$daemon"
    wait "$daemon" || true
    umount "$work/fs"
    took=$(((second - start) / 1000000))
    printf '%-9s copy %6d ms, write %6d ms, copy %6d ms; %d stubs by then\n' "$1" \
        $(((first - start) / 1000000)) $(((large - first) / 1000000)) $(((second - large) / 1000000)) "$stubs"
}

without=0 with=0
for _ in $(seq "$runs"); do
    one idle:1h
    without=$((without + took))
    one on-close
    with=$((with + took))
done
rm -f "$work/image"
awk "BEGIN { printf \"%d ms without conversions, %d ms beside them: %.2f of the speed\n\", $without, $with, $without / $with }"
