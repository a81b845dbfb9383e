#!/bin/sh
# Starts one node of the cluster. The password comes by standard input, so that no command line shows it.
#
# Prices live for five minutes and are written again every few seconds. What must outlive a restart are the functions that
# `tickbridge migrate` loads: saved with each stop and once an hour. A disk that is full must not stop prices.
set -eu
: "${REDIS_PASSWORD:?set REDIS_PASSWORD}"

exec redis-server - <<CONFIG
dir /data
port 6379
requirepass "$REDIS_PASSWORD"
masterauth "$REDIS_PASSWORD"
save 3600 1
stop-writes-on-bgsave-error no
appendonly no
maxmemory-policy volatile-ttl
cluster-enabled yes
cluster-node-timeout 5000
cluster-require-full-coverage no
cluster-allow-pubsubshard-when-down yes
client-output-buffer-limit pubsub 32mb 8mb 60
CONFIG
