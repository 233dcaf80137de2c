//! Every file in `bad_settings/` has a mistake, and its first lines say what the operator is told about it.

#![allow(clippy::unwrap_used)] // a helper of tests is a test

use std::path::{Path, PathBuf};

use tollgate_server::config::settings::{Flags, Settings};

#[test]
fn every_mistake_is_told_with_its_file_its_line_and_its_key() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad_settings");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 15, "{}", files.len());
    let wrong: Vec<String> = files.iter().filter_map(|file| difference(file)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn difference(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let expected: Vec<String> = text
        .lines()
        .map_while(|line| line.strip_prefix("# expect: line "))
        .map(|line| format!("{}:{line}", file.display()))
        .collect();
    let flags = Flags { config: Some(file.to_owned()), ..Flags::default() };
    let told = match Settings::load(&flags, std::iter::empty()) {
        Ok(_) => vec!["nothing".to_owned()],
        Err(error) => error.lines(),
    };
    (expected.is_empty() || told != expected)
        .then(|| format!("expected\n  {}\ntold\n  {}", expected.join("\n  "), told.join("\n  ")))
}
