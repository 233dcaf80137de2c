//! `tollgate explain`: every rule, what became of it, and what its limits say.

use serde_json::Value;

use super::Facts;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, Style, escape};
use crate::render::{self, word};
use crate::table::{Cell, Table};

pub(crate) fn run(facts: &Facts, client: &Client, output: &Output) -> Result<Exit, Failure> {
    let answer = client.post("/v1/rate-limit/explain", facts)?;
    if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
    } else {
        output.text(&render::decision(&answer.body, output))?;
        output.text(&known(&answer.body["known"]))?;
        output.text("\n")?;
        output.text(&rules(&answer.body["rules"]).render(output))?;
    }
    Ok(Exit::Ok)
}

/// What the request did not say and the server knows: `known: user alice, tier gold; numbers of the user's own`.
fn known(known: &Value) -> String {
    let fact = |(key, name): (&str, &str)| Some(format!("{name} {}", escape(known[key].as_str()?)));
    let facts = [("user_id", "user"), ("tenant", "tenant"), ("tier", "tier")];
    let facts: Vec<String> = facts.into_iter().filter_map(fact).collect();
    let numbers = known["numbers"].as_str().map(|numbers| match numbers {
        "@check" => "the numbers are the check's own (@check)".to_owned(),
        "@config" => "the numbers are those set for this user and endpoint (@config)".to_owned(),
        "@key" => "the numbers are the key's own (@key)".to_owned(),
        "@quota" => "the numbers are the user's own (@quota)".to_owned(),
        other => format!("the numbers are {}", escape(other)),
    });
    let facts = if facts.is_empty() { None } else { Some(format!("known: {}", facts.join(", "))) };
    [facts, numbers].into_iter().flatten().map(|line| line + "\n").collect()
}

/// One row per rule and limit; the rule is named in the first of its rows.
fn rules(rules: &Value) -> Table {
    let headings =
        ["MATCHED", "PRIORITY", "RULE", "ACTION", "LAYER", "LIMIT", "REMAINING", "RESET", "RETRY", "WHY"];
    let mut table = Table::new(&headings);
    for rule in rules.as_array().into_iter().flatten() {
        let limits = rule["limits"].as_array().map_or(&[] as &[Value], Vec::as_slice);
        let [limit, remaining, reset, retry] =
            limits.first().map_or([const { String::new() }; 4], limit_cells);
        let cells = [limit, remaining, reset, retry].map(Cell::from);
        table.row(rule_cells(rule).into_iter().chain(cells).chain([word(&rule["reason"]).into()]));
        for limit in limits.iter().skip(1) {
            let blank = std::iter::repeat_n("", 5).map(Cell::from);
            table.row(blank.chain(limit_cells(limit).map(Cell::from)));
        }
    }
    table
}

fn rule_cells(rule: &Value) -> [Cell; 5] {
    let matched = match rule["matched"].as_bool() {
        Some(true) => Cell::styled(Style::Good, "yes"),
        _ => Cell::styled(Style::Faint, "no"),
    };
    let text = |key: &str| Cell::from(word(&rule[key]));
    [matched, text("priority"), text("name"), text("action"), text("layer")]
}

fn limit_cells(limit: &Value) -> [String; 4] {
    let window = limit["window_seconds"].as_u64().map(render::lasting);
    let amount = match window {
        Some(window) => format!("{}/{window} {}", word(&limit["limit"]), word(&limit["strategy"])),
        None => format!("{} {}", word(&limit["limit"]), word(&limit["strategy"])),
    };
    let retry = limit["retry_after"].as_u64().map(render::lasting);
    let reset = render::reset(&limit["reset_at"]);
    [
        amount.trim_end().to_owned(),
        word(&limit["remaining"]),
        reset.unwrap_or_default(),
        retry.unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::args::Color;

    #[test]
    fn what_is_known_and_whose_numbers_apply_is_told() {
        let body = json!({"user_id": "alice", "tier": "gold", "numbers": "@key"});
        assert_eq!(known(&body), "known: user alice, tier gold\nthe numbers are the key's own (@key)\n");
        assert_eq!(known(&Value::Null), "");
    }

    #[test]
    fn every_rule_has_a_row_and_every_limit_its_own() {
        let answer = json!([
            {"name": "free", "matched": true, "reason": "matches: its limits apply", "action": "reject",
             "priority": 500, "layer": "user", "limits": [
                {"limit": 10, "remaining": 0, "retry_after": 30, "reset_at": 1, "window_seconds": 60,
                 "strategy": "token_bucket"},
                {"limit": 100, "remaining": 90, "retry_after": null, "reset_at": 1, "window_seconds": 3600,
                 "strategy": "token_bucket"}]},
            {"name": "pro", "matched": false, "reason": "the tier does not match", "action": "reject",
             "priority": 600, "layer": "user", "limits": []},
        ]);
        let shown = rules(&answer).render(&Output::new(false, Color::Never));
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
