#!/usr/bin/env bash
# Dump of a MariaDB database, consistent and without locking writers. With the binary log on, it is the start of a
# point-in-time recovery (mariadb-binlog.sh).
#
#   BACKUP_FOLDER      where DATABASE-TIME.sql.gz is written
#   MARIADB_DATABASE   the database
#   MARIADB_DEFAULTS   option file with user, password and host in [client], mode 0600
#   BACKUP_REMOTE      also upload it (see upload.sh)
#
# The user needs SELECT, LOCK TABLES, SHOW VIEW and TRIGGER; with the binary log also RELOAD and BINLOG MONITOR.
# On MySQL, replace mariadb by mysql and --master-data by --source-data.
set -euo pipefail
umask 077

database=${MARIADB_DATABASE:?} defaults=--defaults-file=${MARIADB_DEFAULTS:?}
options=(--single-transaction --quick --routines --triggers --hex-blob)
if [ "$(mariadb "$defaults" -NBe 'SELECT @@log_bin')" = 1 ]; then
    options+=(--master-data=2)
fi
mkdir -p "${BACKUP_FOLDER:?}"
file=$BACKUP_FOLDER/$database-$(date -u +%Y%m%dT%H%M%SZ).sql.gz
trap 'rm -f "$file.part"' EXIT
mariadb-dump "$defaults" "${options[@]}" "$database" | gzip >"$file.part"
sync "$file.part"
mv "$file.part" "$file"
"$(dirname "$0")/upload.sh" "$file"
echo "$file"
