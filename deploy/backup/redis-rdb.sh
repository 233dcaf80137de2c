#!/usr/bin/env bash
# Backs up Redis: a snapshot (RDB) over the network, from a master or a replica.
#
#   BACKUP_FOLDER   where redis-TIME.rdb is written
#   REDIS_HOST, REDIS_PORT, REDIS_USER
#   REDISCLI_AUTH   the password
#   REDIS_OPTIONS   more options of redis-cli, such as "--tls --cacert /etc/tollgate/redis-ca.pem"
#   BACKUP_REMOTE   also upload it (see upload.sh)
#
# Of a cluster or ring, back up each master.
set -euo pipefail
umask 077

folder=${BACKUP_FOLDER:?}
read -ra options <<<"${REDIS_OPTIONS:-}"
options+=(-h "${REDIS_HOST:-127.0.0.1}" -p "${REDIS_PORT:-6379}" --no-auth-warning)
[ -z "${REDIS_USER:-}" ] || options+=(--user "$REDIS_USER")

mkdir -p "$folder"
file=$folder/redis-$(date -u +%Y%m%dT%H%M%SZ).rdb
trap 'rm -f "$file.part"' EXIT
redis-cli "${options[@]}" --rdb "$file.part" >&2
redis-check-rdb "$file.part" >/dev/null
sync "$file.part"
mv "$file.part" "$file"
"$(dirname "$0")/upload.sh" "$file"
echo "$file"
