//! The code blocks of a page.

use std::fs;
use std::path::{Path, PathBuf};

/// The path of a file of the repository.
pub(crate) fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// The text of a file of the repository.
pub(crate) fn text_of(name: &str) -> String {
    fs::read_to_string(path_of(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The names of all pages in docs/, such as `docs/api.md`.
pub(crate) fn docs_pages() -> Vec<String> {
    let files = fs::read_dir(path_of("docs")).unwrap();
    let names = files.map(|file| format!("docs/{}", file.unwrap().file_name().to_str().unwrap()));
    names.filter(|name| Path::new(name).extension().is_some_and(|end| end == "md")).collect()
}

/// One fenced block.
#[derive(Debug)]
pub(crate) struct Block {
    /// Line number of the opening fence.
    pub line: usize,
    pub language: String,
    /// Whether the info string has `no-run`.
    pub no_run: bool,
    pub code: String,
    pub file: Option<NamedFile>,
}

/// The file that the introduction of a block names.
#[derive(Debug, PartialEq)]
pub(crate) struct NamedFile {
    pub name: String,
    pub append: bool,
}

/// The blocks of a page, in order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let text = text_of(page);
    let lines: Vec<&str> = text.lines().collect();
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let Some(info) = lines[at].strip_prefix("```") else {
            at += 1;
            continue;
        };
        let length = lines[at + 1..].iter().position(|line| *line == "```");
        let length = length.unwrap_or_else(|| panic!("{page}:{}: the block has no end", at + 1));
        let mut words = info.split_whitespace();
        blocks.push(Block {
            line: at + 1,
            language: words.next().unwrap_or_default().to_owned(),
            no_run: words.any(|word| word == "no-run"),
            code: lines[at + 1..at + 1 + length].join("\n") + "\n",
            file: named_file(&introduction(&lines[..at])),
        });
        at += length + 2;
    }
    blocks
}

/// The paragraph before a block.
fn introduction(lines: &[&str]) -> String {
    let lines: Vec<&str> = lines.iter().rev().skip_while(|line| line.is_empty()).copied().collect();
    let paragraph = lines.split(|line| line.is_empty()).next().unwrap_or_default();
    paragraph.iter().rev().copied().collect::<Vec<_>>().join(" ")
}

/// The last file name of a paragraph that ends with a colon.
fn named_file(paragraph: &str) -> Option<NamedFile> {
    let sentence = paragraph.strip_suffix(':')?;
    let sentence = sentence.rsplit(". ").next()?;
    let name = sentence.rsplit('`').nth(1)?;
    let is_file = [".toml", ".json"].iter().any(|end| name.ends_with(end)) && !name.contains(' ');
    is_file.then(|| NamedFile { name: name.to_owned(), append: sentence.starts_with("Add") })
}

#[test]
fn introduction_names_the_file() {
    let file = |name: &str, append| Some(NamedFile { name: name.to_owned(), append });
    assert_eq!(
        named_file("Rules are in a file. Save this as `tollgate.toml`:"),
        file("tollgate.toml", false)
    );
    assert_eq!(named_file("Add this to `tollgate.toml`:"), file("tollgate.toml", true));
    assert_eq!(named_file("[`plans.toml`](cookbook/plans.toml):"), file("plans.toml", false));
    assert_eq!(named_file("The answer to `check`:"), None);
    assert_eq!(named_file("See `tollgate.toml`."), None);
    assert_eq!(introduction(&["a", "", "b", "c:", ""]), "b c:");
}
