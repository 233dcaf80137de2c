-- The configuration and its audit log.
--
-- Names are opaque and compared byte by byte: VARBINARY, because even utf8mb4_bin treats `a` and `a ` as equal. Times are UTC
-- microseconds, no unique key contains a NULL. DDL commits implicitly, so each statement can be run again after an interrupted
-- migration: IF NOT EXISTS, and indexes within their table.

CREATE TABLE IF NOT EXISTS config_version (
    id BIGINT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    CONSTRAINT config_version_one_row CHECK (id = 1),
    CONSTRAINT config_version_range CHECK (version >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT INTO config_version (id, version) VALUES (1, 0) ON DUPLICATE KEY UPDATE version = version;

-- A rule as written: NULL is an absent key. `conditions` is `when`, `short_form` has the keys that replace `limits`; durations are
-- text (`1s`) or digits (seconds).
CREATE TABLE IF NOT EXISTS rate_limit_rules (
    name VARBINARY(128) NOT NULL PRIMARY KEY,
    priority BIGINT,
    conditions MEDIUMTEXT,
    per MEDIUMTEXT,
    layer VARBINARY(128),
    algorithm VARBINARY(64),
    limits MEDIUMTEXT,
    short_form MEDIUMTEXT,
    action VARBINARY(64),
    max_delay VARBINARY(64),
    on_store_failure VARBINARY(64),
    leases BIGINT,
    response_status BIGINT,
    response_message VARBINARY(4096),
    retry_after_floor VARBINARY(64),
    enabled BIGINT,
    created_by VARBINARY(256) NOT NULL,
    created_at_micros BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT rate_limit_rules_name_length CHECK (octet_length(name) BETWEEN 1 AND 128),
    CONSTRAINT rate_limit_rules_layer_length CHECK (octet_length(layer) <= 128),
    CONSTRAINT rate_limit_rules_message_length CHECK (octet_length(response_message) <= 4096),
    CONSTRAINT rate_limit_rules_priority_range CHECK (priority BETWEEN 0 AND 1000000),
    CONSTRAINT rate_limit_rules_conditions_form CHECK (json_valid(conditions) AND json_type(conditions) = 'OBJECT'),
    CONSTRAINT rate_limit_rules_per_form CHECK (json_valid(per) AND json_type(per) = 'ARRAY'),
    CONSTRAINT rate_limit_rules_limits_form CHECK (json_valid(limits) AND json_type(limits) = 'ARRAY'),
    CONSTRAINT rate_limit_rules_short_form_form CHECK (json_valid(short_form) AND json_type(short_form) = 'OBJECT'),
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
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A tier as written, in the same form.
CREATE TABLE IF NOT EXISTS tiers (
    name VARBINARY(256) NOT NULL PRIMARY KEY,
    description VARBINARY(4096) NOT NULL,
    algorithm VARBINARY(64),
    limits MEDIUMTEXT,
    short_form MEDIUMTEXT,
    max_delay VARBINARY(64),
    created_by VARBINARY(256) NOT NULL,
    created_at_micros BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT tiers_name_length CHECK (octet_length(name) BETWEEN 1 AND 256),
    CONSTRAINT tiers_description_length CHECK (octet_length(description) <= 4096),
    CONSTRAINT tiers_limits_form CHECK (json_valid(limits) AND json_type(limits) = 'ARRAY'),
    CONSTRAINT tiers_short_form_form CHECK (json_valid(short_form) AND json_type(short_form) = 'OBJECT'),
    CONSTRAINT tiers_algorithm_known CHECK (algorithm IN (
        'token_bucket', 'gcra', 'sliding_window_counter', 'sliding_window', 'sliding_window_log', 'fixed_window',
        'leaky_bucket'
    )),
    CONSTRAINT tiers_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- `tier` is not a foreign key: the tier may be defined in a settings file.
CREATE TABLE IF NOT EXISTS user_quotas (
    user_id VARBINARY(256) NOT NULL PRIMARY KEY,
    tier VARBINARY(256),
    requests_per_hour BIGINT,
    requests_per_day BIGINT,
    burst BIGINT,
    created_by VARBINARY(256) NOT NULL,
    created_at_micros BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT user_quotas_user_length CHECK (octet_length(user_id) BETWEEN 1 AND 256),
    CONSTRAINT user_quotas_tier_length CHECK (octet_length(tier) BETWEEN 1 AND 256),
    CONSTRAINT user_quotas_hour_range CHECK (requests_per_hour BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_day_range CHECK (requests_per_day BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_burst_range CHECK (burst BETWEEN 0 AND 4294967295),
    CONSTRAINT user_quotas_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0),
    INDEX user_quotas_by_tier (tier)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Totals are written often and by all nodes, in tables of their own, so that they do not block changes of the configuration.
-- `day` counts UTC days from 1970-01-01, `month` counts months from January of year 0.
CREATE TABLE IF NOT EXISTS user_usage (
    user_id VARBINARY(256) NOT NULL PRIMARY KEY,
    day BIGINT NOT NULL,
    requests_of_day BIGINT NOT NULL DEFAULT 0,
    month BIGINT NOT NULL,
    requests_of_month BIGINT NOT NULL DEFAULT 0,
    last_request_at_micros BIGINT NOT NULL,
    exceeded_count BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT user_usage_user FOREIGN KEY (user_id) REFERENCES user_quotas (user_id) ON DELETE CASCADE,
    CONSTRAINT user_usage_counts CHECK (requests_of_day >= 0 AND requests_of_month >= 0 AND exceeded_count >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A key is active unless it is revoked or expired.
CREATE TABLE IF NOT EXISTS api_keys (
    id VARBINARY(64) NOT NULL PRIMARY KEY,
    hash BINARY(32) NOT NULL,
    previous_hash BINARY(32),
    previous_until_micros BIGINT,
    name VARBINARY(256) NOT NULL,
    user_id VARBINARY(256),
    tenant VARBINARY(256),
    tier VARBINARY(256),
    scopes MEDIUMTEXT NOT NULL,
    requests_per_second BIGINT,
    requests_per_hour BIGINT,
    requests_per_day BIGINT,
    burst BIGINT,
    expires_at_micros BIGINT,
    revoked_at_micros BIGINT,
    revoked_by VARBINARY(256),
    created_by VARBINARY(256) NOT NULL,
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
    CONSTRAINT api_keys_scopes_form CHECK (json_valid(scopes) AND json_type(scopes) = 'ARRAY'),
    CONSTRAINT api_keys_second_range CHECK (requests_per_second BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_hour_range CHECK (requests_per_hour BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_day_range CHECK (requests_per_day BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_burst_range CHECK (burst BETWEEN 0 AND 4294967295),
    CONSTRAINT api_keys_revoked_by_someone CHECK ((revoked_at_micros IS NULL) = (revoked_by IS NULL)),
    CONSTRAINT api_keys_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0),
    INDEX api_keys_by_user (user_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS api_key_usage (
    api_key_id VARBINARY(64) NOT NULL PRIMARY KEY,
    requests BIGINT NOT NULL DEFAULT 0,
    last_used_at_micros BIGINT NOT NULL,
    CONSTRAINT api_key_usage_key FOREIGN KEY (api_key_id) REFERENCES api_keys (id) ON DELETE CASCADE,
    CONSTRAINT api_key_usage_counts CHECK (requests >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Batches of totals that were added. A node sends a batch with unknown outcome again; it counts once.
CREATE TABLE IF NOT EXISTS usage_batches (
    node VARBINARY(256) NOT NULL,
    number BIGINT NOT NULL,
    at_micros BIGINT NOT NULL,
    PRIMARY KEY (node, number),
    CONSTRAINT usage_batches_node_length CHECK (octet_length(node) BETWEEN 1 AND 256),
    CONSTRAINT usage_batches_range CHECK (number >= 0 AND at_micros >= 0),
    INDEX usage_batches_by_time (at_micros)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A fingerprint of the secret that hashes API keys, to detect nodes with another secret.
CREATE TABLE IF NOT EXISTS key_check (
    id BIGINT NOT NULL PRIMARY KEY,
    value BINARY(32) NOT NULL,
    CONSTRAINT key_check_one_row CHECK (id = 1),
    CONSTRAINT key_check_value_length CHECK (octet_length(value) = 32)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Blocked clients of all kinds.
CREATE TABLE IF NOT EXISTS blocks (
    kind VARBINARY(64) NOT NULL,
    subject VARBINARY(256) NOT NULL,
    reason VARBINARY(4096) NOT NULL,
    until_micros BIGINT,
    created_by VARBINARY(256) NOT NULL,
    created_at_micros BIGINT NOT NULL,
    updated_at_micros BIGINT NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (kind, subject),
    CONSTRAINT blocks_kind_known CHECK (kind IN ('user', 'api_key', 'tenant', 'login', 'ip')),
    CONSTRAINT blocks_subject_length CHECK (octet_length(subject) BETWEEN 1 AND 256),
    CONSTRAINT blocks_reason_length CHECK (octet_length(reason) <= 4096),
    CONSTRAINT blocks_times CHECK (created_at_micros >= 0 AND updated_at_micros >= 0 AND until_micros >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS user_endpoint_limits (
    user_id VARBINARY(256) NOT NULL,
    endpoint VARBINARY(2048) NOT NULL,
    requests BIGINT NOT NULL,
    window_micros BIGINT NOT NULL,
    algorithm VARBINARY(64) NOT NULL,
    burst BIGINT,
    created_by VARBINARY(256) NOT NULL,
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
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- No foreign keys: entries outlive their subjects. `before` and `after` are reserved words of some engines, hence `state_…`; ''
-- stands for no state.
CREATE TABLE IF NOT EXISTS admin_audit (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    version BIGINT NOT NULL,
    at_micros BIGINT NOT NULL,
    made_by VARBINARY(256) NOT NULL,
    action VARBINARY(64) NOT NULL,
    kind VARBINARY(64) NOT NULL,
    subject VARBINARY(16384) NOT NULL,
    state_before MEDIUMTEXT NOT NULL,
    state_after MEDIUMTEXT NOT NULL,
    CONSTRAINT admin_audit_made_by_length CHECK (octet_length(made_by) BETWEEN 1 AND 256),
    CONSTRAINT admin_audit_times CHECK (at_micros >= 0 AND version >= 0),
    INDEX admin_audit_by_time (at_micros),
    INDEX admin_audit_by_version (version)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
