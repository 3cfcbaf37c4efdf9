#!/bin/sh
# The same straight on S3, or what speaks its protocol, with no server of ours:
#
#   AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… AWS_REGION=… [AWS_ENDPOINT=http://127.0.0.1:5000] \
#     examples/elections/on-s3.sh s3://bucket/prefix
#
# Needs a `baton` that was built with `--features cloud`.
exec sh "$(dirname "$0")/on-a-server.sh" "$1"
