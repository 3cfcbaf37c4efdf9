#!/bin/sh
# A throw-away PostgreSQL: postgres.sh BIN_DIRECTORY PORT. Told what to do, and whether to live on, by its input:
# `stop` ends it at once, as a power cut would; `start` starts it again; the end of the input ends it for good
# and removes what it wrote. So nothing is left behind, however the test that began it came to its end.
bin=$1 port=$2
directory=$(mktemp -d /tmp/baton-postgres.XXXXXX) || exit 1
"$bin/initdb" -D "$directory/data" -U baton -A trust -E UTF8 --locale=C -N >"$directory/initdb.log" 2>&1 || {
    cat "$directory/initdb.log" >&2
    rm -rf "$directory"
    exit 1
}
start() {
    "$bin/postgres" -D "$directory/data" -p "$port" -k "$directory" -c listen_addresses=127.0.0.1 \
        -c max_connections=300 -c shared_buffers=64MB -c autovacuum_naptime=5s \
        $BATON_POSTGRES_OPTIONS </dev/null >>"$directory/log" 2>&1 &
    pid=$!
    until "$bin/pg_isready" -q -h 127.0.0.1 -p "$port" -U baton -d postgres; do
        kill -0 $pid 2>/dev/null || { cat "$directory/log" >&2; rm -rf "$directory"; exit 1; }
        sleep 0.05
    done
    echo "ready $directory"
}
stop() {
    kill -QUIT $pid 2>/dev/null
    wait $pid
}
start
while read -r word; do
    case $word in
    stop) stop && echo stopped || echo stopped ;;
    start) start ;;
    esac
done
stop
rm -rf "$directory"
