//! `tollgate explain`: shows the rules that match and what their limits say.

use serde_json::Value;

use clap::Args;

use super::request_args::RequestArgs;
use crate::client::Precondition;
use crate::output::decision::decision;
use crate::output::format::{format_duration, format_reset, text_of};
use crate::output::table::{Cell, Table};
use crate::output::{Style, escape};
use crate::{CliError, Client, Exit, Output};

#[derive(Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// List rules that do not match, too
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(explain: &ExplainArgs, client: &Client, output: &Output) -> Result<Exit, CliError> {
    let query = if explain.all { "?all=true&limit=1000" } else { "" };
    let path = format!("/v1/rate-limit/explain{query}");
    let response = client.post(&path, &explain.request, Precondition::None)?;
    let body = &response.body;
    output.warnings(body);
    Ok(output.response(&response.text, || {
        let rules = rules(&body["rules"], body["degraded"].as_bool() == Some(true)).render(output);
        let unlisted = unlisted(body, explain.all);
        format!("{}{}\n{rules}{unlisted}", decision(body, output), account(&body["account"]))
    })?)
}

/// What the server's accounts add to the request: `account: user alice, tier gold`, and the source of an override.
fn account(account: &Value) -> String {
    let fact = |(key, name): (&str, &str)| Some(format!("{name} {}", escape(account[key].as_str()?)));
    let facts = [("user_id", "user"), ("tenant", "tenant"), ("tier", "tier")];
    let facts: Vec<String> = facts.into_iter().filter_map(fact).collect();
    let override_source = account["override"].as_str().map(|source| match source {
        "@check" => "limit override: sent with the check (@check)".to_owned(),
        "@config" => "limit override: set for this user and endpoint (@config)".to_owned(),
        "@key" => "limit override: set for the API key (@key)".to_owned(),
        "@quota" => "limit override: quota of the user (@quota)".to_owned(),
        other => format!("limit override: {}", escape(other)),
    });
    let facts = if facts.is_empty() { None } else { Some(format!("account: {}", facts.join(", "))) };
    [facts, override_source].into_iter().flatten().map(|line| line + "\n").collect()
}

/// What the table leaves out.
fn unlisted(body: &Value, all: bool) -> String {
    let more = if body["next"].is_null() { "" } else { "more rules follow on the next page of the API\n" };
    match body["unmatched"].as_u64().filter(|count| *count > 0 && !all) {
        Some(1) => format!("{more}1 rule does not match: --all lists it\n"),
        Some(count) => format!("{more}{count} rules do not match: --all lists them\n"),
        None => more.to_owned(),
    }
}

/// One row per limit; the first row of a rule also names the rule.
fn rules(rules: &Value, is_degraded: bool) -> Table {
    let headings =
        ["MATCHED", "PRIORITY", "RULE", "ACTION", "LAYER", "LIMIT", "REMAINING", "RESET", "RETRY", "WHY"];
    let mut table = Table::new(&headings).optional(&["LAYER", "PRIORITY", "MATCHED"]);
    for rule in rules.as_array().into_iter().flatten() {
        let limits = rule["limits"].as_array().map_or(&[] as &[Value], Vec::as_slice);
        let first = limits.first().map(|limit| limit_cells(limit, is_degraded));
        let first = first.unwrap_or_default().map(Cell::from);
        table.row(rule_cells(rule).into_iter().chain(first).chain([text_of(&rule["reason"]).into()]));
        for limit in limits.iter().skip(1) {
            let blank = std::iter::repeat_n("", 5).map(Cell::from);
            table.row(blank.chain(limit_cells(limit, is_degraded).map(Cell::from)));
        }
    }
    table
}

fn rule_cells(rule: &Value) -> [Cell; 5] {
    let matched = match rule["matched"].as_bool() {
        Some(true) => Cell::styled(Style::Good, "yes"),
        _ => Cell::styled(Style::Faint, "no"),
    };
    let text = |key: &str| Cell::from(text_of(&rule[key]));
    // Rules that allow or block have no layer.
    let layer = rule["layer"].as_str().filter(|layer| !layer.is_empty()).unwrap_or("-").into();
    [matched, text("priority"), text("name"), text("action"), layer]
}

fn limit_cells(limit: &Value, is_degraded: bool) -> [String; 4] {
    let window = limit["window"].as_str().map(escape);
    let window = window.or_else(|| limit["window_seconds"].as_u64().map(format_duration));
    let window = window.map(|window| format!("/{window}")).unwrap_or_default();
    let capacity = limit["capacity"].as_u64().filter(|capacity| limit["limit"].as_u64() != Some(*capacity));
    let word = if is_degraded { "share" } else { "burst" };
    let burst = capacity.map(|capacity| format!(" {word} {capacity}")).unwrap_or_default();
    let amount = format!("{}{window}{burst} {}", text_of(&limit["limit"]), text_of(&limit["strategy"]));
    let retry = limit["retry_after"].as_u64().map(format_duration);
    let reset = format_reset(&limit["reset_at"]);
    [
        amount.trim_end().to_owned(),
        text_of(&limit["remaining"]),
        reset.unwrap_or_default(),
        retry.unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::Color;

    #[test]
    fn account_facts_and_override_source_are_shown() {
        let body = json!({"user_id": "alice", "tier": "gold", "override": "@key"});
        assert_eq!(
            account(&body),
            "account: user alice, tier gold\nlimit override: set for the API key (@key)\n"
        );
        assert_eq!(account(&Value::Null), "");
    }

    #[test]
    fn limit_shows_burst_share_and_calendar_window() {
        let limit =
            json!({"limit": 60, "capacity": 20, "window": "1m", "window_seconds": 60, "strategy": "gcra"});
        assert_eq!(limit_cells(&limit, false)[0], "60/1m burst 20 gcra");
        assert_eq!(limit_cells(&limit, true)[0], "60/1m share 20 gcra");
        let month = json!({"limit": 9, "capacity": 9, "window": "month in Europe/Berlin", "window_seconds": null,
                           "strategy": "fixed_window"});
        assert_eq!(limit_cells(&month, false)[0], "9/month in Europe/Berlin fixed_window");
    }

    #[test]
    fn every_limit_has_a_row() {
        let response = json!([
            {"name": "free", "matched": true, "reason": "matches: its limits apply", "action": "reject",
             "priority": 500, "layer": "user", "limits": [
                {"limit": 10, "remaining": 0, "retry_after": 30, "reset_at": 1, "window_seconds": 60,
                 "strategy": "token_bucket"},
                {"limit": 100, "remaining": 90, "retry_after": null, "reset_at": 1, "window_seconds": 3600,
                 "strategy": "token_bucket"}]},
            {"name": "pro", "matched": false, "reason": "the tier does not match", "action": "reject",
             "priority": 600, "layer": "user", "limits": []},
        ]);
        let shown = rules(&response, false).render(&Output::new(false, Color::Never));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 4, "{shown}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(
            words(lines[1]),
            "yes 500 free reject user 10/1m token_bucket 0 now 30s matches: its limits apply"
        );
        assert_eq!(words(lines[2]), "100/1h token_bucket 90 now");
        assert_eq!(words(lines[3]), "no 600 pro reject user the tier does not match");
    }
}
