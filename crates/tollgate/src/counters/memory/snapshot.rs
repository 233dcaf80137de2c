//! Counters to disk and back, so that a restart does not refill everyone's bucket.
//!
//! The format is a header, the seed of the subject hashes, three lists, and a checksum over all of it. Shards are
//! copied one at a time: a save stops nobody for longer than copying a 256th of the table takes. A file that is
//! torn, foreign or of another version is refused whole.

use std::io::{self, Read, Write};

use siphasher::sip::SipHasher13;
use std::hash::Hasher;

use super::entry::Entry;
use super::fair_share::TenantSlot;
use super::penalties::PenaltyEntry;
use super::shard::{LogEntry, Shard};
use super::{Key, MemoryCounters};
use crate::algorithms::sliding_window_log::Log;
use crate::identity::Seed;
use crate::penalties::{PenaltyState, VIOLATIONS_MAX};
use crate::sync::lock;
use crate::time::Timestamp;

const MAGIC: [u8; 8] = *b"tollgat2";
/// No list is longer: a length beyond it is damage, not data.
const LENGTH_MAX: u64 = 1 << 32;

/// Why a snapshot cannot be read.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Reading failed, or the file ends too early.
    #[error("cannot read the counter snapshot")]
    Io(#[from] io::Error),
    /// Not a snapshot, or one of another version.
    #[error("not a counter snapshot of this version")]
    UnknownFormat,
    /// The bytes do not match their checksum.
    #[error("the counter snapshot is damaged")]
    Corrupt,
}

impl MemoryCounters {
    /// Writes everything that still holds consumption at `now`.
    ///
    /// # Errors
    /// When writing fails; what was written by then is not a snapshot.
    pub fn save(&self, seed: Seed, now: Timestamp, to: impl Write) -> io::Result<()> {
        let mut out = Summed { inner: to, sum: SipHasher13::new() };
        out.write_all(&MAGIC)?;
        out.write_all(&seed.0)?;
        for shard in &self.shards {
            let bytes = {
                let shard = lock(&shard.0);
                let mut bytes = Vec::with_capacity(shard.counters.len() * 32 + 64);
                put_cells(&mut bytes, shard.counters.iter().filter(|entry| entry.restored_at() > now));
                put_logs(&mut bytes, shard.logs.iter().filter(|entry| entry.restored_at > now));
                put_penalties(&mut bytes, shard.penalties.iter().filter(|entry| entry.expires_at > now));
                bytes
            };
            out.write_all(&bytes)?;
        }
        let sum = out.sum.finish();
        out.inner.write_all(&sum.to_le_bytes())?;
        out.inner.flush()
    }

    /// Reads a snapshot into this table and returns the seed its subjects were hashed with. The table must be
    /// empty and not in use yet.
    ///
    /// # Errors
    /// When the snapshot cannot be read whole; the table is then to be thrown away.
    pub fn restore(&self, from: impl Read) -> Result<Seed, SnapshotError> {
        let mut input = Summed { inner: from, sum: SipHasher13::new() };
        if input.bytes::<8>()? != MAGIC {
            return Err(SnapshotError::UnknownFormat);
        }
        let seed = Seed(input.bytes()?);
        for shard in &self.shards {
            // Into the shard it was saved from: the key of an overflow counter does not tell which.
            let shard = &mut *lock(&shard.0);
            restore_cells(shard, &mut input)?;
            restore_logs(shard, &mut input)?;
            restore_penalties(shard, &mut input)?;
        }
        let sum = input.sum.finish();
        let mut expected = [0; 8];
        input.inner.read_exact(&mut expected)?;
        let ends = input.inner.read(&mut [0])? == 0;
        if ends && sum == u64::from_le_bytes(expected) { Ok(seed) } else { Err(SnapshotError::Corrupt) }
    }
}

fn restore_cells(shard: &mut Shard, input: &mut Summed<impl Read>) -> Result<(), SnapshotError> {
    for _ in 0..input.length()? {
        let entry = Entry::from_words([input.word()?, input.word()?, input.word()?, input.word()?]);
        shard.insert_counter(entry);
    }
    Ok(())
}

fn restore_logs(shard: &mut Shard, input: &mut Summed<impl Read>) -> Result<(), SnapshotError> {
    for _ in 0..input.length()? {
        let key = Key::from_halves([input.word()?, input.word()?]);
        let tenant = TenantSlot::from_number(input.word()?);
        let restored_at = Timestamp::from_micros(input.word()?);
        let reserved = usize::try_from(input.length()?).map_err(|_| SnapshotError::Corrupt)?;
        let mut entries = Vec::new();
        for _ in 0..input.length()? {
            let at = Timestamp::from_micros(input.word()?);
            entries.push((at, u32::try_from(input.word()?).map_err(|_| SnapshotError::Corrupt)?));
        }
        let log = Log::from_entries(entries);
        shard.insert_log(LogEntry { key, tenant, log, reserved, restored_at });
    }
    Ok(())
}

fn restore_penalties(shard: &mut Shard, input: &mut Summed<impl Read>) -> Result<(), SnapshotError> {
    for _ in 0..input.length()? {
        let key = Key::from_halves([input.word()?, input.word()?]);
        let tenant = TenantSlot::from_number(input.word()?);
        let mut instants = [Timestamp::default(); 3];
        for instant in &mut instants {
            *instant = Timestamp::from_micros(input.word()?);
        }
        let [expires_at, episode_until, cooldown_until] = instants;
        let count = input.length()?.min(VIOLATIONS_MAX as u64);
        let violations = (0..count).map(|_| input.word().map(Timestamp::from_micros));
        let violations = violations.collect::<Result<_, _>>()?;
        let client = input.text()?.into_boxed_str();
        let state = PenaltyState { violations, episode_until, cooldown_until };
        let entry = PenaltyEntry { key, tenant, client, state, expires_at };
        shard.penalties.insert(entry);
    }
    Ok(())
}

fn put(bytes: &mut Vec<u8>, words: impl IntoIterator<Item = u64>) {
    for word in words {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
}

/// A list: its length, then its items, counted as they are written.
fn put_list<T>(bytes: &mut Vec<u8>, items: impl Iterator<Item = T>, mut item: impl FnMut(&mut Vec<u8>, T)) {
    let start = bytes.len();
    put(bytes, [0]);
    let mut count: u64 = 0;
    for each in items {
        item(bytes, each);
        count += 1;
    }
    bytes[start..start + 8].copy_from_slice(&count.to_le_bytes());
}

fn put_cells<'a>(bytes: &mut Vec<u8>, cells: impl Iterator<Item = &'a Entry>) {
    put_list(bytes, cells, |bytes, entry| put(bytes, entry.to_words()));
}

fn put_logs<'a>(bytes: &mut Vec<u8>, logs: impl Iterator<Item = &'a LogEntry>) {
    put_list(bytes, logs, |bytes, entry| {
        put(bytes, entry.key.halves());
        put(bytes, [entry.tenant.number(), entry.restored_at.as_micros(), entry.reserved as u64]);
        put_list(bytes, entry.log.entries(), |bytes, (at, cost)| {
            put(bytes, [at.as_micros(), u64::from(cost)]);
        });
    });
}

fn put_penalties<'a>(bytes: &mut Vec<u8>, penalties: impl Iterator<Item = &'a PenaltyEntry>) {
    put_list(bytes, penalties, |bytes, entry| {
        let state = &entry.state;
        put(bytes, entry.key.halves());
        put(bytes, [entry.tenant.number()]);
        put(bytes, [entry.expires_at, state.episode_until, state.cooldown_until].map(Timestamp::as_micros));
        put_list(bytes, state.violations.iter(), |bytes, at| put(bytes, [at.as_micros()]));
        put(bytes, [entry.client.len() as u64]);
        bytes.extend_from_slice(entry.client.as_bytes());
    });
}

/// A reader or writer that sums what passes through it.
struct Summed<T> {
    inner: T,
    sum: SipHasher13,
}

impl<W: Write> Summed<W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.write(bytes);
        self.inner.write_all(bytes)
    }
}

impl<R: Read> Summed<R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.sum.write(&bytes);
        Ok(bytes)
    }

    fn word(&mut self) -> Result<u64, SnapshotError> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn length(&mut self) -> Result<u64, SnapshotError> {
        let length = self.word()?;
        if length <= LENGTH_MAX { Ok(length) } else { Err(SnapshotError::Corrupt) }
    }

    fn text(&mut self) -> Result<String, SnapshotError> {
        let length = self.length()?;
        let bytes =
            (0..length).map(|_| self.bytes::<1>().map(|[byte]| byte)).collect::<Result<Vec<u8>, _>>()?;
        String::from_utf8(bytes).map_err(|_| SnapshotError::Corrupt)
    }
}
