//! The stores of a response as rows.

use serde_json::Value;

use crate::output::format::text_of;

/// One store of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoreRow {
    pub(super) name: &'static str,
    /// `up`, or what it is instead.
    pub(super) state: String,
    /// Its kind or backlog, and what is wrong.
    pub(super) detail: String,
}

impl StoreRow {
    pub(super) fn is_up(&self) -> bool {
        self.state == "up"
    }
}

/// Empty if the caller is bound to a tenant.
pub(super) fn stores(top: &Value) -> Vec<StoreRow> {
    let stores = &top["stores"];
    if stores.is_null() {
        return Vec::new();
    }
    let row = |name: &'static str, facts: Option<String>| {
        let error = stores[name]["error"].as_str().map(str::to_owned);
        let detail: Vec<String> = facts.into_iter().chain(error).collect();
        StoreRow { name, state: text_of(&stores[name]["state"]), detail: detail.join("; ") }
    };
    vec![
        row("counters", Some(format!("in {}", text_of(&stores["counters"]["kind"])))),
        row("database", None),
        row("records", Some(backlog(&stores["records"]))),
    ]
}

/// `120 rows waiting, 3 dropped, 1 set aside`.
fn backlog(records: &Value) -> String {
    let count = |key: &str| records[key].as_u64().unwrap_or(0);
    let mut text = format!("{} rows waiting, {} dropped", count("backlog_rows"), count("dropped_rows"));
    if count("quarantined_rows") > 0 {
        text.extend([", ", &count("quarantined_rows").to_string(), " set aside"]);
    }
    text
}
