//! Tables of docs/ that repeat what the sources say.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The names of all functions in Rust sources.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
            let starts = text.split("fn ").skip(1);
            names.extend(starts.map(|rest| rest.chars().take_while(|letter| is_part(*letter)).collect()));
        }
    }
}

#[test]
fn security_page_names_existing_tests() {
    let mut names = BTreeSet::new();
    functions(&root().join("crates"), &mut names);
    let page = read("docs/security.md");
    let tables = page.split("| # | threat | defence | tests |\n").skip(1);
    let rows: Vec<&str> =
        tables.flat_map(|table| table.lines().take_while(|line| line.starts_with('|'))).collect();
    assert!(rows.len() > 60, "the tables of threats");
    let mut missing = Vec::new();
    for row in rows {
        let tests = row.trim_matches('|').split(" | ").last().unwrap();
        missing.extend(tests.split('`').skip(1).step_by(2).filter(|name| !names.contains(*name)));
    }
    assert!(missing.is_empty(), "docs/security.md names tests that do not exist: {missing:#?}");
}
