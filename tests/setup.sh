#!/usr/bin/env bash
# Installs what the tests start: Redis, a browser, the proxies. With root on Debian or Ubuntu it installs
# what is missing; elsewhere it names it and fails. Does nothing, and needs no network, when all is there.
set -euo pipefail

# command:package
needed=(
    redis-server:redis-server
    redis-cli:redis-tools
    chromium:chromium
    nginx:nginx
    caddy:caddy
    iptables:iptables
    ip:iproute2
    prlimit:util-linux
    openssl:openssl
    promtool:prometheus
    node:nodejs
    esbuild:esbuild
    tsc:node-typescript
)

missing=()
for entry in "${needed[@]}"; do
    # Daemons live in sbin, which is not on every user's path.
    PATH="$PATH:/usr/sbin:/sbin" command -v "${entry%%:*}" >/dev/null || missing+=("${entry##*:}")
done
[ -e /usr/share/nodejs/react-test-renderer ] || missing+=(node-react node-react-test-renderer)
[ "${#missing[@]}" -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    {
        echo "The tests need programs that are not installed. On Debian or Ubuntu:"
        echo "    sudo apt-get install --no-install-recommends ${missing[*]}"
        echo "Elsewhere, the packages with: redis-server, redis-cli, chromium, nginx, caddy, iptables, ip,"
        echo "prlimit, openssl, promtool, node (20 or later), esbuild, tsc, and React in /usr/share/nodejs. Then run this again."
    } >&2
    exit 1
fi

# The packages would start their services on the usual ports; the tests start servers of their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends "${missing[@]}"
