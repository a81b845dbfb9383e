#!/bin/sh
# Makes a cluster of the nodes named by the arguments, unless it is made; waits until it is whole.
# The password is in REDISCLI_AUTH.
set -eu

addresses=""
for node in "$@"; do
    address=$(getent hosts "$node" | awk '{ print $1; exit }')
    addresses="$addresses $address:6379"
done

state() {
    redis-cli -h "$1" cluster info | tr -d '\r' | sed -n "s/^$2://p"
}

if [ "$(state "$1" cluster_slots_assigned)" != 16384 ]; then
    # shellcheck disable=SC2086 # a list of addresses
    redis-cli --cluster create $addresses --cluster-yes
fi

for _ in $(seq 60); do
    whole=0
    for node in "$@"; do
        [ "$(state "$node" cluster_state)" = ok ] && whole=$((whole + 1))
    done
    if [ "$whole" -eq "$#" ]; then
        echo "the cluster is whole"
        exit 0
    fi
    sleep 1
done
echo "the cluster is not whole after a minute: $(redis-cli -h "$1" cluster info)" >&2
exit 1
