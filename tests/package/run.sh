#!/bin/bash
# The Debian package in a Debian that has never seen it: installed, used as its guide says, removed, and nothing left.
# The clean Debian is booted with its own systemd in a container (systemd-nspawn); each step prints what it runs, what that
# says, and how long it took. Ends with an error at the first step that is not as it should be.
#
# By hand, as root, with network: tests/package/run.sh
# Wants debootstrap, systemd-container, cargo-deb and /dev/fuse (`apt install debootstrap systemd-container`,
# `cargo install --locked cargo-deb`). In the environment:
#   DEDUPFS_PACKAGE_CACHE=DIR    where the clean Debian and the build are kept for the next time (/var/cache/dedupfs-package)
#   DEDUPFS_PACKAGE_RELEASE=1    build as a release is; else with less optimization, in a quarter of the time
#   DEDUPFS_PACKAGE_MIRROR=URL   where Debian comes from (where this machine has its packages from)
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
cache=${DEDUPFS_PACKAGE_CACHE:-/var/cache/dedupfs-package}
mirror=${DEDUPFS_PACKAGE_MIRROR:-$(apt-get indextargets --format '$(SITE)' | grep -v security | head -n 1)}

fail() {
    echo "run.sh: $*" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || fail "a container needs root"
[ -c /dev/fuse ] || fail "/dev/fuse is missing: this machine has no FUSE"
for pair in debootstrap:debootstrap systemd-nspawn:systemd-container nsenter:util-linux; do
    command -v "${pair%%:*}" > /dev/null || fail "${pair%%:*} is missing: \`apt install ${pair##*:}\`"
done
mkdir -p "$cache"
work=$(mktemp -d /var/tmp/dedupfs-package-XXXXXX)
root=$work/root
container= leader=

finish() {
    local status=$?
    if [ -n "$container" ]; then
        [ -z "$leader" ] || timeout 20 nsenter -t "$leader" -a systemctl poweroff > /dev/null 2>&1 || true
        for _ in $(seq 100); do
            kill -0 "$container" 2> /dev/null || break
            sleep 0.2
        done
        kill -KILL "$container" 2> /dev/null || true
        wait "$container" 2> /dev/null || true
    fi
    # Nothing that is still mounted is walked into.
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap finish EXIT

now() { date +%s.%N; }
began=$(now)
took() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "(%.1f s)\n", to - from }'; }

# step TITLE SECONDS COMMANDS: runs them in the container, within that time.
step() {
    local title=$1 seconds=$2 commands=$3 from
    printf '\n== %s\n' "$title"
    from=$(now)
    timeout -k 5 "$seconds" nsenter -t "$leader" -a env -i HOME=/root LC_ALL=C.UTF-8 TERM=dumb \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
        bash -euo pipefail -c "cd /; . /root/help.sh; set -v; $commands" 2>&1 < /dev/null |
        sed -u '/^+ set +v/d; s/^/   /' || fail "$title: failed"
    took "$from"
}

printf '== A package is built\n'
from=$(now)
if [ "${DEDUPFS_PACKAGE_RELEASE:-}" != 1 ]; then
    export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_DEBUG=0
fi
export CARGO_TARGET_DIR=$cache/target
"$source_dir/packaging/build-deb.sh" --output "$work/dedupfs.deb"
ls -l "$work/dedupfs.deb" | awk '{ print "   " $5 " bytes" }'
took "$from"

printf '\n== A clean Debian is unpacked\n'
from=$(now)
if [ ! -e "$cache/debian.tar" ]; then
    timeout 1800 debootstrap --variant=minbase \
        --include=systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,udev,ca-certificates,attr \
        bookworm "$work/debian" "$mirror" > "$work/debootstrap.log" || {
        tail "$work/debootstrap.log" >&2
        fail "debootstrap failed"
    }
    tar -C "$work/debian" -cf "$cache/debian.tar.new" .
    mv "$cache/debian.tar.new" "$cache/debian.tar"
fi
mkdir "$root"
tar -C "$root" -xpf "$cache/debian.tar"
mkdir -p "$root/root"
cp "$work/dedupfs.deb" "$root/root/"
# What the steps share.
cat > "$root/root/help.sh" << 'END'
# Every file of a tree by its content, and everything in it by its name, mode, owner, size and time.
sums() { (cd "$1" && find . -type f ! -path './.dedupfs*' -print0 | sort -z | xargs -0 sha256sum); }
names() { (cd "$1" && find . -mindepth 1 -printf '%p %y %m %U %G %n %T@ %l\n' | sort); }
# True if a command fails. (`! command` would not end a script.)
fails() { if "$@"; then echo "this was to fail: $*"; return 1; fi; }
# Waits for up to half a minute.
until_true() { for _ in $(seq 150); do ! "$@" > /dev/null || return 0; sleep 0.2; done; echo "waited in vain for: $*"; return 1; }
# All that the system has, but for what apt and the system write down as they run.
everything() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /root \
    -o -path /data -o -path '/etc/sub[ug]id-' -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg \) -prune -o -print | sort; }
END
took "$from"

printf '\n== It boots\n'
from=$(now)
options=(-D "$root" --machine="dedupfs-package-$$" --boot --bind=/dev/fuse --console=pipe)
if [ -d /run/systemd/system ]; then
    options+=(--register=no --property='DeviceAllow=/dev/fuse rwm')
else
    # There is no service manager that could give it a unit.
    options+=(--register=no --keep-unit)
fi
systemd-nspawn "${options[@]}" < /dev/null > "$work/boot.log" 2>&1 &
container=$!
is_up() {
    leader=$(cat "/proc/$container/task/$container/children" 2> /dev/null) && leader=${leader%% *}
    [ -n "$leader" ] || return 1
    case $(timeout 10 nsenter -t "$leader" -a systemctl is-system-running 2> /dev/null) in
        running | degraded) ;;
        *) return 1 ;;
    esac
}
for _ in $(seq 120); do
    kill -0 "$container" 2> /dev/null || break
    is_up && break
    sleep 0.5
done
is_up || fail "the container did not boot: $(cat "$work/boot.log")"
took "$from"

step "It is installed" 300 '
apt-get update -q > /dev/null
everything > /root/before
apt-get install -y -q --no-install-recommends /root/dedupfs.deb 2>&1 | tail -n 4
dedupfs --version
ls /usr/share/man/man1/dedupctl.1.gz /usr/share/man/man5/dedupfs-config.5.gz /usr/share/bash-completion/completions/dedupctl
systemctl cat dedupfs@data.service | grep ExecStart='

step "A home, and what is in it" 120 '
mkdir -p /data/ann/papers /data/bob
cp -a /usr/share/doc /usr/share/perl5 /data/ann
cp -a /usr/lib/x86_64-linux-gnu/perl-base /data/bob
cp -a /data/ann/doc /data/bob/doc-of-ann
seq 1 40000 > /data/ann/papers/thesis.txt
sed "300s/.*/another line/" /data/ann/papers/thesis.txt > /data/bob/thesis-2.txt
ln /data/ann/papers/thesis.txt /data/ann/thesis-link
sums /data > /root/sums
names /data > /root/names
wc -l < /root/sums
du -sh --apparent-size /data'

step "It is mounted by its unit" 120 '
systemctl enable --now "$(systemd-escape --path --template=dedupfs@.service /data)"
systemctl is-active dedupfs@data
findmnt -no TARGET,SOURCE /data
dedupctl scan /data
dedupctl settle /data
dedupctl status /data
sums /data | cmp - /root/sums'

step "The daemon is killed, and the unit starts again" 120 '
pid=$(systemctl show -P MainPID dedupfs@data)
kill -9 "$pid"
is_again() { [ "$(systemctl show -P MainPID dedupfs@data)" != "$pid" ] && systemctl -q is-active dedupfs@data; }
until_true is_again
systemctl show -P NRestarts dedupfs@data
sums /data | cmp - /root/sums'

step "It is stopped with files in the queue" 120 '
echo "DEDUPFS_OPTIONS=--dedup idle:1h" > /etc/default/dedupfs-data
systemctl restart dedupfs@data
mkdir /data/bob/new
for n in $(seq 500); do seq $n $((n + 2000)) > /data/bob/new/$n; done
dedupctl status /data | grep -E "policy|queue"
dedupctl status /data --json | grep -q "\"pending\": *500"
sums /data > /root/sums
systemctl stop dedupfs@data
fails findmnt /data
rm /etc/default/dedupfs-data
systemctl start dedupfs@data
sums /data | cmp - /root/sums
dedupctl settle /data
sums /data | cmp - /root/sums
systemctl stop dedupfs@data
names /data > /root/names-with-store
systemctl start dedupfs@data
names /data > /root/names'

step "What is there twice, and what is alike" 120 '
dedupctl groups /data --identical --min-size 100K --limit 2
dedupctl similar /data/ann/papers/thesis.txt --limit 3'

step "What its timers run" 120 '
systemctl start dedupfs-check@data.service dedupfs-gc@data.service
systemctl enable --now dedupfs-gc@data.timer
systemctl list-timers --no-pager --legend=no "dedupfs*"'

step "A line of fstab" 60 '
mkdir -p /data2 /mnt/data2
echo "/data2 /mnt/data2 fuse.dedupfs noauto,dedup=idle:10m 0 0" >> /etc/fstab
mount /mnt/data2
cp /data/ann/papers/thesis.txt /mnt/data2
dedupctl status /mnt/data2 | grep -E "mounted|policy|files"
umount /mnt/data2
until_true fails test -e /data2/.dedupfs/daemon.json
dedupctl export --remove-store --force /data2
cmp /data/ann/papers/thesis.txt /data2/thesis.txt
sed -i "/dedupfs/d" /etc/fstab
rm -r /data2
rmdir /mnt/data2'

step "A user mounts a directory of his own" 120 '
useradd --create-home --shell /bin/bash ada
systemctl start user@"$(id -u ada)".service
as_ada() { setpriv --reuid ada --regid ada --init-groups env -i HOME=/home/ada PATH="$PATH" \
    XDG_RUNTIME_DIR=/run/user/"$(id -u ada)" DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/"$(id -u ada)"/bus "$@"; }
as_ada mkdir /home/ada/papers
as_ada cp /data/ann/papers/thesis.txt /home/ada/papers
as_ada systemctl --user start "$(systemd-escape --path --template=dedupfs@.service /home/ada/papers)"
as_ada dedupctl scan /home/ada/papers
as_ada wc -l /home/ada/papers/thesis.txt
as_ada dedupctl status /home/ada/papers | grep -E "mounted|files"
as_ada systemctl --user stop "$(systemd-escape --path --template=dedupfs@.service /home/ada/papers)"
as_ada dedupctl export --remove-store --force /home/ada/papers
cmp /data/ann/papers/thesis.txt /home/ada/papers/thesis.txt
systemctl stop user@"$(id -u ada)".service
userdel --remove ada 2> /dev/null'

step "A second directory, the same by sync" 180 '
mkdir /root/second /root/mnt
dedupctl sync /root/second /data
dedupfs /root/second /root/mnt
sums /root/mnt | cmp - /root/sums
dedupctl unmount /root/mnt'

step "It cannot be removed while it is mounted" 60 '
fails apt-get remove -y -q dedupfs
systemctl is-active dedupfs@data
sums /data | cmp - /root/sums'

step "Everything is plain again" 180 '
systemctl disable --now dedupfs@data.service dedupfs-gc@data.timer
dedupctl export --verify /data
dedupctl export --remove-store --force /data
dedupctl export --remove-store --force /root/second
sums /data | cmp - /root/sums
sums /root/second | cmp - /root/sums
names /data | cmp - /root/names
ls -A /data
getfattr -R -d -m - /data /root/second > /root/attributes
fails grep dedupfs /root/attributes'

step "It is purged, and nothing is left" 120 '
systemctl start dedupfs-gc@data.timer || true
apt-get purge -y -q --autoremove dedupfs 2>&1 | tail -n 5
everything > /root/after
diff /root/before /root/after
systemctl list-unit-files --no-pager > /root/units
fails grep dedupfs /root/units
sums /data | cmp - /root/sums'

printf '\nall is well '
took "$began"
