#!/usr/bin/env bash
# Prepares a data directory from a base backup and archived WAL files. Run it as the user of PostgreSQL, then start the server.
#
#   postgres-restore.sh BASE WAL_FOLDER DATA_DIRECTORY [TIME]
#   postgres-restore.sh /backup/postgres/base-20270131T020000Z /backup/postgres/wal /var/lib/postgresql/15/main \
#       '2027-01-31 11:59:00+00'
#
# Without TIME, everything that was archived is applied.
set -euo pipefail
umask 077

base=$1 wal=$2 data=$3 time=${4:-}
if [ -n "$(ls -A "$data" 2>/dev/null)" ]; then
    echo "error: $data is not empty; move its contents aside first" >&2
    exit 1
fi
[ -d "$wal" ] || { echo "error: $wal is not a folder" >&2; exit 1; }
gzip --test "$base"/base.tar.gz "$base"/pg_wal.tar.gz
mkdir -p "$data"
chmod 700 "$data"
tar -xzf "$base/base.tar.gz" -C "$data"
tar -xzf "$base/pg_wal.tar.gz" -C "$data/pg_wal"
{
    printf "restore_command = 'cp \"%s/%%f\" \"%%p\"'\n" "$wal"
    printf "recovery_target_action = 'promote'\n"
    [ -z "$time" ] || printf "recovery_target_time = '%s'\n" "$time"
} >>"$data/postgresql.auto.conf"
touch "$data/recovery.signal"
echo "restored $base into $data; start PostgreSQL, and follow the recovery in its log" >&2
