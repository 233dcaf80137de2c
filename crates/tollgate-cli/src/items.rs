//! What is configured on a server (rules, tiers, quotas, keys, blocks): listed, read, written and deleted alike.

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::client::{Answer, Client, ClientError, Expect};
use crate::confirm::Confirm;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, escape};
use crate::plan;
use crate::table::{Cell, Table};
use crate::url::{query, segment};

/// As much as a server puts on one page.
const PAGE: u32 = 1_000;

/// A kind of item.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rule,
    Tier,
    Quota,
    Key,
    Block,
}

impl Kind {
    /// One of them, in messages.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Kind::Rule => "rule",
            Kind::Tier => "tier",
            Kind::Quota => "quota",
            Kind::Key => "key",
            Kind::Block => "block",
        }
    }

    /// All of them, in paths and answers.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Kind::Rule => "rules",
            Kind::Tier => "tiers",
            Kind::Quota => "quotas",
            Kind::Key => "keys",
            Kind::Block => "blocks",
        }
    }

    /// What became of one of them. A block is told as what it does to the client.
    fn told(self, did: &str, id: &str) -> String {
        let id = escape(id);
        match (self, did) {
            (Kind::Block, "deleted") => format!("unblocked {id}"),
            (Kind::Block, _) => format!("blocked {id}"),
            (kind, did) => format!("{did} {} {id}", kind.noun()),
        }
    }

    fn path(self, id: &str) -> String {
        format!("/v1/admin/{}/{}", self.plural(), segment(id))
    }
}

/// How many to list.
#[derive(Args)]
pub(crate) struct Count {
    /// At most so many; all of them if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
}

/// What must hold for a write, and whether it is only tried.
#[derive(Args)]
pub(crate) struct Writing {
    /// Print what would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Only if it is still at this version, as `get` printed it
    #[arg(long, value_name = "N")]
    pub(crate) if_version: Option<u64>,
}

impl Writing {
    fn query(&self) -> &'static str {
        if self.dry_run { "?dry_run=true" } else { "" }
    }

    fn expect(&self) -> Expect {
        self.if_version.map_or(Expect::Anything, Expect::Version)
    }
}

/// How the items of a list are shown.
pub(crate) struct Columns {
    pub(crate) headings: &'static [&'static str],
    pub(crate) row: fn(&Value) -> Vec<Cell>,
}

/// A list that a server has.
pub(crate) struct List<'a> {
    /// What it is called, in answers and messages.
    pub(crate) name: &'a str,
    /// Where it is.
    pub(crate) path: &'a str,
    /// Which of its items are wanted.
    pub(crate) filters: &'a [(&'a str, Option<&'a str>)],
    /// How many of them, at most.
    pub(crate) count: Option<u32>,
}

/// What a list held, and where it goes on if there is more than was asked for.
struct Listed<T> {
    items: Vec<T>,
    next: Option<String>,
}

impl List<'_> {
    /// Prints the list: as JSON like one page of the server's, or as a table.
    pub(crate) fn print(&self, client: &Client, columns: &Columns, output: &Output) -> Result<Exit, Failure> {
        if output.json() {
            let raw = |item: Value| RawValue::from_string(item.to_string());
            let Listed { items, next } = self.follow(client, raw)?;
            let items = items.into_iter().collect::<Result<Vec<_>, _>>();
            let items = items.map_err(|error| Failure::Write(error.into()))?;
            let mut page = std::collections::BTreeMap::new();
            page.insert(self.name, Page::Items(items));
            page.insert("next", Page::Next(next));
            output.value(&page)?;
            return Ok(Exit::Ok);
        }
        let Listed { items, next } = self.follow(client, |item| (columns.row)(&item))?;
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
            output.note(&format!("the first {count}; there are more: raise --limit"));
        }
        Ok(Exit::Ok)
    }

    /// Follows the pages. Each item is boiled down by `each` as it comes: a million keys are not to be held as they
    /// were sent.
    fn follow<T>(&self, client: &Client, mut each: impl FnMut(Value) -> T) -> Result<Listed<T>, Failure> {
        let mut left = self.count.unwrap_or(u32::MAX);
        let mut listed = Listed { items: Vec::new(), next: None };
        loop {
            let (items, next) = self.page(client, left.min(PAGE), listed.next.as_deref())?;
            let got = u32::try_from(items.len()).unwrap_or(u32::MAX);
            listed.items.extend(items.into_iter().map(&mut each));
            left = left.saturating_sub(got);
            // A server that repeats itself, or has nothing and promises more, would be followed for ever.
            let stuck = got == 0 || next == listed.next;
            listed.next = next;
            if listed.next.is_none() || left == 0 || stuck {
                return Ok(listed);
            }
        }
    }

    fn page(
        &self,
        client: &Client,
        size: u32,
        after: Option<&str>,
    ) -> Result<(Vec<Value>, Option<String>), Failure> {
        let size = size.to_string();
        // Where a filter says where to begin, that is for the first page only.
        let filters = self.filters.iter().filter(|(key, _)| after.is_none() || *key != "after");
        let paging = [("limit", Some(&*size)), ("after", after)];
        let pairs: Vec<_> = filters.copied().chain(paging).collect();
        let mut answer = succeeded(client, client.get(&format!("{}{}", self.path, query(&pairs)))?)?;
        let next = answer.body["next"].as_str().map(str::to_owned);
        match answer.body.get_mut(self.name).map(Value::take) {
            Some(Value::Array(items)) => Ok((items, next)),
            _ => Err(client.no_such_list(self.name).into()),
        }
    }
}

/// The two halves of a page.
#[derive(Serialize)]
#[serde(untagged)]
enum Page {
    Items(Vec<Box<RawValue>>),
    Next(Option<String>),
}

/// Lists the items of a kind.
pub(crate) fn print_list(
    client: &Client,
    kind: Kind,
    filters: &[(&str, Option<&str>)],
    count: &Count,
    columns: &Columns,
    output: &Output,
) -> Result<Exit, Failure> {
    let path = format!("/v1/admin/{}", kind.plural());
    List { name: kind.plural(), path: &path, filters, count: count.limit }.print(client, columns, output)
}

/// One item.
pub(crate) fn get(client: &Client, kind: Kind, id: &str) -> Result<Answer, Failure> {
    Ok(succeeded(client, client.get(&kind.path(id))?)?)
}

/// Creates or replaces an item, and says which.
pub(crate) fn put(
    client: &Client,
    kind: Kind,
    id: &str,
    body: &Map<String, Value>,
    (expect, writing): (Option<Expect>, &Writing),
    output: &Output,
) -> Result<Exit, Failure> {
    let path = format!("{}{}", kind.path(id), writing.query());
    let answer = client.put(&path, body, expect.unwrap_or_else(|| writing.expect()))?;
    let answer = succeeded(client, answer)?;
    let created = answer.status == http::StatusCode::CREATED;
    let did = if created { "created" } else { "updated" };
    // Of a network there is one spelling, and the server knows it.
    let id = answer.body["client"].as_str().unwrap_or(id);
    print_written(did, kind, id, &answer, writing.dry_run, output)
}

/// Says what a write did, or would do.
pub(crate) fn print_written(
    did: &str,
    kind: Kind,
    id: &str,
    answer: &Answer,
    dry_run: bool,
    output: &Output,
) -> Result<Exit, Failure> {
    if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
    } else if dry_run {
        print_dry_run(&answer.body, output)?;
    } else {
        let version = answer.etag.as_deref().map(|etag| etag.trim_matches('"'));
        let version = version.map(|version| format!(" (version {})", escape(version))).unwrap_or_default();
        output.text(&format!("{}{version}\n", kind.told(did, id)))?;
    }
    Ok(Exit::Ok)
}

/// Deletes an item, after asking.
pub(crate) fn delete(
    client: &Client,
    kind: Kind,
    id: &str,
    (confirm, writing): (&Confirm, &Writing),
    output: &Output,
) -> Result<Exit, Failure> {
    let act = format!("delete {} {id}", kind.noun());
    if !writing.dry_run && !confirm.agreed(&act)? {
        return Ok(Exit::Refused);
    }
    remove(client, kind, id, writing, output)
}

/// Deletes an item without asking.
pub(crate) fn remove(
    client: &Client,
    kind: Kind,
    id: &str,
    writing: &Writing,
    output: &Output,
) -> Result<Exit, Failure> {
    let path = format!("{}{}", kind.path(id), writing.query());
    let answer = succeeded(client, client.delete(&path, writing.expect())?)?;
    if output.json() && answer.body.is_null() {
        output.value(&json!({ "deleted": { "kind": kind.noun(), "id": id } }))?;
    } else if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
    } else if writing.dry_run {
        print_dry_run(&answer.body, output)?;
    } else {
        output.text(&format!("{}\n", kind.told("deleted", id)))?;
    }
    Ok(Exit::Ok)
}

fn print_dry_run(body: &Value, output: &Output) -> Result<(), Failure> {
    let none = plan::Counts::of(body).total() == 0;
    let changes = plan::rendered(body, output);
    output.text(if none { "no changes\n" } else { &changes })?;
    output.note("a dry run: nothing was changed");
    Ok(())
}

/// An answer that is neither a success nor an envelope is nobody's who can be asked this.
pub(crate) fn succeeded(client: &Client, answer: Answer) -> Result<Answer, ClientError> {
    if answer.status.is_success() { Ok(answer) } else { Err(client.stranger(answer.status)) }
}
