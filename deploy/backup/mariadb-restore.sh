#!/usr/bin/env bash
# Restores a dump of MariaDB, and the changes of copied binary logs up to a time, into an empty database.
#
#   mariadb-restore.sh DUMP [BINLOG_FOLDER [TIME]]
#   mariadb-restore.sh /backup/mariadb/tollgate-20270131T020000Z.sql.gz /backup/mariadb/binlog '2027-01-31 11:59:00'
#
#   MARIADB_DATABASE   the database, with the name it had
#   MARIADB_DEFAULTS   option file with user, password and host in [client], mode 0600
#
# TIME is UTC. Without it, all copied logs are applied. With binlog_format MIXED or STATEMENT, statements of a session with
# another default database are not; nodes always have the right one.
set -euo pipefail

dump=$1 logs=${2:-} time=${3:-}
database=${MARIADB_DATABASE:?} defaults=--defaults-file=${MARIADB_DEFAULTS:?}
run() { mariadb "$defaults" "$@"; }

gzip --test "$dump"
run -e "CREATE DATABASE IF NOT EXISTS \`$database\`"
tables=$(run -NBe "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '$database'")
if [ "$tables" != 0 ]; then
    echo "error: the database $database is not empty; drop it first" >&2
    exit 1
fi
gzip -dc "$dump" | run "$database"
[ -n "$logs" ] || exit 0

# The dump has a comment with the position that it was made at.
position=$(gzip -dc "$dump" | sed -n "s/^-- CHANGE MASTER TO MASTER_LOG_FILE='\(.*\)', MASTER_LOG_POS=\([0-9]*\);.*/\1 \2/p")
read -r first start <<<"$position"
if [ ! -e "$logs/${first:?the dump has no position: it was made without the binary log}" ]; then
    echo "error: $logs/$first is missing: the changes after the dump cannot be applied" >&2
    exit 1
fi
files=()
for file in "$logs"/"${first%.*}".[0-9]*; do
    [[ "$file" < "$logs/$first" ]] || files+=("$file")
done
TZ=UTC mariadb-binlog --no-defaults --database="$database" --start-position="$start" \
    ${time:+--stop-datetime="$time"} "${files[@]}" | run
