#!/usr/bin/env bash
# Copies the binary logs of a MariaDB server that are not copied yet. Run it every minute: changes since then are lost with
# the server. The server needs log_bin, and binlog_expire_logs_seconds of several days.
#
#   BACKUP_FOLDER      where the logs are written
#   MARIADB_DEFAULTS   option file with user, password and host in [client], mode 0600
#   BACKUP_REMOTE      also upload them (see upload.sh)
#
# The user needs RELOAD, BINLOG MONITOR and REPLICATION SLAVE.
set -euo pipefail
umask 077

folder=${BACKUP_FOLDER:?} defaults=--defaults-file=${MARIADB_DEFAULTS:?}
mkdir -p "$folder"
# Closes the log in use, so that it can be copied as a whole.
mariadb "$defaults" -e 'FLUSH BINARY LOGS'
mapfile -t logs < <(mariadb "$defaults" -NBe 'SHOW BINARY LOGS' | cut -f 1)
unset 'logs[-1]'
for log in "${logs[@]}"; do
    [ -e "$folder/$log" ] && continue
    mariadb-binlog "$defaults" --read-from-remote-server --raw --result-file="$folder/part." "$log"
    sync "$folder/part.$log"
    mv "$folder/part.$log" "$folder/$log"
    "$(dirname "$0")/upload.sh" "$folder/$log"
done
