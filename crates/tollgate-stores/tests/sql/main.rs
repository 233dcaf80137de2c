//! Tests of the configuration database and of the database of records: one suite that runs on SQLite, PostgreSQL and MariaDB, and tests of single engines.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod changes;
mod engines;
mod harness;
mod items;
mod migrations;
mod names;
mod record_queries;
mod record_timeouts;
mod records;
mod records_aggregates;
mod records_archive;
mod records_archive_faults;
mod records_archive_stores;
mod records_faults;
mod records_harness;
mod records_maintenance;
mod records_reports;
mod schema;
mod sync;
mod tenants;
mod usage;

/// Runs tests that take an empty database on every engine.
macro_rules! on_every_engine {
    ($($module:ident :: $test:ident),* $(,)?) => {
        on_every_engine!(@mount sqlite, $($module::$test),*);
        on_every_engine!(@mount postgres, $($module::$test),*);
        on_every_engine!(@mount mariadb, $($module::$test),*);
    };
    (@mount $engine:ident, $($module:ident :: $test:ident),*) => {
        mod $engine {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$module::$test(super::harness::TestDatabase::$engine()).await;
                }
            )*
        }
    };
}

on_every_engine![
    migrations::empty_database_is_migrated_once,
    migrations::concurrent_starts_migrate_once,
    migrations::newer_schema_is_rejected,
    migrations::migration_lock_wait_times_out,
    changes::audit_entry_has_state_before_and_after,
    changes::change_at_wrong_version_is_rejected,
    changes::edits_without_effect_make_no_version,
    changes::failed_precondition_aborts_the_change,
    changes::dry_run_lists_item_changes,
    changes::constraint_violation_rolls_back_all_edits,
    changes::thousands_of_edits_are_one_change,
    changes::change_without_audit_entry_is_rolled_back,
    changes::concurrent_changes_are_serialized,
    changes::version_precondition_admits_one_of_many,
    changes::load_sees_exactly_one_version,
    changes::dropped_change_is_atomic,
    changes::change_lock_wait_times_out,
    changes::audit_log_is_paged_from_both_ends,
    changes::audit_log_is_filtered,
    items::items_of_every_kind_are_created_replaced_deleted,
    items::invalid_items_are_rejected,
    items::key_hashes_never_appear_in_audit_or_debug,
    items::pages_are_complete_under_concurrent_writes,
    items::page_size_is_capped,
    items::load_reads_all_pages,
    items::lists_are_filtered,
    items::prefix_filter_compares_bytes,
    items::first_key_secret_fingerprint_wins,
    sync::changes_since_returns_current_items,
    sync::events_reach_all_nodes,
    sync::gap_in_audit_log_requires_reload,
    sync::too_many_changes_require_reload,
    sync::polling_misses_no_change,
    sync::only_postgres_notifies_listeners,
    tenants::items_of_tenants_are_independent,
    tenants::usage_of_tenants_is_independent,
    tenants::invalid_tenants_are_rejected,
    tenants::migration_keeps_items_without_tenant,
    usage::totals_roll_over_by_day_and_month,
    usage::quotas_are_listed_by_block_and_last_request,
    usage::batch_counts_once,
    usage::batch_is_atomic,
    usage::deleted_users_and_keys_have_no_totals,
    usage::concurrent_batches_survive_quota_changes,
    usage::old_batch_numbers_are_deleted,
    names::names_are_compared_byte_by_byte,
    names::unstorable_names_are_rejected,
    names::sql_injection_in_values_is_inert,
    names::sql_injection_in_filters_and_cursors_is_inert,
    schema::schema_rejects_invalid_rows,
    schema::password_never_appears_in_messages,
    records::records_share_a_database_with_the_configuration,
    records::range_is_stored_once,
    records::decisions_are_stored_as_sent,
    records::long_texts_are_truncated_and_flagged,
    records::rejected_row_stores_nothing,
    records::ranges_that_do_not_follow_are_rejected,
    records::skipped_rows_move_the_position,
    records::source_is_registered_once,
    records_aggregates::window_deltas_add_up,
    records_aggregates::rollup_deltas_add_up_and_merge_latencies,
    records_aggregates::two_nodes_add_to_the_same_windows,
    records_aggregates::same_server_id_twice_loses_no_latency,
    records_aggregates::long_routes_are_different_windows,
    records_maintenance::partitions_follow_the_calendar,
    records_maintenance::rows_without_partition_are_counted,
    records_maintenance::rows_move_to_new_partitions,
    records_maintenance::old_rows_are_removed,
    records_maintenance::one_node_maintains_at_a_time,
    records_maintenance::hours_and_days_are_computed,
    records_maintenance::late_minutes_are_added_to_their_hour,
    records_maintenance::maintenance_does_not_disturb_writers,
    records_archive::restored_rows_equal_the_original,
    records_archive::restore_overwrites_no_late_window,
    records_archive::late_rows_go_to_another_part,
    records_archive::rows_added_meanwhile_are_not_dropped,
    records_archive::archive_of_another_database_is_rejected,
    records_archive::period_without_rows_makes_no_file,
    records_archive_faults::interrupted_runs_lose_nothing,
    records_archive_faults::two_nodes_archive_every_row_once,
    records_archive_faults::run_that_lost_its_lease_stops,
    records_archive_faults::damaged_copy_removes_nothing,
    records_reports::documented_reports_run,
    record_queries::decisions_are_read_as_stored,
    record_queries::decisions_are_filtered,
    record_queries::decisions_are_paged_in_both_directions,
    record_queries::windows_are_filtered_and_paged,
    record_queries::rollups_of_servers_are_merged,
    record_queries::rollup_pages_repeat_nothing,
    record_queries::usage_adds_up_by_period_and_route,
    record_queries::clients_routes_and_rules_are_ranked,
    record_queries::trend_counts_every_minute_once,
];
