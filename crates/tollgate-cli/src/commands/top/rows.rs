//! The lists of a response as rows.

use serde_json::Value;

use crate::output::format::text_of;

/// A list of the response.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum List {
    Busiest,
    MostRefused,
    Rules,
    Endpoints,
}

pub(super) const LISTS: [List; 4] = [List::Busiest, List::MostRefused, List::Rules, List::Endpoints];

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) tenant: String,
    /// None if the client is not among the busiest.
    pub(super) requests: Option<u64>,
    pub(super) refused: u64,
    /// How much less the count may be.
    pub(super) error: u64,
}

impl List {
    pub(super) fn title(self) -> &'static str {
        match self {
            List::Busiest => "Busiest clients",
            List::MostRefused => "Most refused clients",
            List::Rules => "Rules",
            List::Endpoints => "Endpoints",
        }
    }

    /// The field of the response, and that of the name in an entry.
    fn fields(self) -> (&'static str, &'static str) {
        match self {
            List::Busiest => ("clients", "identifier"),
            List::MostRefused => ("most_refused", "identifier"),
            List::Rules => ("rules", "rule"),
            List::Endpoints => ("endpoints", "endpoint"),
        }
    }

    /// Whether entries are clients.
    pub(super) fn has_tenants(self) -> bool {
        matches!(self, List::Busiest | List::MostRefused)
    }

    pub(super) fn headings(self) -> Vec<&'static str> {
        let all = [self.name_heading(), "TENANT", "REQUESTS", "PER SECOND", "REFUSED"];
        all.into_iter().filter(|heading| self.has_tenants() || *heading != "TENANT").collect()
    }

    pub(super) fn name_heading(self) -> &'static str {
        match self {
            List::Busiest | List::MostRefused => "CLIENT",
            List::Rules => "RULE",
            List::Endpoints => "ENDPOINT",
        }
    }

    pub(super) fn rows(self, top: &Value) -> Vec<Row> {
        let (list, name) = self.fields();
        let error = if self == List::MostRefused { "refused_error" } else { "requests_error" };
        let row = |entry: &Value| Row {
            name: text_of(&entry[name]),
            tenant: text_of(&entry["tenant"]),
            requests: entry["requests"].as_u64(),
            refused: entry["refused"].as_u64().unwrap_or(0),
            error: entry[error].as_u64().unwrap_or(0),
        };
        top[list].as_array().into_iter().flatten().map(row).collect()
    }
}

impl Row {
    /// `~` marks a count with an error.
    pub(super) fn requests_text(&self) -> String {
        let about = if self.error > 0 { "~" } else { "" };
        self.requests.map_or_else(|| "-".to_owned(), |requests| format!("{about}{requests}"))
    }
}

/// Requests per second over the window of the response.
pub(super) fn rate(requests: Option<u64>, top: &Value) -> String {
    let seconds = top["window_seconds"].as_u64().unwrap_or(1).max(1);
    // Tenths, rounded down.
    requests.map_or_else(
        || "-".to_owned(),
        |requests| {
            let tenths = requests.saturating_mul(10) / seconds;
            format!("{}.{}", tenths / 10, tenths % 10)
        },
    )
}
