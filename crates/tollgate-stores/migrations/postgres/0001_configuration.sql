-- The configuration and its audit log.
--
-- Names are opaque and compared byte by byte (COLLATE "C"), times are UTC microseconds, no unique key contains a NULL.

CREATE TABLE config_version (
    id BIGINT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    CONSTRAINT config_version_one_row CHECK (id = 1),
    CONSTRAINT config_version_range CHECK (version >= 0)
);

INSERT INTO config_version (id, version) VALUES (1, 0);

-- A rule as written: NULL is an absent key. `conditions` is `when`, `short_form` has the keys that replace `limits`; durations are
-- text (`1s`) or digits (seconds).
CREATE TABLE rate_limit_rules (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    priority BIGINT,
    conditions TEXT,
    per TEXT,
    layer TEXT COLLATE "C",
    algorithm TEXT COLLATE "C",
    limits TEXT,
    short_form TEXT,
    action TEXT COLLATE "C",
    max_delay TEXT COLLATE "C",
    on_store_failure TEXT COLLATE "C",
    leases BIGINT,
    response_status BIGINT,
    response_message TEXT COLLATE "C",
    retry_after_floor TEXT COLLATE "C",
    enabled BIGINT,
    created_by TEXT COLLATE "C" NOT NULL,
    created_at_micros BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT rate_limit_rules_name_length CHECK (octet_length(name) BETWEEN 1 AND 128),
    CONSTRAINT rate_limit_rules_layer_length CHECK (octet_length(layer) <= 128),
    CONSTRAINT rate_limit_rules_message_length CHECK (octet_length(response_message) <= 4096),
    CONSTRAINT rate_limit_rules_priority_range CHECK (priority BETWEEN 0 AND 1000000),
    CONSTRAINT rate_limit_rules_conditions_form CHECK (json_typeof(conditions::json) = 'object'),
    CONSTRAINT rate_limit_rules_per_form CHECK (json_typeof(per::json) = 'array'),
    CONSTRAINT rate_limit_rules_limits_form CHECK (json_typeof(limits::json) = 'array'),
    CONSTRAINT rate_limit_rules_short_form_form CHECK (json_typeof(short_form::json) = 'object'),
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
);

-- A tier as written, in the same form.
CREATE TABLE tiers (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    description TEXT COLLATE "C" NOT NULL,
    algorithm TEXT COLLATE "C",
    limits TEXT,
    short_form TEXT,
    max_delay TEXT COLLATE "C",
    created_by TEXT COLLATE "C" NOT NULL,
    created_at_micros BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT tiers_name_length CHECK (octet_length(name) BETWEEN 1 AND 256),
    CONSTRAINT tiers_description_length CHECK (octet_length(description) <= 4096),
    CONSTRAINT tiers_limits_form CHECK (json_typeof(limits::json) = 'array'),
    CONSTRAINT tiers_short_form_form CHECK (json_typeof(short_form::json) = 'object'),
    CONSTRAINT tiers_algorithm_known CHECK (algorithm IN (
        'token_bucket', 'gcra', 'sliding_window_counter', 'sliding_window', 'sliding_window_log', 'fixed_window',
        'leaky_bucket'
    )),
    CONSTRAINT tiers_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0)
);

-- `tier` is not a foreign key: the tier may be defined in a settings file.
CREATE TABLE user_quotas (
    user_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    tier TEXT COLLATE "C",
    requests_per_hour BIGINT,
    requests_per_day BIGINT,
    burst BIGINT,
    created_by TEXT COLLATE "C" NOT NULL,
    created_at_micros BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT user_quotas_user_length CHECK (octet_length(user_id) BETWEEN 1 AND 256),
    CONSTRAINT user_quotas_tier_length CHECK (octet_length(tier) BETWEEN 1 AND 256),
    CONSTRAINT user_quotas_hour_range CHECK (requests_per_hour BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_day_range CHECK (requests_per_day BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_burst_range CHECK (burst BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0)
);

CREATE INDEX user_quotas_by_tier ON user_quotas (tier);

-- Totals are written often and by all nodes, in tables of their own, so that they do not block changes of the configuration.
-- `day` counts UTC days from 1970-01-01, `month` counts months from January of year 0.
CREATE TABLE user_usage (
    user_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    day BIGINT NOT NULL,
    requests_of_day BIGINT NOT NULL DEFAULT 0,
    month BIGINT NOT NULL,
    requests_of_month BIGINT NOT NULL DEFAULT 0,
    last_request_at_micros BIGINT NOT NULL,
    exceeded_count BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT user_usage_user FOREIGN KEY (user_id) REFERENCES user_quotas (user_id) ON DELETE CASCADE,
    CONSTRAINT user_usage_counts CHECK (requests_of_day >= 0 AND requests_of_month >= 0 AND exceeded_count >= 0)
);

-- A key is active unless it is revoked or expired.
CREATE TABLE api_keys (
    id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    hash BYTEA NOT NULL,
    previous_hash BYTEA,
    previous_until_micros BIGINT,
    name TEXT COLLATE "C" NOT NULL,
    user_id TEXT COLLATE "C",
    tenant TEXT COLLATE "C",
    tier TEXT COLLATE "C",
    scopes TEXT NOT NULL,
    requests_per_second BIGINT,
    requests_per_hour BIGINT,
    requests_per_day BIGINT,
    burst BIGINT,
    expires_at_micros BIGINT,
    revoked_at_micros BIGINT,
    revoked_by TEXT COLLATE "C",
    created_by TEXT COLLATE "C" NOT NULL,
    created_at_micros BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT api_keys_hash_unique UNIQUE (hash),
    CONSTRAINT api_keys_id_length CHECK (octet_length(id) BETWEEN 1 AND 64),
    CONSTRAINT api_keys_hash_length CHECK (octet_length(hash) = 32),
    CONSTRAINT api_keys_previous_length CHECK (octet_length(previous_hash) = 32),
    CONSTRAINT api_keys_previous_ends CHECK ((previous_hash IS NULL) = (previous_until_micros IS NULL)),
    CONSTRAINT api_keys_name_length CHECK (octet_length(name) <= 256),
    CONSTRAINT api_keys_user_length CHECK (octet_length(user_id) BETWEEN 1 AND 256),
    CONSTRAINT api_keys_tenant_length CHECK (octet_length(tenant) BETWEEN 1 AND 256),
    CONSTRAINT api_keys_tier_length CHECK (octet_length(tier) BETWEEN 1 AND 256),
    CONSTRAINT api_keys_revoked_by_length CHECK (octet_length(revoked_by) BETWEEN 1 AND 256),
    CONSTRAINT api_keys_scopes_form CHECK (json_typeof(scopes::json) = 'array'),
    CONSTRAINT api_keys_second_range CHECK (requests_per_second BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_hour_range CHECK (requests_per_hour BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_day_range CHECK (requests_per_day BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_burst_range CHECK (burst BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_revoked_by_someone CHECK ((revoked_at_micros IS NULL) = (revoked_by IS NULL)),
    CONSTRAINT api_keys_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0)
);

CREATE INDEX api_keys_by_user ON api_keys (user_id);

CREATE TABLE api_key_usage (
    api_key_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    requests BIGINT NOT NULL DEFAULT 0,
    last_used_at_micros BIGINT NOT NULL,
    CONSTRAINT api_key_usage_key FOREIGN KEY (api_key_id) REFERENCES api_keys (id) ON DELETE CASCADE,
    CONSTRAINT api_key_usage_counts CHECK (requests >= 0)
);

-- Batches of totals that were added. A node sends a batch with unknown outcome again; it counts once.
CREATE TABLE usage_batches (
    node TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    at_micros BIGINT NOT NULL,
    PRIMARY KEY (node, number),
    CONSTRAINT usage_batches_node_length CHECK (octet_length(node) BETWEEN 1 AND 256),
    CONSTRAINT usage_batches_range CHECK (number >= 0 AND at_micros >= 0)
);

CREATE INDEX usage_batches_by_time ON usage_batches (at_micros);

-- A fingerprint of the secret that hashes API keys, to detect nodes with another secret.
CREATE TABLE key_check (
    id BIGINT NOT NULL PRIMARY KEY,
    value BYTEA NOT NULL,
    CONSTRAINT key_check_one_row CHECK (id = 1),
    CONSTRAINT key_check_value_length CHECK (octet_length(value) = 32)
);

-- Blocked clients of all kinds.
CREATE TABLE blocks (
    kind TEXT COLLATE "C" NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    until_micros BIGINT,
    created_by TEXT COLLATE "C" NOT NULL,
    created_at_micros BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (kind, subject),
    CONSTRAINT blocks_kind_known CHECK (kind IN ('user', 'api_key', 'tenant', 'login', 'ip')),
    CONSTRAINT blocks_subject_length CHECK (octet_length(subject) BETWEEN 1 AND 256),
    CONSTRAINT blocks_reason_length CHECK (octet_length(reason) <= 4096),
    CONSTRAINT blocks_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0 AND until_micros >= 0)
);

CREATE TABLE user_endpoint_limits (
    user_id TEXT COLLATE "C" NOT NULL,
    endpoint TEXT COLLATE "C" NOT NULL,
    requests BIGINT NOT NULL,
    window_micros BIGINT NOT NULL,
    algorithm TEXT COLLATE "C" NOT NULL,
    burst BIGINT,
    created_by TEXT COLLATE "C" NOT NULL,
    created_at_micros BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (user_id, endpoint),
    CONSTRAINT user_endpoint_limits_user_length CHECK (octet_length(user_id) BETWEEN 1 AND 256),
    CONSTRAINT user_endpoint_limits_endpoint_length CHECK (octet_length(endpoint) BETWEEN 1 AND 2048),
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
);

-- No foreign keys: entries outlive their subjects. `before` and `after` are reserved words of some engines, hence `state_…`; ''
-- stands for no state.
CREATE TABLE admin_audit (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version BIGINT NOT NULL,
    at_micros BIGINT NOT NULL,
    made_by TEXT COLLATE "C" NOT NULL,
    action TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    subject TEXT NOT NULL,
    state_before TEXT NOT NULL,
    state_after TEXT NOT NULL,
    CONSTRAINT admin_audit_made_by_length CHECK (octet_length(made_by) BETWEEN 1 AND 256),
    CONSTRAINT admin_audit_times CHECK (at_micros >= 0 AND version >= 0)
);

CREATE INDEX admin_audit_by_time ON admin_audit (at_micros);
CREATE INDEX admin_audit_by_version ON admin_audit (version);
