//! The SQL store on real engines: one suite, mounted on SQLite, PostgreSQL and MariaDB, and what is special to each.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod changes;
mod engines;
mod harness;
mod migrations;
mod names;
mod schema;

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
    changes::numbers_are_set_replaced_and_removed,
    changes::the_largest_numbers_come_back_as_they_went,
    changes::numbers_that_make_no_limit_leave_nothing,
    changes::a_change_without_its_entry_is_undone,
    changes::changes_at_once_follow_each_other,
    changes::a_reader_sees_one_version_whole,
    changes::an_abandoned_change_is_made_whole_or_not_at_all,
    changes::a_change_waits_for_another_only_so_long,
    changes::the_trail_is_read_page_by_page,
    names::names_are_compared_byte_by_byte,
    names::names_that_cannot_be_kept_are_refused,
    names::hostile_names_are_plain_data,
    schema::wrong_rows_are_refused_by_the_schema_itself,
    schema::no_password_is_shown,
];
