#!/bin/sh
# Installs what the benchmarks measure against: Debian packages, nothing else.
set -eu

packages="redis-server nginx libnginx-mod-nchan nats-server caddy"
missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "missing:$missing; install them with: sudo apt-get install$missing" >&2
    exit 1
fi
# Only the programs are wanted: services that start by themselves would take cores and ports.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of packages
apt-get install -y -qq --no-install-recommends $missing
