#!/bin/sh
# The job: what only one process may do at a time. It hands its token to whatever it changes, so that an older
# process that wakes up late can change nothing.
trap 'echo "$WHO: told to stop"; exit 0' TERM
echo "$WHO: cleaning up under token $BATON_ELECTION_TOKEN"
while :; do sleep 0.2; done
