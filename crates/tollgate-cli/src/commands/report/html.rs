//! The page of a report. Everything in it is escaped; it loads nothing.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::Value;

use super::chart::{self, Series};
use crate::output::format::{format_time, text_of};

const STYLE: &str = include_str!("report.css");
/// Longer times have their date in the labels only.
const PERIODS_MAX: usize = 5_000;

/// The whole page.
pub(super) fn page(data: &Value) -> String {
    let (since, until) = (format_time(&data["since"]), format_time(&data["until"]));
    let tenant = data["tenant"].as_str().map(|tenant| format!(" · tenant {tenant}")).unwrap_or_default();
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>tollgate report {since}</title><style>{STYLE}</style></head><body><main><h1>Rate limiting report</h1>\
         <p class=\"faint\">{}</p>",
        escaped(&format!("{since} to {until}, by {}{tenant}", text_of(&data["per"])))
    );
    let points = Points::new(data);
    out.push_str(&numbers(&points));
    let _ = write!(out, "<section><h2>Requests</h2>{}</section>", requests_chart(&points));
    let _ = write!(out, "<section><h2>Time to decide</h2>{}</section>", latency_chart(&points));
    out.push_str("<div class=\"columns\">");
    for (title, list, heading) in [
        ("Busiest clients", &data["clients"], "Client"),
        ("Most refused clients", &data["refused_clients"], "Client"),
        ("Routes", &data["routes"], "Route"),
        ("Rules", &data["rules"], "Rule"),
    ] {
        let _ = write!(out, "<section><h2>{title}</h2>{}</section>", ranking(list, heading));
    }
    let _ =
        write!(out, "</div><section><h2>Refused by route</h2>{}</section>", violations(&data["violations"]));
    out.push_str("</main></body></html>\n");
    out
}

/// The periods of a report, including those without requests.
struct Points<'a> {
    labels: Vec<String>,
    /// `None` without requests.
    points: Vec<Option<&'a Value>>,
}

impl<'a> Points<'a> {
    fn new(data: &'a Value) -> Self {
        let second = |value: &Value| Some(value.as_str()?.parse::<Timestamp>().ok()?.as_second());
        let (step, form) = match data["per"].as_str() {
            Some("day") => (86_400, "%b %d"),
            Some("hour") => (3_600, "%b %d %H:00"),
            _ => (60, "%H:%M"),
        };
        let (since, until) = (second(&data["since"]).unwrap_or(0), second(&data["until"]).unwrap_or(0));
        let mut given = data["points"].as_array().into_iter().flatten().peekable();
        let (mut labels, mut points) = (Vec::new(), Vec::new());
        let mut start = since - since.rem_euclid(step);
        while start < until && labels.len() < PERIODS_MAX {
            let time = Timestamp::from_second(start).unwrap_or_default();
            labels.push(time.strftime(form).to_string());
            points.push(given.next_if(|point| second(&point["start"]) <= Some(start)));
            start += step;
        }
        Points { labels, points }
    }

    fn values(&self, field: &str) -> Vec<u64> {
        let value = |point: Option<&Value>| point.and_then(|point| point[field].as_u64()).unwrap_or(0);
        self.points.iter().copied().map(value).collect()
    }

    fn sum(&self, field: &str) -> u64 {
        self.values(field).into_iter().fold(0, u64::saturating_add)
    }
}

/// The sums of the whole time.
fn numbers(points: &Points<'_>) -> String {
    let requests = points.sum("requests");
    let (hits, misses) = (points.sum("cache_hits"), points.sum("cache_misses"));
    let highest = points.values("latency_p99_us").into_iter().max().filter(|highest| *highest > 0);
    let cards = [
        ("requests", grouped(requests)),
        ("admitted", percent(points.sum("allowed"), requests)),
        ("refused by limits", grouped(points.sum("throttled"))),
        ("refused by blocks", grouped(points.sum("blocked"))),
        ("highest p99", highest.map_or_else(|| "–".to_owned(), |highest| format!("{} µs", grouped(highest)))),
        ("decided without the store", percent(hits, hits.saturating_add(misses))),
    ];
    let mut out = String::from("<div class=\"numbers\">");
    for (name, value) in cards {
        let _ = write!(out, "<section><b>{value}</b><span>{name}</span></section>");
    }
    out.push_str("</div>");
    out
}

fn requests_chart(points: &Points<'_>) -> String {
    let series =
        [("allowed", "admitted"), ("throttled", "refused by limits"), ("blocked", "refused by blocks")]
            .map(|(class, name)| Series { class, name, values: points.values(class) });
    chart::bars(&points.labels, &series, "")
}

fn latency_chart(points: &Points<'_>) -> String {
    let series = [("p50", "latency_p50_us"), ("p95", "latency_p95_us"), ("p99", "latency_p99_us")]
        .map(|(class, field)| Series { class, name: class, values: points.values(field) });
    chart::lines(&points.labels, &series, " µs")
}

/// A ranking with a bar for the share of refused requests.
fn ranking(entries: &Value, heading: &str) -> String {
    let entries: Vec<&Value> = entries.as_array().into_iter().flatten().collect();
    let largest = entries.iter().filter_map(|entry| entry["requests"].as_u64()).max().unwrap_or(0);
    let rows = entries.iter().map(|entry| {
        let (allowed, refused) = (number(entry, "allowed"), number(entry, "refused"));
        let tenant = entry["tenant"].as_str().map(|tenant| format!(" ({tenant})")).unwrap_or_default();
        let name = entry["name"].as_str().unwrap_or("(no rule)");
        let bar = format!(
            "<div class=\"bar\"><i class=\"allowed\" style=\"width:{}\"></i><i class=\"throttled\" style=\"width:{}\"></i></div>",
            width(allowed, largest),
            width(refused, largest)
        );
        let cells = [grouped(allowed.saturating_add(refused)), grouped(refused)];
        (format!("{}{bar}", escaped(&format!("{name}{tenant}"))), cells.to_vec())
    });
    table(&[heading, "Requests", "Refused"], rows.collect())
}

fn violations(entries: &Value) -> String {
    let rows = entries.as_array().into_iter().flatten().map(|entry| {
        let tenant = entry["tenant"].as_str().map(|tenant| format!(" ({tenant})")).unwrap_or_default();
        let client = format!("{}{tenant}", text_of(&entry["identifier"]));
        let name = format!(
            "{}<br><span class=\"faint\">{}</span>",
            escaped(&client),
            escaped(&text_of(&entry["route"]))
        );
        let limit = entry["limit"].as_u64().map(grouped).unwrap_or_default();
        let cells = vec![
            grouped(number(entry, "requests")),
            grouped(number(entry, "refused")),
            limit,
            grouped(number(entry, "minutes")),
            escaped(&format_time(&entry["last_at"])),
        ];
        (name, cells)
    });
    table(&["Client and route", "Requests", "Refused", "Limit", "Minutes", "Last"], rows.collect())
}

/// A table whose first column is text. Cells are HTML.
fn table(headings: &[&str], rows: Vec<(String, Vec<String>)>) -> String {
    if rows.is_empty() {
        return "<p class=\"faint\">None in this time.</p>".to_owned();
    }
    let mut out = String::from("<div class=\"scroll\"><table><tr>");
    for (position, heading) in headings.iter().enumerate() {
        let class = if position == 0 { "" } else { " class=\"n\"" };
        let _ = write!(out, "<th{class}>{heading}</th>");
    }
    out.push_str("</tr>");
    for (name, cells) in rows {
        let _ = write!(out, "<tr><td>{name}</td>");
        for cell in cells {
            let _ = write!(out, "<td class=\"n\">{cell}</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div>");
    out
}

fn number(entry: &Value, field: &str) -> u64 {
    entry[field].as_u64().unwrap_or(0)
}

fn width(part: u64, of: u64) -> String {
    let tenths = u128::from(part) * 1_000 / u128::from(of.max(1));
    format!("{}.{}%", tenths / 10, tenths % 10)
}

fn percent(part: u64, of: u64) -> String {
    if of == 0 { "–".to_owned() } else { width(part, of) }
}

/// A number with groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A round number as a short label: `20k`, `5M`.
pub(super) fn compact(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..10_000_000 => format!("{}k", number / 1_000),
        10_000_000..10_000_000_000 => format!("{}M", number / 1_000_000),
        _ => format!("{}G", number / 1_000_000_000),
    }
}

/// The text as HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn periods_without_requests_are_shown() {
        let data = json!({
            "since": "2027-01-31T10:30:00Z", "until": "2027-01-31T13:10:00Z", "per": "hour",
            "points": [{"start": "2027-01-31T10:00:00Z", "requests": 3}, {"start": "2027-01-31T12:00:00Z", "requests": 4}],
        });
        let points = Points::new(&data);
        assert_eq!(points.labels, ["Jan 31 10:00", "Jan 31 11:00", "Jan 31 12:00", "Jan 31 13:00"]);
        assert_eq!(points.values("requests"), [3, 0, 4, 0]);
    }

    #[test]
    fn names_of_clients_cannot_inject_markup() {
        let evil = "<script>alert(1)</script>\"'";
        let entry = json!({"name": evil, "tenant": evil, "identifier": evil, "route": evil, "requests": 1});
        let data = json!({
            "since": "2027-01-31T10:00:00Z", "until": "2027-01-31T11:00:00Z", "per": evil, "tenant": evil,
            "points": [], "clients": [entry], "rules": [entry], "violations": [entry],
        });
        let page = page(&data);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "{page}");
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([100, 20_000, 50_000_000].map(compact), ["100", "20k", "50M"]);
        assert_eq!((percent(1, 3), percent(0, 0)), ("33.3%".to_owned(), "–".to_owned()));
    }
}
