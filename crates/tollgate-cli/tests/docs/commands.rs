//! The table of commands in docs/cli.md.

use std::collections::BTreeSet;
use std::process::Command;

use crate::page::text_of;

/// All commands of the binary, such as `rules lint`, from its help.
fn commands(of: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(of).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let Some((_, listed)) = help.split_once("Commands:\n") else { return vec![of.join(" ")] };
    let lines = listed.lines().take_while(|line| !line.is_empty());
    // A name is indented by two spaces; wrapped descriptions are indented further.
    let names =
        lines.filter(|line| !line[2..].starts_with(' ')).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").flat_map(|name| commands(&[of, &[name]].concat())).collect()
}

#[test]
fn table_lists_every_command() {
    let page = text_of("docs/cli.md");
    let (_, section) = page.split_once("## All commands\n").expect("the section exists");
    let rows = section.split("\n## ").next().unwrap().lines().filter_map(|line| line.strip_prefix("| `"));
    let listed: BTreeSet<String> = rows.map(|row| row.split('`').next().unwrap().to_owned()).collect();
    let without_arguments = |row: &String| {
        let words = row.split_whitespace().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase()));
        words.collect::<Vec<_>>().join(" ")
    };
    let listed: BTreeSet<String> = listed.iter().map(without_arguments).collect();
    assert_eq!(listed, commands(&[]).into_iter().collect());
}
