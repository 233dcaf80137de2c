-- Users, logins and addresses live inside their tenant; '' is none.
--
-- Each statement commits by itself here, and an interrupted migration runs again: a table that has its column is left as it is.

SET @statement = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'rate_limit_rules' AND column_name = 'across_tenants') = 0,
    'ALTER TABLE rate_limit_rules ADD COLUMN across_tenants BIGINT, ADD CONSTRAINT rate_limit_rules_across_tenants_boolean CHECK (across_tenants IN (0, 1))',
    'DO 0'
);
PREPARE step FROM @statement;
EXECUTE step;
DEALLOCATE PREPARE step;

SET @statement = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'admin_audit' AND column_name = 'tenant') = 0,
    'ALTER TABLE admin_audit ADD COLUMN tenant VARBINARY(256) NOT NULL DEFAULT ''''',
    'DO 0'
);
PREPARE step FROM @statement;
EXECUTE step;
DEALLOCATE PREPARE step;

SET @statement = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'user_usage' AND column_name = 'tenant') = 0,
    'ALTER TABLE user_usage ADD COLUMN tenant VARBINARY(256) NOT NULL DEFAULT '''', DROP FOREIGN KEY user_usage_user, DROP PRIMARY KEY, ADD PRIMARY KEY (tenant, user_id)',
    'DO 0'
);
PREPARE step FROM @statement;
EXECUTE step;
DEALLOCATE PREPARE step;

SET @statement = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'user_quotas' AND column_name = 'tenant') = 0,
    'ALTER TABLE user_quotas ADD COLUMN tenant VARBINARY(256) NOT NULL DEFAULT '''', DROP PRIMARY KEY, ADD PRIMARY KEY (tenant, user_id), ADD INDEX user_quotas_by_user (user_id)',
    'DO 0'
);
PREPARE step FROM @statement;
EXECUTE step;
DEALLOCATE PREPARE step;

SET @statement = IF(
    (SELECT COUNT(*) FROM information_schema.table_constraints
     WHERE constraint_schema = DATABASE() AND table_name = 'user_usage' AND constraint_name = 'user_usage_user') = 0,
    'ALTER TABLE user_usage ADD CONSTRAINT user_usage_user FOREIGN KEY (tenant, user_id) REFERENCES user_quotas (tenant, user_id) ON DELETE CASCADE',
    'DO 0'
);
PREPARE step FROM @statement;
EXECUTE step;
DEALLOCATE PREPARE step;

SET @statement = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'blocks' AND column_name = 'tenant') = 0,
    'ALTER TABLE blocks ADD COLUMN tenant VARBINARY(256) NOT NULL DEFAULT '''', DROP PRIMARY KEY, ADD PRIMARY KEY (tenant, kind, subject), ADD CONSTRAINT blocks_kind_in_tenant CHECK (tenant = '''' OR kind IN (''user'', ''login'', ''ip''))',
    'DO 0'
);
PREPARE step FROM @statement;
EXECUTE step;
DEALLOCATE PREPARE step;

SET @statement = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'user_endpoint_limits' AND column_name = 'tenant') = 0,
    'ALTER TABLE user_endpoint_limits ADD COLUMN tenant VARBINARY(256) NOT NULL DEFAULT '''', DROP PRIMARY KEY, ADD PRIMARY KEY (tenant, user_id, endpoint)',
    'DO 0'
);
PREPARE step FROM @statement;
EXECUTE step;
DEALLOCATE PREPARE step;
