//! Rows as CSV (RFC 4180), safe to open in a spreadsheet.

use serde_json::Value as Json;

/// Starts of a cell that a spreadsheet would run as a formula.
const FORMULA_STARTS: [char; 6] = ['=', '+', '-', '@', '\t', '\r'];

/// Appends the line with the names of the columns.
pub(super) fn push_header(out: &mut String, columns: &[&str]) {
    out.push_str(&columns.join(","));
    out.push_str("\r\n");
}

/// Appends one row: the fields of an object in the order of the columns.
pub(super) fn push_row(out: &mut String, columns: &[&str], row: &Json) {
    for (position, column) in columns.iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        match &row[*column] {
            Json::Null => {}
            Json::String(text) => push_text(out, text),
            other => out.push_str(&other.to_string()),
        }
    }
    out.push_str("\r\n");
}

/// A text that looks like a formula gets an apostrophe in front, which spreadsheets do not show.
fn push_text(out: &mut String, text: &str) {
    let is_formula = text.starts_with(FORMULA_STARTS);
    if !is_formula && !text.contains(['"', ',', '\n', '\r']) {
        return out.push_str(text);
    }
    out.push('"');
    out.push_str(if is_formula { "'" } else { "" });
    out.push_str(&text.replace('"', "\"\""));
    out.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(text: &str) -> String {
        let mut out = String::new();
        push_row(&mut out, &["a", "b"], &json!({ "a": text, "b": 7, "c": "unlisted" }));
        out
    }

    #[test]
    fn cells_are_quoted_if_needed() {
        assert_eq!(line("plain text"), "plain text,7\r\n");
        assert_eq!(line("a,b"), "\"a,b\",7\r\n");
        assert_eq!(line("say \"hi\"\r\n"), "\"say \"\"hi\"\"\r\n\",7\r\n");
        let mut out = String::new();
        push_header(&mut out, &["a", "b"]);
        push_row(&mut out, &["a", "b"], &json!({ "a": null, "b": true }));
        assert_eq!(out, "a,b\r\n,true\r\n");
    }

    #[test]
    fn formulas_are_neutralized() {
        for formula in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"] {
            assert!(line(formula).starts_with("\"'"), "{formula}");
        }
    }
}
