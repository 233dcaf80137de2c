use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color as TerminalColor;
use serde_json::json;

use super::draw::draw;
use super::live::without_prefix_length;
use super::rows::List;
use super::view::{Action, OpenClient, View};
use super::*;
use crate::output::Color;

fn response() -> Value {
    json!({"window_seconds": 50, "nodes": 2, "nodes_missing": 0, "degraded": false, "requests": 1500, "refused": 30,
        "clients": [
            {"identifier": "user:alice", "tenant": "acme", "requests": 1000, "requests_error": 0, "refused": 10},
            {"identifier": "ip:192.0.2.7", "requests": 400, "requests_error": 3, "refused": 20},
            {"identifier": "user:a\u{1b}[2J", "requests": 100, "requests_error": 0, "refused": 0}],
        "most_refused": [{"identifier": "ip:192.0.2.7", "refused": 20, "refused_error": 0, "requests": null}],
        "rules": [{"rule": "per-user", "requests": 1500, "requests_error": 0, "refused": 30}],
        "endpoints": [], "refusals": [],
        "stores": {
            "counters": {"kind": "redis", "state": "up"},
            "database": {"state": "unreachable", "error": "it is \u{1b} down"},
            "records": {"state": "waiting", "error": "refused", "backlog_rows": 120, "dropped_rows": 3, "quarantined_rows": 1}}})
}

fn view() -> View {
    let mut view = View::default();
    (view.top, view.health) = (response(), json!({"status": "ready"}));
    view
}

fn press(view: &mut View, keys: &str) -> Action {
    let code = |key: char| match key {
        '\t' => KeyCode::Tab,
        '\n' => KeyCode::Enter,
        '\u{1b}' => KeyCode::Esc,
        'v' => KeyCode::Down,
        other => KeyCode::Char(other),
    };
    keys.chars()
        .map(|key| view.press(KeyEvent::new(code(key), KeyModifiers::NONE)))
        .last()
        .unwrap_or(Action::Nothing)
}

fn screen(view: &View, width: u16, height: u16, colors: bool) -> (String, bool) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view, colors)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    let has_colors = buffer.content().iter().any(|cell| cell.fg != TerminalColor::Reset);
    ((0..height).map(line).collect::<Vec<_>>().join("\n"), has_colors)
}

#[test]
fn text_form_has_all_lists() {
    let expected = "1500 requests in 50s on 2 nodes, 30 refused\n\nStores\n";
    let shown = text(&response(), &Output::new(false, Color::Never));
    assert!(shown.starts_with(expected), "{shown}");
    let lines: Vec<String> =
        shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "counters up in redis",
        "database unreachable it is \\u{1b} down",
        "records waiting 120 rows waiting, 3 dropped, 1 set aside; refused",
        "Busiest clients",
        "CLIENT TENANT REQUESTS PER SECOND REFUSED",
        "user:alice acme 1000 20.0 10",
        "ip:192.0.2.7 ~400 8.0 20",
        "user:a\\u{1b}[2J 100 2.0 0",
        "ip:192.0.2.7 - - 20",
        "RULE REQUESTS PER SECOND REFUSED",
        "per-user 1500 30.0 30",
        "none",
    ] {
        assert!(lines.iter().any(|each| each == line), "{line}: {shown}");
    }
}

#[test]
fn missing_nodes_and_an_outage_are_named() {
    let mut top = response();
    (top["nodes"], top["nodes_missing"], top["degraded"]) = (json!(1), json!(2), json!(true));
    let expected = "1500 requests in 50s on 1 node, 30 refused; counts of 2 more missing; Redis is unreachable, counts are of this node only";
    assert_eq!(summary(&top), expected);
    let of_tenant = json!({"window_seconds": 9, "nodes": 1});
    assert_eq!(summary(&of_tenant), "requests of the last 9s on 1 node");
}

#[test]
fn list_fits_80_columns_and_a_wide_terminal() {
    for (width, height) in [(80, 24), (200, 50), (20, 5)] {
        let (shown, _) = screen(&view(), width, height, true);
        if width >= 80 {
            for text in [
                "1500 requests in 50s",
                "health: ready",
                "1 Busiest clients",
                "REQUESTS*",
                "user:alice",
                "acme",
                "~400",
                "? help",
            ] {
                assert!(shown.contains(text), "{text}: {shown}");
            }
        }
        assert!(!shown.contains('\u{1b}'), "{shown}");
    }
}

#[test]
fn stores_are_shown_if_there_is_room() {
    let store = "records   waiting     120 rows waiting, 3 dropped, 1 set aside; refused";
    assert!(screen(&view(), 80, 24, true).0.contains(store));
    assert!(!screen(&view(), 80, 14, true).0.contains("120 rows"));
    let mut of_tenant = view();
    of_tenant.top["stores"] = Value::Null;
    assert!(!screen(&of_tenant, 80, 24, true).0.contains("records "));
    assert!(!text(&of_tenant.top, &Output::new(false, Color::Never)).contains("Stores"));
}

#[test]
fn nothing_is_colored_without_colors() {
    let (_, colored) = screen(&view(), 80, 24, true);
    let (_, plain) = screen(&view(), 80, 24, false);
    assert!(colored && !plain);
}

#[test]
fn keys_change_list_order_and_filter() {
    let mut view = view();
    let names = |view: &View| view.rows().into_iter().map(|row| row.name).collect::<Vec<_>>();
    assert_eq!(names(&view)[0], "user:alice");
    press(&mut view, "s");
    assert_eq!(names(&view)[0], "ip:192.0.2.7", "by refused requests");
    press(&mut view, "s");
    assert_eq!(names(&view)[1], "user:a\u{1b}[2J", "by name");
    press(&mut view, "s/ACM");
    assert_eq!((names(&view), view.is_typing), (vec!["user:alice".to_owned()], true));
    assert!(screen(&view, 80, 24, true).0.ends_with("/ACM_"));
    press(&mut view, "q\u{1b}");
    assert_eq!((names(&view).len(), view.is_typing), (3, false), "q is a letter of the filter");
    press(&mut view, "\t");
    assert_eq!((names(&view), view.list()), (vec!["ip:192.0.2.7".to_owned()], List::MostRefused));
    assert_eq!(press(&mut view, "4\n"), Action::Nothing);
    assert!(screen(&view, 80, 24, true).0.contains("no requests yet"));
    assert_eq!(press(&mut view, "\t"), Action::Nothing);
    assert_eq!(view.list(), List::Busiest);
    assert_eq!(press(&mut view, "q"), Action::Quit);
}

#[test]
fn enter_opens_a_client_and_esc_returns() {
    let mut view = view();
    let action = press(&mut view, "vv\n");
    assert_eq!(action, Action::Open { identifier: "user:a\u{1b}[2J".to_owned(), tenant: String::new() });
    assert!(screen(&view, 80, 24, true).0.contains("loading"));
    let refusal = |tenant: Option<&str>, reason: &str| {
        json!({"at": 1_800_000_000, "times": 7, "identifier": "user:alice", "tenant": tenant,
        "endpoint": "/search", "rule": "per-user", "reason": reason, "retry_after": 90})
    };
    view.open = Some(OpenClient {
        identifier: "user:alice".to_owned(),
        tenant: "acme".to_owned(),
        counters: Some("user:alice: 1 of 1 counter in use\n  per-user: 3 used".to_owned()),
        top: json!({"refusals": [refusal(Some("acme"), "over_limit"), refusal(None, "blocked")]}),
    });
    let (shown, _) = screen(&view, 100, 24, true);
    for text in [
        "user:alice of tenant acme",
        "per-user: 3 used",
        "over_limit by per-user at /search, 7 times, retry after 1m 30s",
    ] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    assert!(!shown.contains("blocked"), "of another client: {shown}");
    assert_eq!(press(&mut view, "\u{1b}"), Action::Close);
    assert!(view.open.is_none());
    assert_eq!(press(&mut view, "\u{1b}"), Action::Nothing);
    press(&mut view, "?");
    assert!(screen(&view, 80, 24, true).0.contains("this help"));
    assert_eq!((press(&mut view, "x"), view.is_help), (Action::Nothing, false));
}

#[test]
fn errors_and_causes_are_shown() {
    let mut view = view();
    view.health = json!({"status": "degraded", "store_error": "redis: connection refused"});
    assert!(screen(&view, 80, 24, true).0.contains("health: degraded: redis: connection refused"));
    view.error = Some("cannot connect".to_owned());
    assert!(screen(&view, 80, 24, true).0.contains("error: cannot connect"));
}

#[test]
fn prefix_is_inspected_by_its_address() {
    for (listed, inspected) in
        [("ip:2001:db8::/64", "ip:2001:db8::"), ("ip:192.0.2.7", "ip:192.0.2.7"), ("user:a/b", "user:a/b")]
    {
        assert_eq!(without_prefix_length(listed), inspected);
    }
}
