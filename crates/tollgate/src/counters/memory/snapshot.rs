//! Snapshots of the counters, so that a restart does not restore every limit.
//!
//! The format is a header, the seed of the subject hashes, three lists per shard, and a checksum. Shards are locked and
//! copied one at a time. A file that is truncated, corrupt or of another version is rejected as a whole.

use std::io::{self, Read, Write};

use super::entry::Entry;
use super::fair_share::TenantSlot;
use super::penalties::PenaltyEntry;
use super::shard::{LogEntry, Shard};
use super::{Key, MemoryCounters};
use crate::algorithms::sliding_window_log::Log;
use crate::identity::Seed;
use crate::penalties::{PenaltyState, VIOLATIONS_MAX};
use crate::snapshot::{Checksummed, SnapshotError};
use crate::time::Timestamp;

const MAGIC: [u8; 8] = *b"tollgat2";
/// A list with a greater length is corrupt.
const LENGTH_MAX: u64 = 1 << 32;

impl MemoryCounters {
    /// Writes all counters, logs and penalty records that are not restored or expired at `now`.
    ///
    /// # Errors
    /// When writing fails. The output is then not a valid snapshot.
    pub fn save(&self, seed: Seed, now: Timestamp, to: impl Write) -> io::Result<()> {
        let mut out = Checksummed::new(to);
        out.write_all(&MAGIC)?;
        out.write_all(&seed.0)?;
        for shard in &self.shards {
            let bytes = {
                let shard = shard.lock();
                let mut bytes = Vec::with_capacity(shard.counters.len() * 32 + 64);
                put_counters(&mut bytes, shard.counters.iter().filter(|entry| entry.restored_at() > now));
                put_logs(&mut bytes, shard.logs.iter().filter(|entry| entry.restored_at > now));
                put_penalties(&mut bytes, shard.penalties.iter().filter(|entry| entry.expires_at > now));
                bytes
            };
            out.write_all(&bytes)?;
        }
        out.finish()
    }

    /// Reads a snapshot into this table and returns the seed of its subject hashes. The table must be empty and not in use
    /// yet.
    ///
    /// # Errors
    /// When the snapshot is invalid. The table must then be discarded.
    pub fn restore(&self, from: impl Read) -> Result<Seed, SnapshotError> {
        let mut input = Checksummed::new(from);
        if input.array()? != MAGIC {
            return Err(SnapshotError::UnknownFormat);
        }
        let seed = Seed(input.array()?);
        for shard in &self.shards {
            // Into the shard it was saved from, which the key of an overflow counter does not determine.
            let shard = &mut *shard.lock();
            restore_counters(shard, &mut input)?;
            restore_logs(shard, &mut input)?;
            restore_penalties(shard, &mut input)?;
        }
        let mut rest = input.verify()?;
        if rest.read(&mut [0])? == 0 { Ok(seed) } else { Err(SnapshotError::Corrupt) }
    }
}

fn restore_counters(shard: &mut Shard, input: &mut Checksummed<impl Read>) -> Result<(), SnapshotError> {
    for _ in 0..length(input)? {
        let entry = Entry::from_words([input.word()?, input.word()?, input.word()?, input.word()?]);
        shard.insert_counter(entry);
    }
    Ok(())
}

fn restore_logs(shard: &mut Shard, input: &mut Checksummed<impl Read>) -> Result<(), SnapshotError> {
    for _ in 0..length(input)? {
        let key = Key::from_halves([input.word()?, input.word()?]);
        let tenant = TenantSlot::from_number(input.word()?);
        let restored_at = Timestamp::from_micros(input.word()?);
        let reserved = usize::try_from(length(input)?).map_err(|_| SnapshotError::Corrupt)?;
        let mut entries = Vec::new();
        for _ in 0..length(input)? {
            let at = Timestamp::from_micros(input.word()?);
            entries.push((at, u32::try_from(input.word()?).map_err(|_| SnapshotError::Corrupt)?));
        }
        let log = Log::from_entries(entries);
        shard.insert_log(LogEntry { key, tenant, log, reserved, restored_at });
    }
    Ok(())
}

fn restore_penalties(shard: &mut Shard, input: &mut Checksummed<impl Read>) -> Result<(), SnapshotError> {
    for _ in 0..length(input)? {
        let key = Key::from_halves([input.word()?, input.word()?]);
        let tenant = TenantSlot::from_number(input.word()?);
        let mut instants = [Timestamp::default(); 3];
        for instant in &mut instants {
            *instant = Timestamp::from_micros(input.word()?);
        }
        let [expires_at, episode_until, cooldown_until] = instants;
        let count = length(input)?.min(VIOLATIONS_MAX as u64);
        let violations = (0..count).map(|_| input.word().map(Timestamp::from_micros));
        let violations = violations.collect::<Result<_, _>>()?;
        let client = input.text()?.into_boxed_str();
        let state = PenaltyState { violations, episode_until, cooldown_until };
        let entry = PenaltyEntry { key, tenant, client, state, expires_at };
        shard.penalties.insert(entry);
    }
    Ok(())
}

fn length(input: &mut Checksummed<impl Read>) -> Result<u64, SnapshotError> {
    let length = input.word()?;
    if length <= LENGTH_MAX { Ok(length) } else { Err(SnapshotError::Corrupt) }
}

fn put(bytes: &mut Vec<u8>, words: impl IntoIterator<Item = u64>) {
    for word in words {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
}

/// Writes a list: its length, then its items.
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

fn put_counters<'a>(bytes: &mut Vec<u8>, counters: impl Iterator<Item = &'a Entry>) {
    put_list(bytes, counters, |bytes, entry| put(bytes, entry.to_words()));
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
