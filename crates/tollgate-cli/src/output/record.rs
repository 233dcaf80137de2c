//! One item, a line for each field.

use serde_json::Value;

use super::Style;
use super::format::{format_time, joined};
use super::table::{Cell, Table};

/// The fields of a record in two columns, those of `order` first. Null fields are left out.
pub(crate) fn field_table(record: &Value, order: &[&str]) -> Table {
    let mut table = Table::without_headings();
    let Some(record) = record.as_object() else { return table };
    let rest = record.keys().map(String::as_str).filter(|key| !order.contains(key));
    for key in order.iter().copied().chain(rest) {
        let text = record.get(key).map(|value| format_field(key, value)).unwrap_or_default();
        if !text.is_empty() {
            table.row([Cell::styled(Style::Heading, key), Cell::from(text)]);
        }
    }
    table
}

fn format_field(key: &str, value: &Value) -> String {
    let is_time = key.ends_with("_at") || key.ends_with("until");
    if is_time { format_time(value) } else { joined(value, ", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::{Color, Output};

    #[test]
    fn given_fields_come_first_in_two_columns() {
        let record = json!({"a": null, "id": "k", "scopes": ["check", "read"], "expires_at": 1, "until": "x", "empty": []});
        let shown = field_table(&record, &["until", "id", "gone"]).render(&Output::new(false, Color::Never));
        assert_eq!(
            shown,
            "until       x\nid          k\nexpires_at  1970-01-01T00:00:01Z\nscopes      check, read\n"
        );
    }
}
