#!/bin/sh
# A batch on a Ray cluster; run it on the head node. The other nodes need Python and Ray only.
# Start each node with the same token, which `ray get-auth-token --generate` saves in ~/.ray/auth_token:
#   RAY_AUTH_MODE=token ray start --head --port=6379 --include-dashboard=false --disable-usage-stats
#   RAY_AUTH_MODE=token ray start --address=HEAD:6379
# The provider's key must be in the environment of this script.
set -u
if [ -e out/batch.json ]; then
    exec amplifier batch resume out
fi
exec amplifier batch run plan.yaml rows.jsonl -o out --workdir fresh --workers 64 --engine ray --address auto
