//! A sink in memory.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use tollgate_stores::sql::records::SourceId;

use super::*;
use crate::records::drain::sink::SinkError;

/// What happens to a call.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It fails.
    Unreachable,
    /// It succeeds, but the answer is lost.
    AnswerLost,
    /// It never returns.
    Hangs,
}

#[derive(Debug, Default)]
struct State {
    positions: HashMap<SourceId, u64>,
    rows: Vec<(SourceId, u64, String)>,
    batches: Vec<usize>,
    /// For the next calls, one each.
    faults: VecDeque<Fault>,
    is_down: bool,
    calls: u64,
    /// Stores of more rows time out.
    rows_max: Option<usize>,
    /// How long a store takes.
    store_takes: Duration,
    /// When stores began and ended.
    stores: Vec<(Instant, Instant)>,
}

/// Rejects rows that contain `poison`, times out at rows that contain `slow`, and cannot decode rows that contain `garbage`.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeSink(Arc<Mutex<State>>);

impl FakeSink {
    pub(super) fn texts(&self) -> Vec<String> {
        self.0.lock().rows.iter().map(|(_, _, text)| text.clone()).collect()
    }

    pub(super) fn batches(&self) -> Vec<usize> {
        self.0.lock().batches.clone()
    }

    pub(super) fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    pub(super) fn fail_next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.0.lock().faults.extend(faults);
    }

    pub(super) fn set_down(&self, is_down: bool) {
        self.0.lock().is_down = is_down;
    }

    /// Stores of more rows time out from now on.
    pub(super) fn set_rows_max(&self, rows_max: Option<usize>) {
        self.0.lock().rows_max = rows_max;
    }

    /// Every store takes this long from now on.
    pub(super) fn set_store_takes(&self, store_takes: Duration) {
        self.0.lock().store_takes = store_takes;
    }

    /// When the stores that succeeded began and ended.
    pub(super) fn stores(&self) -> Vec<(Instant, Instant)> {
        self.0.lock().stores.clone()
    }

    /// As if the database was replaced by an empty one.
    pub(super) fn forget_sources(&self) {
        self.0.lock().positions.clear();
    }

    /// Runs a call, unless it is to fail.
    async fn call<T>(&self, run: impl FnOnce(&mut State) -> Result<T, SinkError>) -> Result<T, SinkError> {
        let fault = {
            let mut state = self.0.lock();
            state.calls += 1;
            if state.is_down { Some(Fault::Unreachable) } else { state.faults.pop_front() }
        };
        let lost = || SinkError::Unavailable("connection lost".to_owned());
        match fault {
            None => run(&mut self.0.lock()),
            Some(Fault::Unreachable) => Err(lost()),
            Some(Fault::AnswerLost) => run(&mut self.0.lock()).and_then(|_| Err(lost())),
            Some(Fault::Hangs) => std::future::pending().await,
        }
    }
}

impl State {
    /// Whether the range is to be stored; `false` if it was stored before.
    fn claim(&mut self, range: &RowRange) -> Result<bool, SinkError> {
        match self.positions.get(&range.source).copied() {
            Some(position) if position >= range.end => Ok(false),
            Some(position) if position == range.first => Ok(true),
            position => Err(SinkError::Position(format!("{range:?} at {position:?}"))),
        }
    }
}

impl BatchSink for FakeSink {
    type Row = String;

    fn decode(&self, row: &bytes::Bytes) -> Option<String> {
        String::from_utf8(row.to_vec()).ok().filter(|text| !text.contains("garbage"))
    }

    async fn prepare(&self) -> Result<(), SinkError> {
        self.call(|_| Ok(())).await
    }

    async fn position(&self, source: &SourceId) -> Result<u64, SinkError> {
        self.call(|state| Ok(*state.positions.entry(*source).or_insert(0))).await
    }

    async fn store(&self, range: &RowRange, rows: &[String]) -> Result<(), SinkError> {
        assert_eq!(rows.len() as u64, range.end - range.first);
        let began = Instant::now();
        let store_takes = self.0.lock().store_takes;
        tokio::time::sleep(store_takes).await;
        self.call(|state| {
            state.positions.entry(range.source).or_insert(0);
            if !state.claim(range)? {
                return Ok(());
            }
            if rows.iter().any(|text| text.contains("poison")) {
                return Err(SinkError::Rejected("value out of range".to_owned()));
            }
            let is_too_large = state.rows_max.is_some_and(|rows_max| rows.len() > rows_max);
            if is_too_large || rows.iter().any(|text| text.contains("slow")) {
                return Err(SinkError::TimedOut("statement timeout".to_owned()));
            }
            state.positions.insert(range.source, range.end);
            state.stores.push((began, Instant::now()));
            state.batches.push(rows.len());
            let numbered = (range.first..).zip(rows);
            state.rows.extend(numbered.map(|(number, text)| (range.source, number, text.clone())));
            Ok(())
        })
        .await
    }

    async fn skip(&self, range: &RowRange) -> Result<(), SinkError> {
        self.call(|state| {
            if state.claim(range)? {
                state.positions.insert(range.source, range.end);
            }
            Ok(())
        })
        .await
    }
}
