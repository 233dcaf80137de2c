//! Links between the pages.

use std::collections::HashSet;

use crate::page::{docs_pages, path_of, text_of};

const OTHER_PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

#[test]
fn links_between_pages_resolve() {
    let pages = docs_pages().into_iter().chain(OTHER_PAGES.map(str::to_owned));
    let mut broken = Vec::new();
    for page in pages {
        let text = prose(&text_of(&page));
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            if !resolves(&page, target) {
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

fn resolves(page: &str, target: &str) -> bool {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = if file.is_empty() { page.to_owned() } else { format!("{folder}/{file}") };
    let path = path.trim_start_matches('/');
    path_of(path).exists() && (anchor.is_empty() || anchors(&text_of(path)).contains(anchor))
}

/// The text without code blocks.
fn prose(text: &str) -> String {
    text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// The anchors of headings, as GitHub makes them.
fn anchors(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    for heading in prose(text).lines().filter(|line| line.starts_with('#')) {
        let title = heading.trim_start_matches('#').trim();
        let kept = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        let slug: String = kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect();
        let slug = slug.to_lowercase();
        let repeated = (1..).map(|number| format!("{slug}-{number}"));
        let free = [slug.clone()].into_iter().chain(repeated).find(|slug| !anchors.contains(slug));
        anchors.insert(free.unwrap());
    }
    let named = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    anchors.extend(named.map(str::to_owned));
    anchors
}

#[test]
fn anchors_are_those_of_github() {
    let text =
        "# A `page`\n## Rules, limits: why?\n```sh\n# no heading\n```\n## `auth.key_secret`\n## A page\n";
    let expected = ["a-page", "rules-limits-why", "authkey_secret", "a-page-1"];
    assert_eq!(anchors(text), expected.map(str::to_owned).into());
}
