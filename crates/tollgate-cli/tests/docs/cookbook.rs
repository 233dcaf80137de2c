//! The recipes of docs/cookbook.md and their files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use crate::page::{blocks, path_of, text_of};

const WHOLE: &str = "saas.toml";

fn recipe_files() -> BTreeMap<String, String> {
    let files = fs::read_dir(path_of("docs/cookbook")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.map(|name| (name.clone(), text_of(&format!("docs/cookbook/{name}")))).collect()
}

#[test]
fn page_shows_the_recipe_files() {
    let shown =
        blocks("docs/cookbook.md").into_iter().filter_map(|block| Some((block.file?.name, block.code)));
    let shown: BTreeMap<String, String> = shown.collect();
    let files = recipe_files();
    assert_eq!(shown.keys().collect::<BTreeSet<_>>(), files.keys().collect::<BTreeSet<_>>());
    for (name, text) in files {
        assert_eq!(shown[&name], text, "docs/cookbook/{name} differs from the page");
    }
}

#[test]
fn recipes_pass_alone_and_together() {
    let names: Vec<String> = recipe_files().into_keys().collect();
    let tests: Vec<&String> = names.iter().filter(|name| name.ends_with(".tests.toml")).collect();
    assert!(tests.len() >= 6, "{tests:?}");
    for name in tests {
        let alone = name.replace(".tests.toml", ".toml");
        for rules in [&*alone, WHOLE] {
            let file = |name| path_of("docs/cookbook").join(name);
            let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
            let ran = command.args(["rules", "test"]).args([file(rules), file(name)]).output().unwrap();
            assert!(ran.status.success(), "{rules} {name}: {}", String::from_utf8_lossy(&ran.stdout));
        }
    }
}

#[test]
fn whole_rule_set_has_no_warnings() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let ran = command.args(["rules", "lint"]).arg(path_of("docs/cookbook").join(WHOLE)).output().unwrap();
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert!(printed.contains("no errors, 0 warnings"), "{printed}");
}
