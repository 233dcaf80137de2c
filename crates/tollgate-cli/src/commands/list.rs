//! Paged lists of a server: rules, tiers, quotas, keys, blocks, audit entries.

use std::io;

use clap::Args;
use serde_json::{Value, json};

use crate::client::url::query;
use crate::output::table::{Cell, Table};
use crate::{CliError, Client, Exit, Output};

/// The largest page that a server returns.
const PAGE_SIZE: usize = 1_000;

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
    /// Headings of columns that a narrow terminal can do without, the least important first.
    pub(crate) optional: &'static [&'static str],
    pub(crate) row: fn(&Value) -> Vec<Cell>,
}

/// Items of a server.
struct Listed {
    items: Vec<Value>,
    /// The cursor behind the items, if there are more.
    next: Option<String>,
    /// Whether the server cannot reach its database and listed what it has in memory.
    is_stale: bool,
}

/// A request for a list.
pub(crate) struct ListQuery<'a> {
    /// The field of the response that holds the items; also used in messages.
    pub(crate) name: &'a str,
    pub(crate) path: &'a str,
    pub(crate) filters: &'a [(&'a str, Option<&'a str>)],
    pub(crate) limit: Option<u32>,
}

impl Columns {
    /// Prints items as a table, or as JSON in the shape of one page. `next` is the cursor behind them if there are more.
    pub(crate) fn print(
        &self,
        name: &str,
        items: &[Value],
        next: Option<&str>,
        output: &Output,
    ) -> io::Result<Exit> {
        self.print_body(name, items, json!({ name: items, "next": next }), output)
    }

    fn print_body(&self, name: &str, items: &[Value], body: Value, output: &Output) -> io::Result<Exit> {
        if items.is_empty() && !output.json() {
            output.note(&format!("no {name}"));
            return Ok(Exit::Ok);
        }
        if !body["next"].is_null() && !output.json() {
            output.note(&format!("showing the first {}; raise --limit to see more", items.len()));
        }
        let table = || {
            let mut table = Table::new(self.headings).optional(self.optional);
            for item in items {
                table.row((self.row)(item));
            }
            table.render(output)
        };
        output.result(|| body, table)
    }
}

impl ListQuery<'_> {
    pub(crate) fn print(
        &self,
        client: &Client,
        columns: &Columns,
        output: &Output,
    ) -> Result<Exit, CliError> {
        self.print_listed(self.fetch(client)?, columns, output)
    }

    /// Prints all items in another order than the server's, or the first ones of them.
    pub(crate) fn print_sorted<K: Ord>(
        &self,
        client: &Client,
        columns: &Columns,
        key: impl Fn(&Value) -> K,
        limit: Option<u32>,
        output: &Output,
    ) -> Result<Exit, CliError> {
        let mut listed = self.fetch(client)?;
        listed.items.sort_by_key(key);
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        if listed.items.len() > limit && !output.json() {
            output.note(&format!("showing the first {limit}; raise --limit to see more"));
        }
        listed.items.truncate(limit);
        self.print_listed(listed, columns, output)
    }

    fn print_listed(&self, listed: Listed, columns: &Columns, output: &Output) -> Result<Exit, CliError> {
        let Listed { items, next, is_stale } = listed;
        let mut body = json!({ self.name: items, "next": next });
        if is_stale {
            body["stale"] = true.into();
            output.warning(
                "the server cannot reach its database: this is what it last read and has in force (stale)",
            );
        }
        Ok(columns.print_body(self.name, &items, body, output)?)
    }

    /// The first item that is wanted; pages are fetched until it is found.
    pub(crate) fn find(
        &self,
        client: &Client,
        is_wanted: impl Fn(&Value) -> bool,
    ) -> Result<Option<Value>, CliError> {
        let mut next = None;
        loop {
            let page = self.fetch_page(client, PAGE_SIZE, next.as_deref())?;
            let is_last = page.items.is_empty() || page.next.is_none() || page.next == next;
            if let Some(found) = page.items.into_iter().find(&is_wanted) {
                return Ok(Some(found));
            }
            if is_last {
                return Ok(None);
            }
            next = page.next;
        }
    }

    /// Fetches all pages.
    fn fetch(&self, client: &Client) -> Result<Listed, CliError> {
        let limit = self.limit.unwrap_or(u32::MAX) as usize;
        let mut all = Listed { items: Vec::new(), next: None, is_stale: false };
        loop {
            let page = self.fetch_page(client, limit - all.items.len(), all.next.as_deref())?;
            // A server that repeats its cursor would otherwise be queried forever.
            let is_last = page.items.is_empty() || page.next.is_none() || page.next == all.next;
            all.items.extend(page.items);
            all.next = page.next;
            all.is_stale |= page.is_stale;
            if is_last || all.items.len() >= limit {
                return Ok(all);
            }
        }
    }

    fn fetch_page(&self, client: &Client, left: usize, after: Option<&str>) -> Result<Listed, CliError> {
        let size = left.min(PAGE_SIZE).to_string();
        // A filter `after` applies to the first page only; later pages use the cursor.
        let filters = self.filters.iter().filter(|(key, _)| after.is_none() || *key != "after");
        let paging = [("limit", Some(&*size)), ("after", after)];
        let pairs: Vec<_> = filters.copied().chain(paging).collect();
        let mut body = client.get(&format!("{}{}", self.path, query(&pairs)))?.body;
        let next = body["next"].as_str().map(str::to_owned);
        let is_stale = body["stale"] == true;
        match body.get_mut(self.name).map(Value::take) {
            Some(Value::Array(items)) => Ok(Listed { items, next, is_stale }),
            _ => Err(client.missing_field(self.name).into()),
        }
    }
}
