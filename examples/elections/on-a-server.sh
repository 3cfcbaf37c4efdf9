#!/bin/sh
# Two processes and a Baton server: one runs the job, and when it is stopped the other does.
#
#   examples/elections/on-a-server.sh [STORE]
#
# STORE, for instance file:///tmp/elections, elects without a server. BATON names the program, if it is not on the PATH.
set -eu
baton=${BATON:-baton}
job=$(dirname "$0")/clean-up.sh
data=$(mktemp -d)
trap 'rm -r "$data"' EXIT

# wait_for TEXT FILE PROCESS: until the text is in the file; the process must be alive meanwhile.
wait_for() {
    until grep -q "$1" "$2"; do
        kill -0 "$3"
        sleep 0.1
    done
}

if [ $# -gt 0 ]; then
    set -- --store "$1"
else
    "$baton" serve --listen 127.0.0.1:0 --data "$data/baton" > "$data/server" & server=$!
    trap 'kill $server && wait $server; rm -r "$data"' EXIT
    wait_for listening "$data/server" "$server"
    BATON_URL=$(sed 's/.* //' "$data/server")
    export BATON_URL
fi
WHO=first "$baton" elect clean-up --fast --worker-id a "$@" -- sh "$job" > "$data/first" & first=$!
wait_for cleaning "$data/first" "$first"
WHO=second "$baton" elect clean-up --fast --worker-id b "$@" -- sh "$job" > "$data/second" & second=$!
kill "$first"
wait "$first"
wait_for cleaning "$data/second" "$second"
kill "$second"
wait "$second"
cat "$data/first" "$data/second"
