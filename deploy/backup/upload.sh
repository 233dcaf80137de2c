#!/usr/bin/env bash
# Copies a file or folder to an object store, if BACKUP_REMOTE is set. Called by the other scripts.
#
#   BACKUP_REMOTE   destination of rclone, such as s3:company-backups/redis
#
# rclone reads its remotes and credentials from its configuration file, or from variables:
#   RCLONE_CONFIG_S3_TYPE=s3 RCLONE_CONFIG_S3_PROVIDER=AWS RCLONE_CONFIG_S3_ENV_AUTH=true
set -euo pipefail

[ -n "${BACKUP_REMOTE:-}" ] || exit 0
name=$(basename "$1")
if [ -d "$1" ]; then
    rclone copy --retries 3 "$1" "$BACKUP_REMOTE/$name"
else
    rclone copyto --retries 3 "$1" "$BACKUP_REMOTE/$name"
fi
