#!/usr/bin/env bash
# The gateway from a shell. Usage: curl.sh [GATEWAY] [IDS] [SECONDS], and TOKEN in the environment unless guests
# may watch. Needs curl 7.55 or later.
set -euo pipefail

gateway=${1:-http://127.0.0.1:8080}
ids=${2:-1,2}
seconds=${3:-5}

# The token goes to curl through a file descriptor: arguments are visible to everybody on the machine.
curl_as_user() {
    if [ -n "${TOKEN:-}" ]; then
        curl --header @<(printf 'Authorization: Bearer %s\n' "$TOKEN") "$@"
    else
        curl "$@"
    fi
}

echo "# Current prices as one JSON object"
curl_as_user --silent --show-error --fail "$gateway/market/prices?ids=$ids"
echo

echo "# The live stream for $seconds seconds; -N turns curl's buffer off"
topics="quote:${ids//,/,quote:}"
curl_as_user --silent --fail -N --max-time "$seconds" "$gateway/market/sse?topics=$topics" || [ $? -eq 28 ]

if [ -n "${TOKEN:-}" ]; then
    echo "# A one-time ticket, for clients that can't set a header: no token stands in a URL"
    curl_as_user --silent --show-error --fail --request POST "$gateway/market/ticket"
    echo
fi
