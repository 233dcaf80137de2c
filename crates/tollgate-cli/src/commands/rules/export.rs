//! What a server's database holds, as a file that `apply` takes.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};

use super::sources::FileKind;
use crate::client::Client;
use crate::failure::Failure;
use crate::items::succeeded;
use crate::toml_text;
use crate::url::query;

/// Items on one page of an export.
const PAGE: &str = "1000";
/// The configuration may change between two pages, and then again; not for ever.
const ATTEMPTS: usize = 5;

/// Everything of some kinds, at one version.
pub(super) struct Exported {
    version: u64,
    items: BTreeMap<FileKind, Vec<Value>>,
}

impl Exported {
    /// Asks for all pages. If the version changes between two of them, they are no whole: it begins again.
    pub(super) fn ask(kinds: &[FileKind], client: &Client) -> Result<Self, Failure> {
        for _ in 0..ATTEMPTS {
            if let Some(exported) = Self::pages(kinds, client)? {
                return Ok(exported);
            }
        }
        Err(Failure::Overtaken)
    }

    fn pages(kinds: &[FileKind], client: &Client) -> Result<Option<Self>, Failure> {
        let names = kinds.iter().map(|kind| kind.list()).collect::<Vec<_>>().join(",");
        let mut items: BTreeMap<FileKind, Vec<Value>> =
            kinds.iter().map(|kind| (*kind, Vec::new())).collect();
        let (mut next, mut version) = (None::<String>, None);
        loop {
            let pairs = [("kinds", Some(&*names)), ("limit", Some(PAGE)), ("after", next.as_deref())];
            let answer = client.get_bulk(&format!("/v1/admin/export{}", query(&pairs)))?;
            let mut page = succeeded(client, answer)?.body;
            let found = page["version"].as_u64().ok_or_else(|| client.no_such_list("version"))?;
            if *version.get_or_insert(found) != found {
                return Ok(None);
            }
            for (kind, items) in &mut items {
                if let Some(Value::Array(more)) = page.get_mut(kind.list()).map(Value::take) {
                    items.extend(more);
                }
            }
            let after = page["next"].as_str().map(str::to_owned);
            // A server that repeats itself would be followed for ever.
            if after.is_none() || after == next {
                return Ok(Some(Exported { version: found, items }));
            }
            next = after;
        }
    }

    /// As one page of the server's would be.
    pub(super) fn body(&self) -> Map<String, Value> {
        let lists = self.items.iter().map(|(kind, items)| (kind.list().to_owned(), items.clone().into()));
        lists.chain([("version".to_owned(), self.version.into())]).collect()
    }

    /// As people write it. A kind without items says so: what is not mentioned would be left alone.
    pub(super) fn toml(&self) -> String {
        let mut text = format!("# tollgate configuration, version {}\n", self.version);
        for (kind, _) in self.items.iter().filter(|(_, items)| items.is_empty()) {
            let _ = writeln!(text, "{} = []", kind.list());
        }
        for (kind, items) in &self.items {
            for item in items.iter().filter_map(Value::as_object) {
                text.push('\n');
                text.push_str(&toml_text::entry(kind.list(), item));
            }
        }
        text
    }
}
