-- Records of decisions: the log, windows and rollups.
--
-- The three large tables are partitioned by time. Partitions are created ahead of time and dropped as a whole (`maintain`); later
-- rows go to `p_max`. Times are UTC. `key_hash` is a hash of the texts that identify a row, before they are truncated. DDL commits
-- implicitly, so each statement can be run again after an interrupted migration.

-- What each process has stored so far: rows before `position` are in the tables.
CREATE TABLE IF NOT EXISTS record_sources (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    source BINARY(16) NOT NULL,
    position BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    CONSTRAINT record_sources_source_unique UNIQUE (source),
    CONSTRAINT record_sources_source_length CHECK (octet_length(source) = 16),
    CONSTRAINT record_sources_range CHECK (position >= 0 AND updated_at_micros >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One node at a time maintains the tables.
CREATE TABLE IF NOT EXISTS record_maintenance (
    name VARCHAR(64) NOT NULL PRIMARY KEY,
    holder VARCHAR(256) NOT NULL,
    expires_at_micros BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT INTO record_maintenance (name, holder, expires_at_micros) VALUES ('maintain', '', 0) ON DUPLICATE KEY UPDATE name = name;

-- Hours with new minute rows in `rate_limit_metrics` since their hour and day rows were computed.
CREATE TABLE IF NOT EXISTS record_changed_hours (
    source_id BIGINT NOT NULL,
    hour_micros BIGINT NOT NULL,
    changes BIGINT NOT NULL,
    PRIMARY KEY (source_id, hour_micros)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The decision log. `log_id` is unique: the id of the source × 2^40 + the number of the row.
CREATE TABLE IF NOT EXISTS rate_limit_audit_logs (
    log_id BIGINT NOT NULL,
    timestamp DATETIME(6) NOT NULL,
    tenant VARCHAR(256),
    identifier VARCHAR(300) NOT NULL,
    user_id VARCHAR(256),
    api_key_id VARCHAR(256),
    ip_address VARCHAR(45),
    endpoint VARCHAR(500) NOT NULL,
    http_method VARCHAR(32),
    rule_id VARCHAR(255),
    decision VARCHAR(20) NOT NULL,
    current_count BIGINT,
    limit_value BIGINT,
    remaining BIGINT,
    cost BIGINT NOT NULL,
    response_status INT NOT NULL,
    retry_after_seconds BIGINT,
    region VARCHAR(50) NOT NULL,
    server_id VARCHAR(100) NOT NULL,
    latency_us BIGINT NOT NULL,
    request_id VARCHAR(255),
    degraded BOOLEAN NOT NULL,
    truncated BOOLEAN NOT NULL,
    PRIMARY KEY (timestamp, log_id),
    INDEX rate_limit_audit_logs_by_identifier (identifier, timestamp, log_id),
    INDEX rate_limit_audit_logs_by_decision (decision, timestamp, log_id),
    INDEX rate_limit_audit_logs_by_tenant (tenant, timestamp, log_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
PARTITION BY RANGE COLUMNS (timestamp) (PARTITION p_max VALUES LESS THAN (MAXVALUE));

CREATE OR REPLACE VIEW rate_limit_logs AS
SELECT
    log_id AS id, user_id, endpoint, decision = 'allowed' AS allowed, limit_value, remaining, request_id,
    timestamp AS created_at
FROM rate_limit_audit_logs;

-- Requests of one client on one route in one minute, over all nodes.
CREATE TABLE IF NOT EXISTS rate_limit_records (
    tenant VARCHAR(256),
    identifier VARCHAR(300) NOT NULL,
    window_type VARCHAR(20) NOT NULL,
    route_path VARCHAR(500) NOT NULL,
    request_count BIGINT NOT NULL,
    allowed BIGINT NOT NULL,
    refused BIGINT NOT NULL,
    limit_value BIGINT,
    window_start DATETIME(6) NOT NULL,
    window_end DATETIME(6) NOT NULL,
    created_at DATETIME(6) NOT NULL,
    updated_at DATETIME(6) NOT NULL,
    key_hash BINARY(16) NOT NULL,
    PRIMARY KEY (window_start, key_hash),
    INDEX rate_limit_records_by_identifier (identifier, window_start, key_hash),
    INDEX rate_limit_records_by_route (route_path, window_start, key_hash)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
PARTITION BY RANGE COLUMNS (window_start) (PARTITION p_max VALUES LESS THAN (MAXVALUE));

-- Requests per route and rule. Minute rows are per server; hour and day rows have the `server_id` ''.
CREATE TABLE IF NOT EXISTS rate_limit_metrics (
    timestamp DATETIME(6) NOT NULL,
    granularity VARCHAR(10) NOT NULL,
    tenant VARCHAR(256),
    user_id VARCHAR(256),
    endpoint VARCHAR(500) NOT NULL,
    rule_id VARCHAR(255),
    region VARCHAR(50) NOT NULL,
    server_id VARCHAR(100) NOT NULL,
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
    created_at DATETIME(6) NOT NULL,
    key_hash BINARY(16) NOT NULL,
    PRIMARY KEY (timestamp, key_hash),
    INDEX rate_limit_metrics_by_granularity (granularity, timestamp)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
PARTITION BY RANGE COLUMNS (timestamp) (PARTITION p_max VALUES LESS THAN (MAXVALUE));
