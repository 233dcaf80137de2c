//! Every file in `bad_settings/` has errors, and its first lines list the expected messages.

#![allow(clippy::unwrap_used)] // a helper of tests is a test

use std::path::{Path, PathBuf};

use tollgate_server::config::settings::{Flags, Settings};

#[test]
fn every_error_has_file_line_and_key() {
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
    let actual = match Settings::load(&flags, std::iter::empty()) {
        Ok(_) => vec!["no error".to_owned()],
        Err(error) => error.lines(),
    };
    (expected.is_empty() || actual != expected)
        .then(|| format!("expected\n  {}\nactual\n  {}", expected.join("\n  "), actual.join("\n  ")))
}
