#!/usr/bin/env bash
# Backs up Redis: its append-only files, which lack at most the last second (appendfsync everysec).
# Run it on the host of Redis, as a user who may read its folder. Redis 7 or later.
#
#   BACKUP_FOLDER, REDIS_HOST, REDIS_PORT, REDIS_USER, REDISCLI_AUTH, REDIS_OPTIONS, BACKUP_REMOTE   as for redis-rdb.sh
set -euo pipefail
umask 077

folder=${BACKUP_FOLDER:?}
read -ra options <<<"${REDIS_OPTIONS:-}"
options+=(-h "${REDIS_HOST:-127.0.0.1}" -p "${REDIS_PORT:-6379}" --no-auth-warning)
[ -z "${REDIS_USER:-}" ] || options+=(--user "$REDIS_USER")
redis() { redis-cli "${options[@]}" -e "$@"; }
setting() { redis CONFIG GET "$1" | tail -n 1; }

appendonly=$(setting appendonly) percentage=$(setting auto-aof-rewrite-percentage)
dir=$(setting dir) files=$(setting appenddirname)
if [ "$appendonly" != yes ]; then
    echo "error: appendonly is off; use redis-rdb.sh" >&2
    exit 1
fi
mkdir -p "$folder"
file=$folder/redis-aof-$(date -u +%Y%m%dT%H%M%SZ).tar.gz
# A rewrite replaces the files while they are copied.
trap 'rm -f "$file.part"; redis CONFIG SET auto-aof-rewrite-percentage "$percentage" >/dev/null' EXIT
redis CONFIG SET auto-aof-rewrite-percentage 0 >/dev/null
while ! redis INFO persistence | grep '^aof_rewrite_in_progress:0' >/dev/null; do sleep 1; done
# tar reports files that grow while it reads them with exit code 1; Redis ignores a last command that is incomplete.
tar -czf "$file.part" -C "$dir" "$files" || [ $? -eq 1 ]
sync "$file.part"
mv "$file.part" "$file"
"$(dirname "$0")/upload.sh" "$file"
echo "$file"
