# Installs what `peers.py` needs below the directory given: Python packages, and libfuzzy, which is ssdeep, from Debian.
set -eu
work=$(mkdir -p "$1" && cd "$1" && pwd)
[ -x "$work/venv/bin/python" ] || python3 -m venv "$work/venv"
for package in numpy datasketch==2.0.0 rensa==0.5.0 gaoya==0.2.2; do
  "$work/venv/bin/pip" install -q --disable-pip-version-check "$package" || echo "not installed: $package" >&2
done
if [ ! -d "$work/libfuzzy" ] && command -v apt-get >/dev/null; then
  mkdir -p "$work/libfuzzy.new"
  (cd "$work/libfuzzy.new" && apt-get download -qq libfuzzy2 2>/dev/null && dpkg-deb -x libfuzzy2_*.deb .) || true
  mv "$work/libfuzzy.new" "$work/libfuzzy"
fi
