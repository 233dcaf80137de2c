//! That keys are being tried, for the audit trail.
//!
//! Who tries them says how often there is something to tell, and the trail is kept for good. So an address is told of once in
//! ten minutes, a few addresses in all, and of the rest how many they were. A request only leaves a note here; a task of its own
//! writes it down, and waits for the database if it must.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate::rules::IPV6_PREFIX_DEFAULT;
use tollgate::{Span, Timestamp};
use tollgate_stores::sql::{AuditEvent, DatabaseError};
use tracing::{debug, warn};

use crate::app::App;

/// An address is told of once in so long.
const QUIET: Span = Span::from_secs(600);
/// So many are told of within that time, and wait to be.
const TOLD_MAX: usize = 16;
/// Between attempts to reach the database.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// Who notes it: nobody has asked for it.
const BY: &str = "tollgate";

/// Alarms that are to be told.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    state: Mutex<State>,
    raised: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Of whom it was told, and when.
    told: HashMap<Option<IpAddr>, Timestamp>,
    waiting: VecDeque<Alarm>,
    left_out: u64,
}

/// Somebody began to try keys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alarm {
    /// From where; nothing if from everywhere.
    address: Option<IpAddr>,
    at: Timestamp,
    failures: u32,
    /// Alarms before it that nobody is told of.
    left_out: u64,
}

impl Alarms {
    /// Notes that an address, or all together, failed so often.
    pub(crate) fn raise(&self, address: Option<IpAddr>, failures: u32, at: Timestamp) {
        if self.state.lock().raise(Alarm { address, at, failures, left_out: 0 }) {
            self.raised.notify_one();
        }
    }

    async fn next(&self) -> Alarm {
        loop {
            let next = self.state.lock().next();
            match next {
                Some(alarm) => return alarm,
                None => self.raised.notified().await,
            }
        }
    }
}

impl State {
    /// Whether it is to be told.
    fn raise(&mut self, alarm: Alarm) -> bool {
        self.told.retain(|_, at| alarm.at.since(*at) < QUIET);
        if self.told.contains_key(&alarm.address) {
            return false;
        }
        if self.told.len() >= TOLD_MAX || self.waiting.len() >= TOLD_MAX {
            self.left_out += 1;
            return false;
        }
        self.told.insert(alarm.address, alarm.at);
        self.waiting.push_back(alarm);
        true
    }

    fn next(&mut self) -> Option<Alarm> {
        let alarm = self.waiting.pop_front()?;
        Some(Alarm { left_out: std::mem::take(&mut self.left_out), ..alarm })
    }
}

impl Alarm {
    fn act(&self) -> AuditEvent {
        let subject = match self.address {
            None => "many addresses".to_owned(),
            Some(IpAddr::V4(address)) => address.to_string(),
            Some(IpAddr::V6(address)) => format!("{address}/{IPV6_PREFIX_DEFAULT}"),
        };
        let after = serde_json::json!({ "wrong_keys": self.failures, "alarms_left_out": self.left_out });
        AuditEvent {
            action: "alarm".into(),
            kind: "key_attempts".into(),
            subject,
            before: None,
            after: Some(after),
        }
    }
}

/// Writes alarms into the audit trail for as long as the service runs.
pub(crate) async fn run(app: Arc<App>) {
    loop {
        let alarm = app.auth_throttle().alarms.next().await;
        while !is_settled(&app, &alarm).await {
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }
}

/// Whether an alarm is in the trail, or is not to be tried again.
async fn is_settled(app: &App, alarm: &Alarm) -> bool {
    let Ok(database) = app.config_sync().database() else { return false };
    let act = alarm.act();
    match database.record_event(BY, alarm.at.as_micros(), &act).await {
        Ok(_) => true,
        // It may be there: once too few is better than twice.
        Err(error @ (DatabaseError::OutcomeUnknown { .. } | DatabaseError::Value { .. })) => {
            warn!(subject = %act.subject, %error, "an alarm may not be in the audit trail");
            true
        }
        Err(error) => {
            debug!(%error, "an alarm is not in the audit trail yet");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_000_000);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// What waits to be told.
    fn told(alarms: &Alarms) -> Vec<(Option<IpAddr>, u64)> {
        let mut state = alarms.state.lock();
        std::iter::from_fn(|| state.next()).map(|alarm| (alarm.address, alarm.left_out)).collect()
    }

    #[test]
    fn t30_an_address_is_told_of_once_in_ten_minutes() {
        let alarms = Alarms::default();
        for seconds in 0..600 {
            alarms.raise(Some(address(1)), 65, START + Span::from_secs(seconds));
        }
        alarms.raise(None, 500, START);
        assert_eq!(told(&alarms), [(Some(address(1)), 0), (None, 0)]);
        alarms.raise(Some(address(1)), 65, START + QUIET);
        assert_eq!(told(&alarms), [(Some(address(1)), 0)]);
    }

    #[test]
    fn t30_of_many_addresses_few_are_told_of_and_the_others_are_counted() {
        let alarms = Alarms::default();
        (0..=255).for_each(|last| alarms.raise(Some(address(last)), 65, START));
        let first = told(&alarms);
        assert_eq!(first.len(), TOLD_MAX);
        assert_eq!(first[0], (Some(address(0)), 240));
        alarms.raise(Some(address(200)), 65, START);
        assert_eq!(told(&alarms), [], "the time has to pass, though none waits");
        alarms.raise(Some(address(200)), 65, START + QUIET);
        assert_eq!(told(&alarms), [(Some(address(200)), 1)]);
    }

    #[test]
    fn t30_what_waits_for_the_database_is_bounded() {
        let alarms = Alarms::default();
        for (number, last) in (0..=255).enumerate() {
            let now = START + Span::from_secs(600 * u64::try_from(number).unwrap());
            alarms.raise(Some(address(last)), 65, now);
        }
        assert_eq!(alarms.state.lock().waiting.len(), TOLD_MAX);
    }

    #[test]
    fn t30_an_alarm_names_the_network_that_is_counted() {
        let alarm = |address| Alarm { address, at: START, failures: 65, left_out: 0 };
        assert_eq!(alarm(Some("2001:db8::".parse().unwrap())).act().subject, "2001:db8::/64");
        assert_eq!(alarm(Some(address(1))).act().subject, "192.0.2.1");
        assert_eq!(alarm(None).act().subject, "many addresses");
    }
}
