-- Users, logins and addresses live inside their tenant; '' is none.

ALTER TABLE rate_limit_rules
    ADD COLUMN across_tenants BIGINT,
    ADD CONSTRAINT rate_limit_rules_across_tenants_boolean CHECK (across_tenants IN (0, 1));

ALTER TABLE admin_audit
    ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '',
    ADD CONSTRAINT admin_audit_tenant_length CHECK (octet_length(tenant) <= 256);

ALTER TABLE user_usage
    DROP CONSTRAINT user_usage_user,
    ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '',
    DROP CONSTRAINT user_usage_pkey,
    ADD PRIMARY KEY (tenant, user_id);

ALTER TABLE user_quotas
    ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '',
    DROP CONSTRAINT user_quotas_pkey,
    ADD PRIMARY KEY (tenant, user_id),
    ADD CONSTRAINT user_quotas_tenant_length CHECK (octet_length(tenant) <= 256);

ALTER TABLE user_usage
    ADD CONSTRAINT user_usage_user FOREIGN KEY (tenant, user_id) REFERENCES user_quotas (tenant, user_id)
        ON DELETE CASCADE;

CREATE INDEX user_quotas_by_user ON user_quotas (user_id);

ALTER TABLE blocks
    ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '',
    DROP CONSTRAINT blocks_pkey,
    ADD PRIMARY KEY (tenant, kind, subject),
    ADD CONSTRAINT blocks_tenant_length CHECK (octet_length(tenant) <= 256),
    ADD CONSTRAINT blocks_kind_in_tenant CHECK (tenant = '' OR kind IN ('user', 'login', 'ip'));

ALTER TABLE user_endpoint_limits
    ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '',
    DROP CONSTRAINT user_endpoint_limits_pkey,
    ADD PRIMARY KEY (tenant, user_id, endpoint),
    ADD CONSTRAINT user_endpoint_limits_tenant_length CHECK (octet_length(tenant) <= 256);
