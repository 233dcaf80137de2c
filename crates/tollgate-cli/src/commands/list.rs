//! Paged lists of a server: rules, tiers, quotas, keys, blocks, audit entries.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::Client;
use crate::client::url::query;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::Output;
use crate::output::table::{Cell, Table};

/// The largest page that a server returns.
const PAGE_SIZE: u32 = 1_000;

/// The flag for the length of a list.
#[derive(Args)]
pub(crate) struct LimitArg {
    /// Maximum number to list; all by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
}

/// How items are shown in a table.
pub(crate) struct Columns {
    pub(crate) headings: &'static [&'static str],
    pub(crate) row: fn(&Value) -> Vec<Cell>,
}

/// A request for a list.
pub(crate) struct ListQuery<'a> {
    /// The field of the response that holds the items; also used in messages.
    pub(crate) name: &'a str,
    pub(crate) path: &'a str,
    pub(crate) filters: &'a [(&'a str, Option<&'a str>)],
    pub(crate) limit: Option<u32>,
}

/// Items, and the cursor behind them if there are more.
struct Items<T> {
    items: Vec<T>,
    next: Option<String>,
}

impl ListQuery<'_> {
    /// Prints the list as a table, or as JSON in the shape of one page.
    pub(crate) fn print(
        &self,
        client: &Client,
        columns: &Columns,
        output: &Output,
    ) -> Result<Exit, CliError> {
        if output.json() {
            let raw = |item: Value| RawValue::from_string(item.to_string());
            let Items { items, next } = self.fetch(client, raw)?;
            let items: Result<Vec<_>, _> = items.into_iter().collect();
            let items = JsonPage::Items(items.map_err(std::io::Error::from)?);
            output.value(&BTreeMap::from([(self.name, items), ("next", JsonPage::Next(next))]))?;
            return Ok(Exit::Ok);
        }
        let Items { items, next } = self.fetch(client, |item| (columns.row)(&item))?;
        let count = items.len();
        if count == 0 {
            output.note(&format!("no {}", self.name));
            return Ok(Exit::Ok);
        }
        let mut table = Table::new(columns.headings);
        for row in items {
            table.row(row);
        }
        output.text(&table.render(output))?;
        if next.is_some() {
            output.note(&format!("showing the first {count}; raise --limit to see more"));
        }
        Ok(Exit::Ok)
    }

    /// Fetches all pages. `convert` reduces each item as it arrives, so that a million keys fit in memory.
    fn fetch<T>(&self, client: &Client, mut convert: impl FnMut(Value) -> T) -> Result<Items<T>, CliError> {
        let mut left = self.limit.unwrap_or(u32::MAX);
        let mut fetched = Items { items: Vec::new(), next: None };
        loop {
            let (items, next) = self.fetch_page(client, left.min(PAGE_SIZE), fetched.next.as_deref())?;
            let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
            fetched.items.extend(items.into_iter().map(&mut convert));
            left = left.saturating_sub(count);
            // A server that repeats its cursor would otherwise be queried forever.
            let stuck = count == 0 || next == fetched.next;
            fetched.next = next;
            if fetched.next.is_none() || left == 0 || stuck {
                return Ok(fetched);
            }
        }
    }

    fn fetch_page(
        &self,
        client: &Client,
        size: u32,
        after: Option<&str>,
    ) -> Result<(Vec<Value>, Option<String>), CliError> {
        let size = size.to_string();
        // A filter `after` applies to the first page only; later pages use the cursor.
        let filters = self.filters.iter().filter(|(key, _)| after.is_none() || *key != "after");
        let paging = [("limit", Some(&*size)), ("after", after)];
        let pairs: Vec<_> = filters.copied().chain(paging).collect();
        let mut response =
            client.require_success(client.get(&format!("{}{}", self.path, query(&pairs)))?)?;
        let next = response.body["next"].as_str().map(str::to_owned);
        match response.body.get_mut(self.name).map(Value::take) {
            Some(Value::Array(items)) => Ok((items, next)),
            _ => Err(client.missing_field(self.name).into()),
        }
    }
}

/// The two fields of a page.
#[derive(Serialize)]
#[serde(untagged)]
enum JsonPage {
    Items(Vec<Box<RawValue>>),
    Next(Option<String>),
}
