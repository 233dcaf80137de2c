-- Users, logins and addresses live inside their tenant; '' is none. SQLite cannot change a primary key, so the tables are made
-- anew. Usage comes after the quotas that it refers to, and the old usage is dropped first: dropping quotas would delete it.

ALTER TABLE rate_limit_rules ADD COLUMN across_tenants INTEGER
    CONSTRAINT rate_limit_rules_across_tenants_boolean CHECK (across_tenants IN (0, 1));

ALTER TABLE admin_audit ADD COLUMN tenant TEXT NOT NULL DEFAULT ''
    CONSTRAINT admin_audit_tenant_length CHECK (length(CAST(tenant AS BLOB)) <= 256);

CREATE TABLE tenant_user_quotas (
    tenant TEXT NOT NULL DEFAULT '',
    user_id TEXT NOT NULL,
    tier TEXT,
    requests_per_hour INTEGER,
    requests_per_day INTEGER,
    burst INTEGER,
    created_by TEXT NOT NULL,
    created_at_micros INTEGER NOT NULL,
    updated_at_micros INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (tenant, user_id),
    CONSTRAINT user_quotas_tenant_length CHECK (length(CAST(tenant AS BLOB)) <= 256),
    CONSTRAINT user_quotas_user_length CHECK (length(CAST(user_id AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT user_quotas_tier_length CHECK (length(CAST(tier AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT user_quotas_hour_range CHECK (requests_per_hour BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_day_range CHECK (requests_per_day BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_burst_range CHECK (burst BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0)
) STRICT;

INSERT INTO tenant_user_quotas (
    user_id, tier, requests_per_hour, requests_per_day, burst, created_by, created_at_micros, updated_at_micros, version
)
SELECT user_id, tier, requests_per_hour, requests_per_day, burst, created_by, created_at_micros, updated_at_micros, version
FROM user_quotas;

CREATE TABLE tenant_user_usage (
    tenant TEXT NOT NULL DEFAULT '',
    user_id TEXT NOT NULL,
    day INTEGER NOT NULL,
    requests_of_day INTEGER NOT NULL DEFAULT 0,
    month INTEGER NOT NULL,
    requests_of_month INTEGER NOT NULL DEFAULT 0,
    last_request_at_micros INTEGER NOT NULL,
    exceeded_count INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, user_id),
    CONSTRAINT user_usage_user FOREIGN KEY (tenant, user_id) REFERENCES tenant_user_quotas (tenant, user_id)
        ON DELETE CASCADE,
    CONSTRAINT user_usage_counts CHECK (requests_of_day >= 0 AND requests_of_month >= 0 AND exceeded_count >= 0)
) STRICT;

INSERT INTO tenant_user_usage (
    user_id, day, requests_of_day, month, requests_of_month, last_request_at_micros, exceeded_count
)
SELECT user_id, day, requests_of_day, month, requests_of_month, last_request_at_micros, exceeded_count FROM user_usage;

DROP TABLE user_usage;
DROP TABLE user_quotas;
ALTER TABLE tenant_user_quotas RENAME TO user_quotas;
ALTER TABLE tenant_user_usage RENAME TO user_usage;

CREATE INDEX user_quotas_by_tier ON user_quotas (tier);
CREATE INDEX user_quotas_by_user ON user_quotas (user_id);

CREATE TABLE tenant_blocks (
    tenant TEXT NOT NULL DEFAULT '',
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    reason TEXT NOT NULL,
    until_micros INTEGER,
    created_by TEXT NOT NULL,
    created_at_micros INTEGER NOT NULL,
    updated_at_micros INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, subject),
    CONSTRAINT blocks_tenant_length CHECK (length(CAST(tenant AS BLOB)) <= 256),
    CONSTRAINT blocks_kind_known CHECK (kind IN ('user', 'api_key', 'tenant', 'login', 'ip')),
    CONSTRAINT blocks_kind_in_tenant CHECK (tenant = '' OR kind IN ('user', 'login', 'ip')),
    CONSTRAINT blocks_subject_length CHECK (length(CAST(subject AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT blocks_reason_length CHECK (length(CAST(reason AS BLOB)) <= 4096),
    CONSTRAINT blocks_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0 AND until_micros >= 0)
) STRICT;

INSERT INTO tenant_blocks (
    kind, subject, reason, until_micros, created_by, created_at_micros, updated_at_micros, version
)
SELECT kind, subject, reason, until_micros, created_by, created_at_micros, updated_at_micros, version FROM blocks;

DROP TABLE blocks;
ALTER TABLE tenant_blocks RENAME TO blocks;

CREATE TABLE tenant_user_endpoint_limits (
    tenant TEXT NOT NULL DEFAULT '',
    user_id TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    requests INTEGER NOT NULL,
    window_micros INTEGER NOT NULL,
    algorithm TEXT NOT NULL,
    burst INTEGER,
    created_by TEXT NOT NULL,
    created_at_micros INTEGER NOT NULL,
    updated_at_micros INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (tenant, user_id, endpoint),
    CONSTRAINT user_endpoint_limits_tenant_length CHECK (length(CAST(tenant AS BLOB)) <= 256),
    CONSTRAINT user_endpoint_limits_user_length CHECK (length(CAST(user_id AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT user_endpoint_limits_endpoint_length CHECK (length(CAST(endpoint AS BLOB)) BETWEEN 1 AND 2048),
    CONSTRAINT user_endpoint_limits_requests_range CHECK (requests BETWEEN 0 AND 4294967295),
    CONSTRAINT user_endpoint_limits_window_range CHECK (window_micros BETWEEN 1000 AND 4294967295000000),
    CONSTRAINT user_endpoint_limits_algorithm_known CHECK (algorithm IN (
        'token_bucket', 'gcra', 'sliding_window_counter', 'sliding_window_log', 'fixed_window', 'leaky_bucket'
    )),
    CONSTRAINT user_endpoint_limits_burst_range
        CHECK (burst IS NULL OR (burst BETWEEN 0 AND 4294967295 AND (burst > 0 OR requests = 0))),
    CONSTRAINT user_endpoint_limits_burst_of_bucket
        CHECK (burst IS NULL OR algorithm IN ('token_bucket', 'gcra', 'leaky_bucket')),
    CONSTRAINT user_endpoint_limits_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0)
) STRICT;

INSERT INTO tenant_user_endpoint_limits (
    user_id, endpoint, requests, window_micros, algorithm, burst, created_by, created_at_micros, updated_at_micros, version
)
SELECT
    user_id, endpoint, requests, window_micros, algorithm, burst, created_by, created_at_micros, updated_at_micros, version
FROM user_endpoint_limits;

DROP TABLE user_endpoint_limits;
ALTER TABLE tenant_user_endpoint_limits RENAME TO user_endpoint_limits;
