//! Draws the view. Colors are those of the terminal's own palette, so that they are readable on light and dark backgrounds.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use super::rows::{LISTS, List, rate};
use super::stores::{StoreRow, stores};
use super::view::{OpenClient, Sort, View};
use super::{client_text, summary};
use crate::output::escape;
use crate::output::format::{format_duration, format_time, text_of};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
/// Terminals with fewer lines show no stores.
const STORES_HEIGHT_MIN: u16 = 15;
const KEYS: &str = "q quit  tab list  s sort  / filter  enter open  ? help";
const HELP: &str = "\
q, ctrl-c     quit
tab, 1 to 4   next list: busiest, most refused, rules, endpoints
up, down      select a row (also j and k, home and end)
s             sort by count, refused requests or name
/             filter by a part of the name or tenant; enter keeps, esc clears it
enter         open the selected client: its counters and latest refusals
esc           back
?             this help

Counts are of the last 45 to 60 seconds. ~ marks a count that may be too high.";

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, colors: bool) {
    let stores = store_lines(view, frame.area(), colors);
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(u16::try_from(stores.len()).unwrap_or(0)),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ]);
    let [head, pane, tabs, body, foot] = areas.areas(frame.area());
    draw_head(frame, head, view, colors);
    frame.render_widget(Paragraph::new(stores), pane);
    frame.render_widget(tabs_line(view), tabs);
    if view.is_help {
        frame.render_widget(Paragraph::new(HELP).wrap(Wrap { trim: false }), body);
    } else if let Some(open) = &view.open {
        frame.render_widget(Paragraph::new(client_lines(open, colors)).wrap(Wrap { trim: false }), body);
    } else {
        draw_list(frame, body, view, colors);
    }
    let keys = if view.open.is_some() { "esc back  q quit  ? help" } else { KEYS };
    let foot_text = if view.is_typing { format!("/{}_", escape(&view.filter)) } else { keys.to_owned() };
    frame.render_widget(Line::from(foot_text), foot);
}

fn in_color(colors: bool, color: Color) -> Style {
    if colors { Style::new().fg(color) } else { BOLD }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, view: &View, colors: bool) {
    let totals = if view.top.is_null() { "waiting for the server".to_owned() } else { summary(&view.top) };
    let (state, is_fine) = match (&view.error, text_of(&view.health["status"])) {
        (Some(error), _) => (format!("error: {}", escape(error)), false),
        (None, status) => (health_text(view, &status), status == "ready"),
    };
    let style = in_color(colors, if is_fine { Color::Green } else { Color::Red });
    let lines = vec![Line::from(totals), Line::from(Span::styled(state, style))];
    frame.render_widget(Paragraph::new(lines), area);
}

/// `store: ready`, or what is wrong.
fn health_text(view: &View, status: &str) -> String {
    let causes = ["store_error", "database_error", "config_error", "data_dir_error", "records_error"];
    let cause = causes
        .iter()
        .find_map(|name| view.health[*name].as_str())
        .map(|cause| format!(": {}", escape(cause)));
    format!("health: {}{}", escape(status), cause.unwrap_or_default())
}

/// A line for each store, if the terminal is high enough.
fn store_lines(view: &View, area: Rect, colors: bool) -> Vec<Line<'static>> {
    if area.height < STORES_HEIGHT_MIN {
        return Vec::new();
    }
    let line = |store: StoreRow| {
        let state = if store.is_up() { Style::new() } else { in_color(colors, Color::Red) };
        Line::from(vec![
            Span::raw(format!("{:<9} ", store.name)),
            Span::styled(format!("{:<12}", escape(&store.state)), state),
            Span::raw(escape(&store.detail)),
        ])
    };
    stores(&view.top).into_iter().map(line).collect()
}

fn tabs_line(view: &View) -> Line<'static> {
    let tab = |(number, list): (usize, &List)| {
        let is_current = *list == view.list();
        let style = if is_current { BOLD.add_modifier(Modifier::REVERSED) } else { Style::new() };
        [Span::styled(format!(" {} {} ", number + 1, list.title()), style), Span::raw(" ")]
    };
    Line::from(LISTS.iter().enumerate().flat_map(tab).collect::<Vec<_>>())
}

fn draw_list(frame: &mut Frame<'_>, area: Rect, view: &View, colors: bool) {
    let list = view.list();
    let rows = view.rows();
    if rows.is_empty() {
        let text = if view.filter.is_empty() {
            "no requests yet"
        } else {
            "nothing matches the filter; esc clears it"
        };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let heading = |heading: &'static str| {
        let is_sorted = match view.sort {
            Sort::Count => heading == if list == List::MostRefused { "REFUSED" } else { "REQUESTS" },
            Sort::Refused => heading == "REFUSED",
            Sort::Name => heading == list.name_heading(),
        };
        Cell::from(if is_sorted { format!("{heading}*") } else { heading.to_owned() })
    };
    let cells = |row: &super::rows::Row| {
        let refused = if row.refused > 0 { in_color(colors, Color::Red) } else { Style::new() };
        let tenant = list.has_tenants().then(|| Cell::from(escape(&row.tenant)));
        let numbers = [Cell::from(row.requests_text()), Cell::from(rate(row.requests, &view.top))];
        let refused = Cell::from(Span::styled(row.refused.to_string(), refused));
        Row::new([Cell::from(escape(&row.name))].into_iter().chain(tenant).chain(numbers).chain([refused]))
    };
    let tenant = list.has_tenants().then_some(Constraint::Fill(1));
    let widths = [Constraint::Fill(3)].into_iter().chain(tenant);
    let widths = widths.chain([Constraint::Length(11), Constraint::Length(11), Constraint::Length(10)]);
    let table = Table::new(rows.iter().map(cells), widths)
        .header(Row::new(list.headings().into_iter().map(heading)).style(BOLD))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(view.selected);
    frame.render_stateful_widget(table, area, &mut state);
}

/// The counters and the latest refusals of one client.
fn client_lines(open: &OpenClient, colors: bool) -> Vec<Line<'static>> {
    let mut lines =
        vec![Line::from(Span::styled(client_text(&open.identifier, &open.tenant), BOLD)), Line::default()];
    match &open.counters {
        None => lines.push(Line::from("loading")),
        Some(text) => lines.extend(text.lines().map(|line| Line::from(line.to_owned()))),
    }
    let refusals = open.top["refusals"].as_array().into_iter().flatten();
    let refusals: Vec<_> = refusals.filter(|refusal| text_of(&refusal["tenant"]) == open.tenant).collect();
    lines.extend([Line::default(), Line::from(Span::styled("Latest refusals", BOLD))]);
    if refusals.is_empty() {
        lines.push(Line::from("  none"));
    }
    for refusal in refusals {
        let text = |key: &str| escape(&text_of(&refusal[key]));
        let rule = refusal["rule"].as_str().map(|rule| format!(" by {}", escape(rule))).unwrap_or_default();
        let wait =
            refusal["retry_after"].as_u64().map(|wait| format!(", retry after {}", format_duration(wait)));
        let reason = Span::styled(text("reason"), in_color(colors, Color::Red));
        let rest =
            format!("{rule} at {}, {} times{}", text("endpoint"), text("times"), wait.unwrap_or_default());
        lines.push(Line::from(vec![
            Span::raw(format!("  {} ", format_time(&refusal["at"]))),
            reason,
            Span::raw(rest),
        ]));
    }
    lines
}
