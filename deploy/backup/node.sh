#!/usr/bin/env bash
# Backs up the settings and the data directory of a node, also while it runs. Arguments are added to `tollgate backup`.
#
#   BACKUP_PLACE                 folder or s3://BUCKET/PREFIX; credentials as for the AWS tools (AWS_ACCESS_KEY_ID, …)
#   TOLLGATE_CONFIG              settings file of the node
#   TOLLGATE_SERVER__DATA_DIR    its data directory, unless the settings file names it
set -euo pipefail

exec tollgate backup --to "${BACKUP_PLACE:?}" "$@"
