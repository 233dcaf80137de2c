//! `tollgate rules export`: the contents of a server's database as a file for `apply`.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::Args;
use serde_json::Value;

use crate::client::url::query;
use crate::item_kind::ItemKind;
use crate::output::toml;
use crate::{CliError, Client, Exit, Output};

/// Items per page.
const PAGE_SIZE: &str = "1000";
/// How often the export restarts when the configuration changes between two pages.
const ATTEMPTS: usize = 5;

#[derive(Args)]
pub(crate) struct Export {
    /// Kinds to export
    #[arg(long, value_name = "KIND", value_delimiter = ',', default_value = "rules,tiers")]
    kinds: Vec<ItemKind>,
}

pub(super) fn run(export: &Export, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let mut kinds = export.kinds.clone();
    kinds.sort_unstable();
    kinds.dedup();
    let snapshot = Snapshot::fetch(&kinds, client)?;
    Ok(output.result(|| snapshot.to_json(), || snapshot.to_toml())?)
}

/// All items of some kinds at one version.
struct Snapshot {
    version: u64,
    items: BTreeMap<ItemKind, Vec<Value>>,
}

impl Snapshot {
    fn fetch(kinds: &[ItemKind], client: &Client) -> Result<Self, CliError> {
        for _ in 0..ATTEMPTS {
            if let Some(snapshot) = Self::fetch_pages(kinds, client)? {
                return Ok(snapshot);
            }
        }
        Err(CliError::Conflict)
    }

    /// Fetches all pages; `None` if the version changes between two of them.
    fn fetch_pages(kinds: &[ItemKind], client: &Client) -> Result<Option<Self>, CliError> {
        let names = kinds.iter().map(|kind| kind.plural()).collect::<Vec<_>>().join(",");
        let mut items: BTreeMap<ItemKind, Vec<Value>> =
            kinds.iter().map(|kind| (*kind, Vec::new())).collect();
        let (mut next, mut version) = (None::<String>, None);
        loop {
            let pairs = [("kinds", Some(&*names)), ("limit", Some(PAGE_SIZE)), ("after", next.as_deref())];
            let mut page = client.bulk().get(&format!("/v1/admin/export{}", query(&pairs)))?.body;
            let found = page["version"].as_u64().ok_or_else(|| client.missing_field("version"))?;
            if *version.get_or_insert(found) != found {
                return Ok(None);
            }
            for (kind, items) in &mut items {
                if let Some(Value::Array(more)) = page.get_mut(kind.plural()).map(Value::take) {
                    items.extend(more);
                }
            }
            let after = page["next"].as_str().map(str::to_owned);
            // A server that repeats its cursor would otherwise be queried forever.
            if after.is_none() || after == next {
                return Ok(Some(Snapshot { version: found, items }));
            }
            next = after;
        }
    }

    /// The shape of one page.
    fn to_json(&self) -> Value {
        let lists =
            self.items.iter().map(|(kind, items)| (kind.plural().to_owned(), Value::from(items.clone())));
        lists.chain([("version".to_owned(), self.version.into())]).collect()
    }

    /// A kind without items is written as an empty list: `apply` ignores kinds that a file does not mention.
    fn to_toml(&self) -> String {
        let mut text = format!("# tollgate configuration, version {}\n", self.version);
        for (kind, _) in self.items.iter().filter(|(_, items)| items.is_empty()) {
            let _ = writeln!(text, "{} = []", kind.plural());
        }
        for (kind, items) in &self.items {
            for item in items.iter().filter_map(Value::as_object) {
                text.push('\n');
                text.push_str(&toml::entry(kind.plural(), item));
            }
        }
        text
    }
}
