#!/usr/bin/env bash
# Base backup of a PostgreSQL server, to which archived WAL files are applied (postgres-archive-wal.sh).
#
#   BACKUP_FOLDER   where base-TIME/ is written
#   PGHOST, PGPORT, PGUSER (a role with REPLICATION), PGPASSFILE   as for all PostgreSQL clients
#   BACKUP_REMOTE   also upload it (see upload.sh)
set -euo pipefail
umask 077

base=${BACKUP_FOLDER:?}/base-$(date -u +%Y%m%dT%H%M%SZ)
mkdir -p "$BACKUP_FOLDER"
trap 'rm -rf "$base.part"' EXIT
pg_basebackup --pgdata="$base.part" --format=tar --gzip --checkpoint=fast --wal-method=stream --no-password
gzip --test "$base.part"/*.gz
sync "$base.part"/*
mv "$base.part" "$base"
"$(dirname "$0")/upload.sh" "$base"
echo "$base"
