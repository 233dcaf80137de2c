//! The stored form of an override, in the database, on Redis and in the snapshot on disk.

use serde::{Deserialize, Serialize};
use tollgate::rules::overrides::Override;
use tollgate::{Algorithm, Endpoint, Id, Limit, Span, Timestamp, Window};
use tollgate_stores::sql::UserEndpointLimit;

/// A limit of one user on one endpoint, and when it was set.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OverrideRecord {
    #[serde(flatten)]
    pub(crate) limit: UserEndpointLimit,
    pub(crate) updated_at_micros: u64,
}

impl OverrideRecord {
    /// The override; `None` if the record is invalid.
    pub(crate) fn to_override(&self) -> Option<Override> {
        let UserEndpointLimit { user, endpoint, requests, window_micros, algorithm, burst } = &self.limit;
        let window = Window::Length(Span::from_micros(*window_micros));
        let limit =
            Limit::with_options(Algorithm::parse(algorithm)?, *requests, window, *burst, None).ok()?;
        let (user, endpoint) = (Id::parse(user).ok()?, Endpoint::parse(endpoint).ok()?);
        Some(Override::new(user, &endpoint, limit, Timestamp::from_micros(self.updated_at_micros)))
    }
}

impl From<&Override> for OverrideRecord {
    fn from(set: &Override) -> Self {
        let limit = &set.limit.limit;
        OverrideRecord {
            limit: UserEndpointLimit {
                user: set.user.to_string(),
                endpoint: set.endpoint.to_string(),
                requests: limit.requests(),
                window_micros: limit.window_length().as_micros(),
                algorithm: limit.algorithm().as_str().to_owned(),
                burst: limit.burst(),
            },
            updated_at_micros: set.updated_at.as_micros(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_survives_json() {
        let limit = Limit::new(Algorithm::Gcra, 7, Window::Length(Span::from_secs(60))).unwrap();
        let (user, endpoint) = (Id::parse("alice").unwrap(), Endpoint::parse("/x").unwrap());
        let set = Override::new(user, &endpoint, limit, Timestamp::from_secs(9));
        let text = serde_json::to_string(&OverrideRecord::from(&set)).unwrap();
        let read: OverrideRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(read.to_override().as_ref(), Some(&set));
        let stored = r#"{"user":"alice","endpoint":"/x","requests":7,"window_micros":60000000,
            "algorithm":"gcra","burst":null,"updated_at_micros":9000000}"#;
        let read: OverrideRecord = serde_json::from_str(stored).unwrap();
        assert_eq!(read.to_override(), Some(set));
    }
}
