//! The SQL store on real engines: one suite, mounted on SQLite, PostgreSQL and MariaDB, and what is special to each.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod changes;
mod engines;
mod following;
mod harness;
mod items;
mod migrations;
mod names;
mod schema;
mod usage;

/// Mounts tests that take an empty database on every engine.
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
    migrations::an_empty_database_is_brought_up_to_date_once,
    migrations::nodes_that_start_at_once_migrate_once,
    migrations::a_newer_schema_is_refused,
    migrations::a_migration_waits_for_another_only_so_long,
    changes::the_trail_tells_what_was_before_and_after,
    changes::a_change_for_another_version_changes_nothing,
    changes::what_changes_nothing_leaves_nothing,
    changes::an_expectation_that_fails_stops_everything,
    changes::a_plan_tells_what_would_differ,
    changes::one_edit_that_cannot_be_made_undoes_all,
    changes::thousands_of_edits_are_one_change,
    changes::a_change_without_its_entry_is_undone,
    changes::changes_at_once_follow_each_other,
    changes::of_two_who_expect_the_same_version_one_is_late,
    changes::a_reader_sees_one_version_whole,
    changes::an_abandoned_change_is_made_whole_or_not_at_all,
    changes::a_change_waits_for_another_only_so_long,
    changes::the_trail_is_read_page_by_page_from_either_end,
    changes::the_trail_is_filtered,
    items::items_of_every_kind_are_made_replaced_and_removed,
    items::what_makes_no_item_leaves_nothing,
    items::t27_no_hash_is_told_by_the_trail_or_by_debug,
    items::pages_are_complete_while_others_write,
    items::t70_a_page_is_never_longer_than_a_thousand,
    items::everything_is_loaded_page_by_page,
    items::lists_are_filtered,
    items::a_prefix_is_bytes_and_nothing_else,
    items::the_first_check_value_is_everyones,
    following::what_has_changed_is_told_as_it_is_now,
    following::acts_are_told_to_all_nodes,
    following::what_cannot_be_followed_is_loaded,
    following::too_many_changes_are_loaded,
    following::a_follower_misses_nothing,
    following::hints_are_given_where_there_are_any,
    usage::totals_roll_over_with_the_day_and_the_month,
    usage::a_batch_counts_once,
    usage::a_batch_is_added_whole_or_not_at_all,
    usage::who_is_gone_is_skipped_and_their_totals_are_gone_too,
    usage::nodes_add_at_once_while_users_come_and_go,
    usage::old_numbers_are_forgotten,
    names::names_are_compared_byte_by_byte,
    names::names_that_cannot_be_kept_are_refused,
    names::t43_hostile_texts_are_plain_data_in_every_field,
    names::t43_hostile_filters_and_cursors_are_plain_data,
    schema::wrong_rows_are_refused_by_the_schema_itself,
    schema::no_password_is_shown,
];
