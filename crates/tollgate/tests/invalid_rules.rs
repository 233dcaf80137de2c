//! One invalid rule file per error, each with the expected message.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;

use tollgate::RuleSet;

/// The files of a test folder: name and text.
fn files(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut files: Vec<(String, String)> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| {
            (path.file_stem().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn every_error_has_line_and_key() {
    let files = files("invalid_rules");
    assert!(files.len() >= 30, "{} files", files.len());
    let mut wrong = Vec::new();
    for (name, text) in files {
        let expected: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("# expect: ")).collect();
        let reported = match RuleSet::from_toml(&text) {
            Ok(_) => "nothing".to_owned(),
            Err(problems) => problems.to_string(),
        };
        if reported.lines().ne(expected.iter().copied()) {
            wrong.push(format!("{name}: expected\n  {}\nbut was\n  {reported}", expected.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn all_errors_are_reported_in_file_order() {
    let everything_but_syntax = files("invalid_rules").into_iter().filter(|(_, text)| {
        let reported = RuleSet::from_toml(text).unwrap_err();
        reported.0.iter().all(|problem| problem.key.starts_with("rules[0]."))
    });
    let mut text = String::new();
    let mut expected = 0;
    for (number, (_, file)) in everything_but_syntax.enumerate() {
        text.push_str(&file.replace("name = \"a\"", &format!("name = \"a{number}\"")));
        expected += RuleSet::from_toml(&file).unwrap_err().0.len();
    }
    let reported = RuleSet::from_toml(&text).unwrap_err();
    assert_eq!(reported.0.len(), expected);
    let lines = reported.to_string();
    let lines: Vec<usize> =
        lines.lines().map(|line| line["line ".len()..line.find(':').unwrap()].parse().unwrap()).collect();
    assert!(lines.is_sorted() && lines.len() > 50);
}
