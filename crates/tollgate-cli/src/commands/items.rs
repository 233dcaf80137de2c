//! List, get, put and delete, the same for rules, tiers, quotas, keys and blocks.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::list::{Columns, LimitArg, ListQuery};
use crate::client::url::{query, segment};
use crate::client::{ApiResponse, Precondition};
use crate::input::confirm::ConfirmArgs;
use crate::input::item_file::{ItemFile, without_server_fields};
use crate::item_kind::ItemKind;
use crate::output::changes;
use crate::output::escape;
use crate::output::format::{format_time, text_of};
use crate::output::record::field_table;
use crate::output::toml;
use crate::{CliError, Client, Exit, Output};

/// The name of an item.
#[derive(Args)]
pub(crate) struct NameArg {
    /// Name
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: String,
}

/// The user of a quota.
#[derive(Args, Serialize)]
pub(crate) struct UserArg {
    /// User id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    #[serde(rename = "user_id")]
    pub(crate) user: String,
}

/// The tenant of an item.
#[derive(Args, Serialize)]
pub(crate) struct TenantArg {
    /// Tenant (organization) that it belongs to
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) tenant: Option<String>,
}

/// The flag for a trial run.
#[derive(Args)]
pub(crate) struct DryRunArg {
    /// Print the changes without applying them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl DryRunArg {
    pub(crate) fn query(&self) -> &'static str {
        if self.dry_run { "?dry_run=true" } else { "" }
    }
}

/// The flags of every write.
#[derive(Args)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    pub(crate) dry: DryRunArg,
    /// Write only if the item is still at this version, as printed by `get`
    #[arg(long, value_name = "N")]
    pub(crate) if_version: Option<u64>,
}

#[derive(Args)]
pub(crate) struct PutArgs {
    /// Fail if it already exists
    #[arg(long, conflicts_with = "if_version")]
    create: bool,
    #[command(flatten)]
    write: WriteArgs,
}

#[derive(Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    write: WriteArgs,
}

/// The items of one kind on a server.
pub(crate) struct Items<'a> {
    pub(crate) kind: ItemKind,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) client: &'a Client,
    pub(crate) output: &'a Output,
}

impl Items<'_> {
    /// The path of an item, or of an action on it, with the query.
    fn path(&self, id: &str, action: &str, dry: Option<&DryRunArg>) -> String {
        format!("/v1/admin/{}/{}{action}{}", self.kind.plural(), segment(id), self.query(dry))
    }

    fn query(&self, dry: Option<&DryRunArg>) -> String {
        let dry_run = dry.filter(|dry| dry.dry_run).map(|_| "true");
        query(&[("dry_run", dry_run), ("tenant", self.tenant)])
    }

    /// Prints all items that match the filters.
    pub(crate) fn list(
        &self,
        filters: &[(&str, Option<&str>)],
        limit: &LimitArg,
        columns: &Columns,
    ) -> Result<Exit, CliError> {
        let path = format!("/v1/admin/{}", self.kind.plural());
        let query = ListQuery { name: self.kind.plural(), path: &path, filters, limit: limit.limit };
        query.print(self.client, columns, self.output)
    }

    /// Fetches one item.
    pub(crate) fn get(&self, id: &str) -> Result<ApiResponse, CliError> {
        Ok(self.client.get(&self.path(id, "", None))?)
    }

    /// Prints one item as a list of fields, those of `order` first.
    pub(crate) fn print_fields(&self, id: &str, order: &[&str]) -> Result<Exit, CliError> {
        let response = self.get(id)?;
        let fields = || field_table(&response.body, order).render(self.output);
        Ok(self.output.response(&response.text, fields)?)
    }

    /// Prints one item as the TOML that `put` and `apply` accept.
    pub(crate) fn print_toml(&self, id: &str) -> Result<Exit, CliError> {
        let response = self.get(id)?;
        Ok(self.output.response(&response.text, || {
            let item = response.body.as_object().cloned().unwrap_or_default();
            let entry = toml::entry(self.kind.plural(), &without_server_fields(item).0);
            format!("{}{entry}", origin_comment(&response.body))
        })?)
    }

    /// Creates or replaces the item of a file or of flags.
    pub(crate) fn put_item(&self, item: &ItemFile, put: &PutArgs) -> Result<Exit, CliError> {
        let version = item.version.filter(|_| put.write.if_version.is_none());
        let precondition = match version {
            _ if put.create => Precondition::Absent,
            Some(version) => Precondition::Version(version),
            None => put.write.precondition(),
        };
        self.put(&item.name, &item.body, precondition, &put.write.dry)
    }

    /// Creates or replaces an item.
    pub(crate) fn write(
        &self,
        id: &str,
        body: &Map<String, Value>,
        precondition: Precondition,
        dry: &DryRunArg,
    ) -> Result<ApiResponse, CliError> {
        let path = self.path(id, "", Some(dry));
        Ok(self.client.put(&path, body, precondition)?)
    }

    /// Creates or replaces an item, and reports which.
    pub(crate) fn put(
        &self,
        id: &str,
        body: &Map<String, Value>,
        precondition: Precondition,
        dry: &DryRunArg,
    ) -> Result<Exit, CliError> {
        let response = self.write(id, body, precondition, dry)?;
        let created = response.status == http::StatusCode::CREATED;
        // The server normalizes the id of a blocked network.
        let id = response.body["client"].as_str().unwrap_or(id);
        self.report_written(if created { "created" } else { "updated" }, id, &response, dry)
    }

    /// Runs an action of an item, such as `revoke`.
    pub(crate) fn post_action(
        &self,
        id: &str,
        action: &str,
        body: &Value,
        dry: &DryRunArg,
    ) -> Result<ApiResponse, CliError> {
        let path = self.path(id, &format!("/{action}"), Some(dry));
        Ok(self.client.post(&path, body, Precondition::None)?)
    }

    /// Creates an item whose id the server chooses.
    pub(crate) fn create(&self, body: &impl Serialize, dry: &DryRunArg) -> Result<ApiResponse, CliError> {
        let path = format!("/v1/admin/{}{}", self.kind.plural(), self.query(Some(dry)));
        Ok(self.client.post(&path, body, Precondition::None)?)
    }

    /// Reports what a write did, or with `--dry-run` would do.
    pub(crate) fn report_written(
        &self,
        action: &str,
        id: &str,
        response: &ApiResponse,
        dry: &DryRunArg,
    ) -> Result<Exit, CliError> {
        self.output.warnings(&response.body);
        Ok(self.output.response(&response.text, || {
            let version = response.version().map(|version| format!(" (version {})", escape(version)));
            let done = || format!("{}{}\n", self.done(action, id), version.unwrap_or_default());
            changes::dry_run_or(dry.dry_run, &response.body, self.output, done)
        })?)
    }

    /// Deletes an item after a confirmation.
    pub(crate) fn delete(&self, id: &str, delete: &DeleteArgs) -> Result<Exit, CliError> {
        let action = format!("delete {} {id}", self.kind.noun());
        if !delete.write.dry.dry_run && !delete.confirm.confirmed(&action)? {
            return Ok(Exit::Refused);
        }
        self.delete_unconfirmed(id, &delete.write)
    }

    /// Deletes an item without a confirmation.
    pub(crate) fn delete_unconfirmed(&self, id: &str, write: &WriteArgs) -> Result<Exit, CliError> {
        let path = self.path(id, "", Some(&write.dry));
        let mut response = self.client.delete(&path, write.precondition())?;
        if response.body.is_null() {
            response.text = format!("{:#}", json!({ "deleted": { "kind": self.kind.noun(), "id": id } }));
        }
        let done = || format!("{}\n", self.done("deleted", id));
        Ok(self.output.response(&response.text, || {
            changes::dry_run_or(write.dry.dry_run, &response.body, self.output, done)
        })?)
    }

    /// `created rule a`; for blocks `blocked user:alice`.
    fn done(&self, action: &str, id: &str) -> String {
        let id = escape(id);
        match (self.kind, action) {
            (ItemKind::Block, "deleted") => format!("unblocked {id}"),
            (ItemKind::Block, _) => format!("blocked {id}"),
            (kind, action) => format!("{action} {} {id}", kind.noun()),
        }
    }
}

impl WriteArgs {
    pub(crate) fn precondition(&self) -> Precondition {
        self.if_version.map_or(Precondition::None, Precondition::Version)
    }
}

/// `# source: database, version 7, created by admin, updated 2026-01-01T00:00:00Z`.
fn origin_comment(body: &Value) -> String {
    let field = |key: &str| Some(text_of(&body[key])).filter(|text| !text.is_empty());
    let updated = Some(format_time(&body["updated_at"])).filter(|at| !at.is_empty());
    let parts = [
        field("source").map(|source| match &*source {
            "built-in" => "built-in default, not configured".to_owned(),
            source => format!("source: {source}"),
        }),
        field("version").map(|version| format!("version {version}")),
        field("created_by").map(|by| format!("created by {by}")),
        updated.map(|at| format!("updated {at}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!("# {}\n", escape(&parts.join(", "))) }
}
