#!/usr/bin/env bash
# Archives one WAL file of PostgreSQL. In postgresql.conf:
#
#   archive_mode = on
#   archive_timeout = 60        # at most this many seconds of changes are lost
#   archive_command = '/usr/share/tollgate/backup/postgres-archive-wal.sh %p /backup/postgres/wal/%f'
#
#   BACKUP_REMOTE   also upload it (see upload.sh); set it in the environment of the server
#
# PostgreSQL keeps the file and tries again until this succeeds.
set -euo pipefail
umask 077

from=$1 to=$2
if [ -e "$to" ]; then
    # An archived file is never replaced; the same file again is a retry.
    cmp -s "$from" "$to" || { echo "error: $to exists and differs" >&2; exit 1; }
else
    mkdir -p "$(dirname "$to")"
    cp "$from" "$to.part"
    sync "$to.part"
    mv "$to.part" "$to"
    sync "$(dirname "$to")"
fi
"$(dirname "$0")/upload.sh" "$to"
