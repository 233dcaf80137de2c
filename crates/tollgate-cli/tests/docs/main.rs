//! Runs what README.md and docs/*.md show.
//!
//! A page is run from top to bottom in a new folder, in one shell, with the built binary in `PATH`:
//!
//! | block | what happens |
//! |---|---|
//! | `sh` | every command must succeed |
//! | `console` | lines after `$ ` are run; the lines below must be their output ([`transcript`]) |
//! | `toml` | `tollgate rules lint` accepts it; a file with `[[tests]]` passes with the rules block before it |
//! | `json` | is valid JSON |
//! | `rust` | is a documentation test of the crate `tollgate` |
//! | `text` | nothing |
//!
//! A `toml` or `json` block whose introduction ends with a file name (``Save this as `tollgate.toml`:``) is saved
//! there; after ``Add this to `tollgate.toml`:`` it is appended. The ports 8080, 8081, 8000, 3000, 3001 and 6379
//! are replaced by free ones. A command that ends with `&` is waited for until its port accepts connections, and an edited
//! `tollgate.toml` until the node has applied it.
//!
//! A block that cannot run says so (```` ```sh no-run ````) and is listed in [`not_run`] with the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod commands;
mod cookbook;
mod links;
mod not_run;
mod page;
mod runner;
mod shell;
mod transcript;

use std::collections::BTreeSet;

macro_rules! pages {
    ($($test:ident => $path:literal,)*) => {
        const PAGES: &[&str] = &[$($path),*];
        $(#[test] fn $test() { runner::run_page($path) })*
    };
}

pages! {
    readme_runs => "README.md",
    api_page_runs => "docs/api.md",
    archive_page_runs => "docs/archive.md",
    backup_page_runs => "docs/backup.md",
    cli_page_runs => "docs/cli.md",
    configuration_page_runs => "docs/configuration.md",
    cookbook_page_runs => "docs/cookbook.md",
    database_page_runs => "docs/database.md",
    gateways_page_runs => "docs/gateways.md",
    getting_started_page_runs => "docs/getting-started.md",
    glossary_page_runs => "docs/glossary.md",
    operations_page_runs => "docs/operations.md",
    parquet_page_runs => "docs/parquet.md",
    proxy_page_runs => "docs/proxy.md",
    records_page_runs => "docs/records.md",
    redis_page_runs => "docs/redis.md",
    rules_page_runs => "docs/rules.md",
    scale_page_runs => "docs/scale.md",
    security_page_runs => "docs/security.md",
}

#[test]
fn every_page_has_a_test() {
    let mut pages: BTreeSet<String> = page::docs_pages().into_iter().collect();
    pages.insert("README.md".to_owned());
    assert_eq!(pages, PAGES.iter().map(|page| (*page).to_owned()).collect());
}
