-- Records of decisions: the log, windows and rollups.
--
-- The three large tables are partitioned by time. Partitions are created ahead of time and dropped as a whole (`maintain`); rows
-- without a partition go to the default one. `key_hash` is a hash of the texts that identify a row, before they are truncated.

-- What each process has stored so far: rows before `position` are in the tables.
CREATE TABLE record_sources (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source BYTEA NOT NULL,
    position BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    CONSTRAINT record_sources_source_unique UNIQUE (source),
    CONSTRAINT record_sources_source_length CHECK (octet_length(source) = 16),
    CONSTRAINT record_sources_range CHECK (position >= 0 AND updated_at_micros >= 0)
);

-- One node at a time maintains the tables.
CREATE TABLE record_maintenance (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    holder TEXT COLLATE "C" NOT NULL,
    expires_at_micros BIGINT NOT NULL
);

INSERT INTO record_maintenance (name, holder, expires_at_micros) VALUES ('maintain', '', 0);

-- Hours with new minute rows in `rate_limit_metrics` since their hour and day rows were computed.
CREATE TABLE record_changed_hours (
    source_id BIGINT NOT NULL,
    hour_micros BIGINT NOT NULL,
    changes BIGINT NOT NULL,
    PRIMARY KEY (source_id, hour_micros)
);

-- The decision log. `log_id` is unique: the id of the source × 2^40 + the number of the row.
CREATE TABLE rate_limit_audit_logs (
    log_id BIGINT NOT NULL,
    timestamp TIMESTAMPTZ NOT NULL,
    tenant VARCHAR(256) COLLATE "C",
    identifier VARCHAR(300) COLLATE "C" NOT NULL,
    user_id VARCHAR(256) COLLATE "C",
    api_key_id VARCHAR(256) COLLATE "C",
    ip_address INET,
    endpoint VARCHAR(500) COLLATE "C" NOT NULL,
    http_method VARCHAR(32) COLLATE "C",
    rule_id VARCHAR(255) COLLATE "C",
    decision VARCHAR(20) COLLATE "C" NOT NULL,
    current_count BIGINT,
    limit_value BIGINT,
    remaining BIGINT,
    cost BIGINT NOT NULL,
    response_status INT NOT NULL,
    retry_after_seconds BIGINT,
    region VARCHAR(50) COLLATE "C" NOT NULL,
    server_id VARCHAR(100) COLLATE "C" NOT NULL,
    latency_us BIGINT NOT NULL,
    request_id VARCHAR(255) COLLATE "C",
    degraded BOOLEAN NOT NULL,
    truncated BOOLEAN NOT NULL,
    PRIMARY KEY (timestamp, log_id)
) PARTITION BY RANGE (timestamp);

CREATE INDEX rate_limit_audit_logs_by_identifier ON rate_limit_audit_logs (identifier, timestamp);
CREATE INDEX rate_limit_audit_logs_by_decision ON rate_limit_audit_logs (decision, timestamp);
CREATE INDEX rate_limit_audit_logs_by_tenant ON rate_limit_audit_logs (tenant, timestamp) WHERE tenant IS NOT NULL;
CREATE TABLE rate_limit_audit_logs_default PARTITION OF rate_limit_audit_logs DEFAULT;

CREATE VIEW rate_limit_logs AS
SELECT
    log_id AS id, user_id, endpoint, decision = 'allowed' AS allowed, limit_value, remaining, request_id,
    timestamp AS created_at
FROM rate_limit_audit_logs;

-- Requests of one client on one route in one minute, over all nodes.
CREATE TABLE rate_limit_records (
    tenant VARCHAR(256) COLLATE "C",
    identifier VARCHAR(300) COLLATE "C" NOT NULL,
    window_type VARCHAR(20) COLLATE "C" NOT NULL,
    route_path VARCHAR(500) COLLATE "C" NOT NULL,
    request_count BIGINT NOT NULL,
    allowed BIGINT NOT NULL,
    refused BIGINT NOT NULL,
    limit_value BIGINT,
    window_start TIMESTAMPTZ NOT NULL,
    window_end TIMESTAMPTZ NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    key_hash BYTEA NOT NULL,
    PRIMARY KEY (window_start, key_hash)
) PARTITION BY RANGE (window_start);

CREATE INDEX rate_limit_records_by_identifier ON rate_limit_records (identifier, window_start);
CREATE INDEX rate_limit_records_by_route ON rate_limit_records (route_path, window_start);
CREATE TABLE rate_limit_records_default PARTITION OF rate_limit_records DEFAULT;

-- Requests per route and rule. Minute rows are per server; hour and day rows have the `server_id` ''.
CREATE TABLE rate_limit_metrics (
    timestamp TIMESTAMPTZ NOT NULL,
    granularity VARCHAR(10) COLLATE "C" NOT NULL,
    tenant VARCHAR(256) COLLATE "C",
    user_id VARCHAR(256) COLLATE "C",
    endpoint VARCHAR(500) COLLATE "C" NOT NULL,
    rule_id VARCHAR(255) COLLATE "C",
    region VARCHAR(50) COLLATE "C" NOT NULL,
    server_id VARCHAR(100) COLLATE "C" NOT NULL,
    total_requests BIGINT NOT NULL,
    allowed_requests BIGINT NOT NULL,
    throttled_requests BIGINT NOT NULL,
    blocked_requests BIGINT NOT NULL,
    latency_p50_us BIGINT,
    latency_p95_us BIGINT,
    latency_p99_us BIGINT,
    latency_histogram TEXT NOT NULL,
    cache_hits BIGINT NOT NULL,
    cache_misses BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    key_hash BYTEA NOT NULL,
    PRIMARY KEY (timestamp, key_hash)
) PARTITION BY RANGE (timestamp);

CREATE INDEX rate_limit_metrics_by_granularity ON rate_limit_metrics (granularity, timestamp);
CREATE TABLE rate_limit_metrics_default PARTITION OF rate_limit_metrics DEFAULT;
