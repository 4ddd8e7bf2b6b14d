#!/bin/bash
# How long `dedupctl export` takes beside `cp -a` of the plain tree, and whether what comes out is what went in.
#
#   cargo build --release && examples/bench_export/run.sh CORPUS WORK [DEDUPCTL]
#
# CORPUS is only read. WORK, a directory on the disk to be measured, takes two copies of it and a store; both go again. Caches are
# dropped before each step (as root), and each ends with a sync. Printed is a row for each step: seconds, and MB a second of
# content; then the differences that rsync finds by checksum in contents, modes, owners, times to the nanosecond, xattrs,
# ACLs and links, which should be none, and the blocks that the tree takes.
set -euo pipefail

corpus=$(realpath "$1")
work=$(realpath "$2")/bench-export
ctl=$(realpath "${3:-target/release/dedupctl}")
mkdir "$work"
trap 'rm -rf "$work"' EXIT
plain=$work/plain
dir=$work/dir

cold() {
    sync
    [ "$(id -u)" != 0 ] || echo 3 > /proc/sys/vm/drop_caches
}

row() {
    local what=$1 start end
    shift
    cold
    start=$(date +%s.%N)
    "$@" > "$work/said" 2> "$work/errors" || { cat "$work/said" "$work/errors"; exit 1; }
    sync -f "$work"
    end=$(date +%s.%N)
    awk -v what="$what" -v s="$start" -v e="$end" -v b="$bytes" \
        'BEGIN { printf "%-40s %8.1f s %8.1f MB/s\n", what, e - s, b / (e - s) / 1e6 }'
}

differences() {
    # Its own names are in the root while there is a store, and so is the time of that.
    touch -r "$plain" "$dir"
    rsync -niaHAX --checksum --modify-window=-1 --delete \
        --exclude=/.dedupfs --exclude=/DEDUPFS-README.txt --filter='-x user.dedupfs' "$plain/" "$dir/" > "$work/differ"
    echo "differences: $(wc -l < "$work/differ")"
    head "$work/differ"
    echo "blocks: $(cd "$plain" && du -s --block-size=512 . | cut -f1) before," \
        "$(cd "$dir" && du -s --block-size=512 --exclude=./.dedupfs --exclude=./DEDUPFS-README.txt . | cut -f1) after"
}

take_in() {
    # Without the rule that an export has left.
    if [ -e "$dir/.dedupfs/config.toml" ]; then
        sed -i '/^# These files were exported/,$d' "$dir/.dedupfs/config.toml"
    else
        "$ctl" init "$dir"
    fi
    "$ctl" scan "$dir" --offline --yes
}

cp -a "$corpus" "$plain"
cp -a "$corpus" "$dir"
bytes=$(find "$plain" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
echo "$(find "$plain" -type f | wc -l) files, $bytes bytes"
row "init, scan" take_in
echo "stubs: $(find "$dir" -path "$dir/.dedupfs" -prune -o -type f -empty -print | wc -l)"
row "cp -a of the plain tree" cp -a "$plain" "$work/copy"
rm -rf "$work/copy"
row "export --to, to another directory" "$ctl" export "$dir" --to "$work/copy"
rm -rf "$work/copy"
row "export --tar -" bash -c "\"$ctl\" export '$dir' --tar - > '$work/archive.tar'"
rm -f "$work/archive.tar"
row "export, in place" "$ctl" export "$dir"
differences
row "scan again" take_in
rm -rf "$dir/.dedupfs/index"
row "export, the index deleted" "$ctl" export "$dir"
differences
row "export --verify, nothing else to do" "$ctl" export --verify "$dir"
cat "$work/said"
row "export --remove-store" "$ctl" export --remove-store "$dir"
differences
echo "left of dedupfs: $(find "$dir" -name '.dedupfs*' -o -name DEDUPFS-README.txt | wc -l) files," \
    "$(getfattr -R -h -m '^user\.dedupfs$' "$dir" 2> /dev/null | grep -c '^# file' || true) xattrs"
