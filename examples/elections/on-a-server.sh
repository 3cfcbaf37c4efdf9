#!/bin/sh
# Two processes and a Baton server: one runs the job, and when it is stopped the other does.
#
#   examples/elections/on-a-server.sh [STORE]
#
# STORE, for instance file:///tmp/elections, elects without a server. BATON names the program, if it is not on the PATH.
set -eu
baton=${BATON:-baton}
job=$(dirname "$0")/clean-up.sh
if [ $# -gt 0 ]; then
    set -- --store "$1"
else
    data=$(mktemp -d)
    "$baton" serve --listen 127.0.0.1:0 --data "$data" > "$data/out" & server=$!
    trap 'kill $server; wait $server; rm -r "$data"' EXIT
    until grep -q listening "$data/out"; do sleep 0.1; done
    BATON_URL=$(sed 's/.* //' "$data/out")
    export BATON_URL
fi
WHO=first "$baton" elect clean-up --fast --worker-id a "$@" -- sh "$job" & first=$!
WHO=second "$baton" elect clean-up --fast --worker-id b "$@" -- sh "$job" & second=$!
sleep 4
kill "$first"
wait "$first"
sleep 3
kill "$second"
wait "$second"
