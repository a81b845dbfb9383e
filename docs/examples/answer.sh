#!/usr/bin/env bash
# Writes an answer into a stream, word by word, as a producer does. Usage: answer.sh ID WORD…, with the server in REDIS_URL
# (redis://127.0.0.1:6379 by default) and the seconds between two words in PAUSE. Needs redis-cli 7; for a cluster, its -c.
set -euo pipefail

id=$1
shift
# The braces are the key's hash tag, so that whatever else belongs to the answer can lie beside it.
key="stream:{$id}"

redis() { redis-cli -u "${REDIS_URL:-redis://127.0.0.1:6379}" -e "$@" >/dev/null; }

# `~` lets Redis trim when it is cheap. Never keep fewer than 16: gaps couldn't be told from whole streams.
add() { redis XADD "$key" MAXLEN '~' 10000 '*' "$@"; }

for word in "$@"; do
    add event token data "$word "
    sleep "${PAUSE:-0.03}"
done
add end done
# Readers have an hour to come back to it.
redis PEXPIRE "$key" 3600000
