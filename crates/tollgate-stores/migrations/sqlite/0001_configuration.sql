-- The configuration and its audit log.
--
-- Names are opaque and compared byte by byte (BINARY is the default), times are UTC microseconds, no unique key contains
-- a NULL. STRICT, so that integer columns reject text.

CREATE TABLE config_version (
    id INTEGER NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    CONSTRAINT config_version_one_row CHECK (id = 1),
    CONSTRAINT config_version_range CHECK (version >= 0)
) STRICT;

INSERT INTO config_version (id, version) VALUES (1, 0);

-- A rule as written: NULL is an absent key. `conditions` is `when`, `short_form` has the keys that replace `limits`; durations are
-- text (`1s`) or digits (seconds).
CREATE TABLE rate_limit_rules (
    name TEXT NOT NULL PRIMARY KEY,
    priority INTEGER,
    conditions TEXT,
    per TEXT,
    layer TEXT,
    algorithm TEXT,
    limits TEXT,
    short_form TEXT,
    action TEXT,
    max_delay TEXT,
    on_store_failure TEXT,
    leases INTEGER,
    response_status INTEGER,
    response_message TEXT,
    retry_after_floor TEXT,
    enabled INTEGER,
    created_by TEXT NOT NULL,
    created_at_micros INTEGER NOT NULL,
    updated_at_micros INTEGER NOT NULL,
    version INTEGER NOT NULL,
    CONSTRAINT rate_limit_rules_name_length CHECK (length(CAST(name AS BLOB)) BETWEEN 1 AND 128),
    CONSTRAINT rate_limit_rules_layer_length CHECK (length(CAST(layer AS BLOB)) <= 128),
    CONSTRAINT rate_limit_rules_message_length CHECK (length(CAST(response_message AS BLOB)) <= 4096),
    CONSTRAINT rate_limit_rules_priority_range CHECK (priority BETWEEN 0 AND 1000000),
    CONSTRAINT rate_limit_rules_conditions_form CHECK (json_valid(conditions) AND json_type(conditions) = 'object'),
    CONSTRAINT rate_limit_rules_per_form CHECK (json_valid(per) AND json_type(per) = 'array'),
    CONSTRAINT rate_limit_rules_limits_form CHECK (json_valid(limits) AND json_type(limits) = 'array'),
    CONSTRAINT rate_limit_rules_short_form_form CHECK (json_valid(short_form) AND json_type(short_form) = 'object'),
    CONSTRAINT rate_limit_rules_algorithm_known CHECK (algorithm IN (
        'token_bucket', 'gcra', 'sliding_window_counter', 'sliding_window', 'sliding_window_log', 'fixed_window',
        'leaky_bucket'
    )),
    CONSTRAINT rate_limit_rules_action_known
        CHECK (action IN ('reject', 'throttle', 'block', 'allow', 'log_only')),
    CONSTRAINT rate_limit_rules_failure_known CHECK (on_store_failure IN ('local', 'open', 'closed')),
    CONSTRAINT rate_limit_rules_leases_boolean CHECK (leases IN (0, 1)),
    CONSTRAINT rate_limit_rules_status_range CHECK (response_status BETWEEN 400 AND 599),
    CONSTRAINT rate_limit_rules_enabled_boolean CHECK (enabled IN (0, 1)),
    CONSTRAINT rate_limit_rules_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0)
) STRICT;

-- A tier as written, in the same form.
CREATE TABLE tiers (
    name TEXT NOT NULL PRIMARY KEY,
    description TEXT NOT NULL,
    algorithm TEXT,
    limits TEXT,
    short_form TEXT,
    max_delay TEXT,
    created_by TEXT NOT NULL,
    created_at_micros INTEGER NOT NULL,
    updated_at_micros INTEGER NOT NULL,
    version INTEGER NOT NULL,
    CONSTRAINT tiers_name_length CHECK (length(CAST(name AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT tiers_description_length CHECK (length(CAST(description AS BLOB)) <= 4096),
    CONSTRAINT tiers_limits_form CHECK (json_valid(limits) AND json_type(limits) = 'array'),
    CONSTRAINT tiers_short_form_form CHECK (json_valid(short_form) AND json_type(short_form) = 'object'),
    CONSTRAINT tiers_algorithm_known CHECK (algorithm IN (
        'token_bucket', 'gcra', 'sliding_window_counter', 'sliding_window', 'sliding_window_log', 'fixed_window',
        'leaky_bucket'
    )),
    CONSTRAINT tiers_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0)
) STRICT;

-- `tier` is not a foreign key: the tier may be defined in a settings file.
CREATE TABLE user_quotas (
    user_id TEXT NOT NULL PRIMARY KEY,
    tier TEXT,
    requests_per_hour INTEGER,
    requests_per_day INTEGER,
    burst INTEGER,
    created_by TEXT NOT NULL,
    created_at_micros INTEGER NOT NULL,
    updated_at_micros INTEGER NOT NULL,
    version INTEGER NOT NULL,
    CONSTRAINT user_quotas_user_length CHECK (length(CAST(user_id AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT user_quotas_tier_length CHECK (length(CAST(tier AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT user_quotas_hour_range CHECK (requests_per_hour BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_day_range CHECK (requests_per_day BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_burst_range CHECK (burst BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0)
) STRICT;

CREATE INDEX user_quotas_by_tier ON user_quotas (tier);

-- Totals are written often and by all nodes, in tables of their own, so that they do not block changes of the configuration.
-- `day` counts UTC days from 1970-01-01, `month` counts months from January of year 0.
CREATE TABLE user_usage (
    user_id TEXT NOT NULL PRIMARY KEY,
    day INTEGER NOT NULL,
    requests_of_day INTEGER NOT NULL DEFAULT 0,
    month INTEGER NOT NULL,
    requests_of_month INTEGER NOT NULL DEFAULT 0,
    last_request_at_micros INTEGER NOT NULL,
    exceeded_count INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT user_usage_user FOREIGN KEY (user_id) REFERENCES user_quotas (user_id) ON DELETE CASCADE,
    CONSTRAINT user_usage_counts CHECK (requests_of_day >= 0 AND requests_of_month >= 0 AND exceeded_count >= 0)
) STRICT;

-- A key is active unless it is revoked or expired.
CREATE TABLE api_keys (
    id TEXT NOT NULL PRIMARY KEY,
    hash BLOB NOT NULL,
    previous_hash BLOB,
    previous_until_micros INTEGER,
    name TEXT NOT NULL,
    user_id TEXT,
    tenant TEXT,
    tier TEXT,
    scopes TEXT NOT NULL,
    requests_per_second INTEGER,
    requests_per_hour INTEGER,
    requests_per_day INTEGER,
    burst INTEGER,
    expires_at_micros INTEGER,
    revoked_at_micros INTEGER,
    revoked_by TEXT,
    created_by TEXT NOT NULL,
    created_at_micros INTEGER NOT NULL,
    updated_at_micros INTEGER NOT NULL,
    version INTEGER NOT NULL,
    CONSTRAINT api_keys_hash_unique UNIQUE (hash),
    CONSTRAINT api_keys_id_length CHECK (length(CAST(id AS BLOB)) BETWEEN 1 AND 64),
    CONSTRAINT api_keys_hash_length CHECK (length(hash) = 32),
    CONSTRAINT api_keys_previous_length CHECK (length(previous_hash) = 32),
    CONSTRAINT api_keys_previous_ends CHECK ((previous_hash IS NULL) = (previous_until_micros IS NULL)),
    CONSTRAINT api_keys_name_length CHECK (length(CAST(name AS BLOB)) <= 256),
    CONSTRAINT api_keys_user_length CHECK (length(CAST(user_id AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT api_keys_tenant_length CHECK (length(CAST(tenant AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT api_keys_tier_length CHECK (length(CAST(tier AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT api_keys_revoked_by_length CHECK (length(CAST(revoked_by AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT api_keys_scopes_form CHECK (json_valid(scopes) AND json_type(scopes) = 'array'),
    CONSTRAINT api_keys_second_range CHECK (requests_per_second BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_hour_range CHECK (requests_per_hour BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_day_range CHECK (requests_per_day BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_burst_range CHECK (burst BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_revoked_by_someone CHECK ((revoked_at_micros IS NULL) = (revoked_by IS NULL)),
    CONSTRAINT api_keys_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0)
) STRICT;

CREATE INDEX api_keys_by_user ON api_keys (user_id);

CREATE TABLE api_key_usage (
    api_key_id TEXT NOT NULL PRIMARY KEY,
    requests INTEGER NOT NULL DEFAULT 0,
    last_used_at_micros INTEGER NOT NULL,
    CONSTRAINT api_key_usage_key FOREIGN KEY (api_key_id) REFERENCES api_keys (id) ON DELETE CASCADE,
    CONSTRAINT api_key_usage_counts CHECK (requests >= 0)
) STRICT;

-- Batches of totals that were added. A node sends a batch with unknown outcome again; it counts once.
CREATE TABLE usage_batches (
    node TEXT NOT NULL,
    number INTEGER NOT NULL,
    at_micros INTEGER NOT NULL,
    PRIMARY KEY (node, number),
    CONSTRAINT usage_batches_node_length CHECK (length(CAST(node AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT usage_batches_range CHECK (number >= 0 AND at_micros >= 0)
) STRICT;

CREATE INDEX usage_batches_by_time ON usage_batches (at_micros);

-- A fingerprint of the secret that hashes API keys, to detect nodes with another secret.
CREATE TABLE key_check (
    id INTEGER NOT NULL PRIMARY KEY,
    value BLOB NOT NULL,
    CONSTRAINT key_check_one_row CHECK (id = 1),
    CONSTRAINT key_check_value_length CHECK (length(value) = 32)
) STRICT;

-- Blocked clients of all kinds.
CREATE TABLE blocks (
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    reason TEXT NOT NULL,
    until_micros INTEGER,
    created_by TEXT NOT NULL,
    created_at_micros INTEGER NOT NULL,
    updated_at_micros INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (kind, subject),
    CONSTRAINT blocks_kind_known CHECK (kind IN ('user', 'api_key', 'tenant', 'login', 'ip')),
    CONSTRAINT blocks_subject_length CHECK (length(CAST(subject AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT blocks_reason_length CHECK (length(CAST(reason AS BLOB)) <= 4096),
    CONSTRAINT blocks_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0 AND until_micros >= 0)
) STRICT;

CREATE TABLE user_endpoint_limits (
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
    PRIMARY KEY (user_id, endpoint),
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

-- No foreign keys: entries outlive their subjects. `before` and `after` are reserved words of some engines, hence `state_…`; ''
-- stands for no state.
CREATE TABLE admin_audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    version INTEGER NOT NULL,
    at_micros INTEGER NOT NULL,
    made_by TEXT NOT NULL,
    action TEXT NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    state_before TEXT NOT NULL,
    state_after TEXT NOT NULL,
    CONSTRAINT admin_audit_made_by_length CHECK (length(CAST(made_by AS BLOB)) BETWEEN 1 AND 256),
    CONSTRAINT admin_audit_times CHECK (at_micros >= 0 AND version >= 0)
) STRICT;

CREATE INDEX admin_audit_by_time ON admin_audit (at_micros);
CREATE INDEX admin_audit_by_version ON admin_audit (version);
