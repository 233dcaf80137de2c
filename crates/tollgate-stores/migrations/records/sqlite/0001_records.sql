-- Records of decisions: the log, windows and rollups.
--
-- Times are UTC text (`2026-11-17 09:30:00.000000`), which the date functions of SQLite understand and which sorts by time.
-- `key_hash` is a hash of the texts that identify a row, before they are truncated.

-- What each process has stored so far: rows before `position` are in the tables.
CREATE TABLE record_sources (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    source BLOB NOT NULL,
    position INTEGER NOT NULL,
    updated_at_micros INTEGER NOT NULL,
    CONSTRAINT record_sources_source_unique UNIQUE (source),
    CONSTRAINT record_sources_source_length CHECK (length(source) = 16),
    CONSTRAINT record_sources_range CHECK (position >= 0 AND updated_at_micros >= 0)
) STRICT;

-- One node at a time maintains the tables.
CREATE TABLE record_maintenance (
    name TEXT NOT NULL PRIMARY KEY,
    holder TEXT NOT NULL,
    expires_at_micros INTEGER NOT NULL
) STRICT;

INSERT INTO record_maintenance (name, holder, expires_at_micros) VALUES ('maintain', '', 0);

-- Hours with new minute rows in `rate_limit_metrics` since their hour and day rows were computed.
CREATE TABLE record_changed_hours (
    source_id INTEGER NOT NULL,
    hour_micros INTEGER NOT NULL,
    changes INTEGER NOT NULL,
    PRIMARY KEY (source_id, hour_micros)
) STRICT;

-- The decision log. `log_id` is unique: the id of the source × 2^40 + the number of the row.
CREATE TABLE rate_limit_audit_logs (
    log_id INTEGER NOT NULL,
    timestamp TEXT NOT NULL,
    tenant TEXT,
    identifier TEXT NOT NULL,
    user_id TEXT,
    api_key_id TEXT,
    ip_address TEXT,
    endpoint TEXT NOT NULL,
    http_method TEXT,
    rule_id TEXT,
    decision TEXT NOT NULL,
    current_count INTEGER,
    limit_value INTEGER,
    remaining INTEGER,
    cost INTEGER NOT NULL,
    response_status INTEGER NOT NULL,
    retry_after_seconds INTEGER,
    region TEXT NOT NULL,
    server_id TEXT NOT NULL,
    latency_us INTEGER NOT NULL,
    request_id TEXT,
    degraded INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    PRIMARY KEY (timestamp, log_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX rate_limit_audit_logs_by_identifier ON rate_limit_audit_logs (identifier, timestamp);
CREATE INDEX rate_limit_audit_logs_by_decision ON rate_limit_audit_logs (decision, timestamp);
CREATE INDEX rate_limit_audit_logs_by_tenant ON rate_limit_audit_logs (tenant, timestamp) WHERE tenant IS NOT NULL;

CREATE VIEW rate_limit_logs AS
SELECT
    log_id AS id, user_id, endpoint, decision = 'allowed' AS allowed, limit_value, remaining, request_id,
    timestamp AS created_at
FROM rate_limit_audit_logs;

-- Requests of one client on one route in one minute, over all nodes.
CREATE TABLE rate_limit_records (
    tenant TEXT,
    identifier TEXT NOT NULL,
    window_type TEXT NOT NULL,
    route_path TEXT NOT NULL,
    request_count INTEGER NOT NULL,
    allowed INTEGER NOT NULL,
    refused INTEGER NOT NULL,
    limit_value INTEGER,
    window_start TEXT NOT NULL,
    window_end TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    key_hash BLOB NOT NULL,
    PRIMARY KEY (window_start, key_hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX rate_limit_records_by_identifier ON rate_limit_records (identifier, window_start);
CREATE INDEX rate_limit_records_by_route ON rate_limit_records (route_path, window_start);

-- Requests per route and rule. Minute rows are per server; hour and day rows have the `server_id` ''.
CREATE TABLE rate_limit_metrics (
    timestamp TEXT NOT NULL,
    granularity TEXT NOT NULL,
    tenant TEXT,
    user_id TEXT,
    endpoint TEXT NOT NULL,
    rule_id TEXT,
    region TEXT NOT NULL,
    server_id TEXT NOT NULL,
    total_requests INTEGER NOT NULL,
    allowed_requests INTEGER NOT NULL,
    throttled_requests INTEGER NOT NULL,
    blocked_requests INTEGER NOT NULL,
    latency_p50_us INTEGER,
    latency_p95_us INTEGER,
    latency_p99_us INTEGER,
    latency_histogram TEXT NOT NULL,
    cache_hits INTEGER NOT NULL,
    cache_misses INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    key_hash BLOB NOT NULL,
    PRIMARY KEY (timestamp, key_hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX rate_limit_metrics_by_granularity ON rate_limit_metrics (granularity, timestamp);
