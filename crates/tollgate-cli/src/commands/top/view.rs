//! The state of the live view, and what each key does to it. Nothing in here knows the terminal.

use std::cmp::Reverse;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;

use super::rows::{LISTS, List, Row};

/// What the list is sorted by.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// As the server sends it.
    #[default]
    Count,
    Refused,
    Name,
}

/// What the caller does after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Quit,
    /// Load the counters and refusals of a client.
    Open {
        identifier: String,
        tenant: String,
    },
    /// No client is opened any more.
    Close,
}

/// An opened client.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenClient {
    pub(super) identifier: String,
    pub(super) tenant: String,
    /// Lines of `tollgate inspect`, once loaded.
    pub(super) counters: Option<String>,
    /// The response of `/v1/admin/top` about it, once loaded.
    pub(super) top: Value,
}

/// Everything that is shown.
#[derive(Default)]
pub(super) struct View {
    /// The last response; null before the first.
    pub(super) top: Value,
    /// The last response of `/readyz`.
    pub(super) health: Value,
    /// Why the last request failed.
    pub(super) error: Option<String>,
    /// The position of the list in [`LISTS`].
    list: usize,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    pub(super) selected: usize,
    pub(super) open: Option<OpenClient>,
    pub(super) is_help: bool,
}

impl View {
    pub(super) fn list(&self) -> List {
        LISTS[self.list]
    }

    /// The rows of the current list that match the filter, sorted.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = self.list().rows(&self.top);
        let wanted = self.filter.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        rows.retain(|row| has(&row.name) || has(&row.tenant));
        match self.sort {
            Sort::Count => {}
            Sort::Refused => rows.sort_by_key(|row| Reverse(row.refused)),
            Sort::Name => {
                rows.sort_by(|one, other| (&one.name, &one.tenant).cmp(&(&other.name, &other.tenant)));
            }
        }
        rows
    }

    /// Applies a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Action::Nothing;
        }
        if self.is_help {
            self.is_help = false;
            return if key.code == KeyCode::Char('q') { Action::Quit } else { Action::Nothing };
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('?') => self.is_help = true,
            KeyCode::Esc | KeyCode::Backspace if self.open.is_some() => {
                self.open = None;
                return Action::Close;
            }
            KeyCode::Esc => self.set_filter(String::new()),
            _ if self.open.is_some() => {}
            KeyCode::Tab | KeyCode::Right => self.show_list(self.list + 1),
            KeyCode::BackTab | KeyCode::Left => self.show_list(self.list + LISTS.len() - 1),
            KeyCode::Char(digit @ '1'..='4') => self.show_list(usize::from(digit as u8 - b'1')),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected += 1,
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = usize::MAX,
            KeyCode::Enter => return self.open_selected(),
            _ => {}
        }
        self.clamp_selection();
        Action::Nothing
    }

    /// Keeps the selection on a row.
    pub(super) fn clamp_selection(&mut self) {
        self.selected = self.selected.min(self.rows().len().saturating_sub(1));
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.selected = 0;
    }

    fn set_filter(&mut self, filter: String) {
        (self.filter, self.selected) = (filter, 0);
    }

    fn show_list(&mut self, list: usize) {
        (self.list, self.selected) = (list % LISTS.len(), 0);
    }

    fn sort_by_next(&mut self) {
        self.sort = match self.sort {
            Sort::Count => Sort::Refused,
            Sort::Refused => Sort::Name,
            Sort::Name => Sort::Count,
        };
        self.selected = 0;
    }

    fn open_selected(&mut self) -> Action {
        if !self.list().has_tenants() {
            return Action::Nothing;
        }
        let Some(row) = self.rows().into_iter().nth(self.selected) else { return Action::Nothing };
        let (identifier, tenant) = (row.name, row.tenant);
        let open =
            OpenClient { identifier: identifier.clone(), tenant: tenant.clone(), ..OpenClient::default() };
        self.open = Some(open);
        Action::Open { identifier, tenant }
    }
}
