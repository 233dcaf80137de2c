//! One thing the server knows, a line for each fact.

use serde_json::Value;

use crate::client::Answer;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::moment;
use crate::output::{Output, Style};
use crate::render::word;
use crate::table::{Cell, Table};

/// Prints an answer: as it came with `--json`, else its facts, those of `order` first. What is null is left out.
pub(crate) fn print_record(answer: &Answer, order: &[&str], output: &Output) -> Result<Exit, Failure> {
    if output.json() {
        output.text(&format!("{}\n", answer.text.trim_end()))?;
    } else {
        output.text(&facts(&answer.body, order).render(output))?;
    }
    Ok(Exit::Ok)
}

/// The facts of a record in two columns.
pub(crate) fn facts(record: &Value, order: &[&str]) -> Table {
    let mut table = Table::plain();
    let Some(record) = record.as_object() else { return table };
    let rest = record.keys().map(String::as_str).filter(|key| !order.contains(key));
    for key in order.iter().copied().chain(rest) {
        let told = record.get(key).map(|value| fact(key, value)).unwrap_or_default();
        if !told.is_empty() {
            table.row([Cell::styled(Style::Heading, key), Cell::from(told)]);
        }
    }
    table
}

fn fact(key: &str, value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(word).collect::<Vec<_>>().join(", "),
        value if key.ends_with("_at") || key.ends_with("until") => moment::told(value),
        value => word(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::args::Color;

    #[test]
    fn facts_stand_in_two_columns_the_wanted_ones_first() {
        let record = json!({"a": null, "id": "k", "scopes": ["check", "read"], "expires_at": 1, "until": "x", "empty": []});
        let shown = facts(&record, &["until", "id", "gone"]).render(&Output::new(false, Color::Never));
        assert_eq!(
            shown,
            "until       x\nid          k\nexpires_at  1970-01-01T00:00:01Z\nscopes      check, read\n"
        );
    }
}
