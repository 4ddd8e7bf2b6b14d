#!/bin/bash
# Builds the Debian package and one with its debug symbols (.ddeb), and prints where they are. Wants cargo-deb (`cargo install --locked cargo-deb`) and dpkg-dev.
# Arguments go to cargo-deb: `--output DIR`.
set -euo pipefail
cd "$(dirname "$0")/.."

for pair in cargo-deb:'`cargo install --locked cargo-deb`' dpkg-shlibdeps:'`apt install dpkg-dev`'; do
    if ! command -v "${pair%%:*}" > /dev/null; then
        echo "build-deb.sh: ${pair%%:*} is missing: ${pair#*:} installs it" >&2
        exit 1
    fi
done

cargo build --release --locked --bins
release=${CARGO_TARGET_DIR:-target}/release
made=$release/package
rm -rf "$made"
mkdir -p "$made"/{bin,bash,zsh,fish}
# One file is both programs.
ln -s dedupfs "$made/bin/dedupctl"

# From the definitions that the programs themselves parse by, so that they say the same.
"$release/dedupctl" man --out "$made/man"
gzip -9n "$made"/man/*
for program in dedupfs dedupctl; do
    "$release/dedupctl" completions --program "$program" bash > "$made/bash/$program"
    "$release/dedupctl" completions --program "$program" zsh > "$made/zsh/_$program"
    "$release/dedupctl" completions --program "$program" fish > "$made/fish/$program.fish"
done

cargo deb --no-build --locked --dbgsym "$@"
