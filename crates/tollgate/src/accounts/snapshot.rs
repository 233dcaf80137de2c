//! Account snapshots, so that a node can start while the database is unreachable.
//!
//! The format: magic bytes, the hash seed, then users, their tenants, keys and blocks, each list preceded by its length, and
//! a checksum over everything.

use std::io::{self, Read, Write};

use super::blocks::{BlockKind, BlockRecord, NetworkLength};
use super::editor::AccountsEditor;
use super::keys::{KeyRecord, RECORD_BYTES_MAX};
use super::limits::AccountLimits;
use super::{Accounts, KeyShard, Table, written};
use crate::identity::Seed;
use crate::snapshot::{Checksummed, SnapshotError};
use crate::time::Timestamp;

const MAGIC: [u8; 8] = *b"tollacc3";
/// Encodes a missing timestamp; no real one is as large.
const NEVER: u64 = u64::MAX;

impl Accounts {
    /// Writes a snapshot in many small writes: pass a buffered writer.
    ///
    /// # Errors
    /// When writing fails; what was written is not a snapshot.
    pub fn write_to(&self, to: impl Write) -> io::Result<()> {
        let mut out = Checksummed::new(to);
        out.write_all(&MAGIC)?;
        out.write_all(&self.seed.0)?;
        out.write_length(self.users())?;
        for (hash, user) in self.users.iter().flat_map(Table::iter) {
            out.write_all(&hash.to_le_bytes())?;
            write_tier_and_limits(&mut out, self.tier(user.tier), written(&self.quotas, user.limits))?;
        }
        out.write_length(self.user_tenants.len())?;
        for (tenant, users) in &*self.user_tenants {
            out.write_text(tenant)?;
            out.write_length(*users)?;
        }
        out.write_length(self.keys())?;
        let mut record = Vec::new();
        for key in self.keys.iter().flat_map(KeyShard::iter) {
            record.clear();
            KeyRecord { tier: None, limits: None, ..key }.encode(&mut record);
            out.write_all(&u16::try_from(record.len()).unwrap_or(u16::MAX).to_le_bytes())?;
            out.write_all(&record)?;
            write_tier_and_limits(&mut out, self.tier(key.tier), written(&self.key_limits, key.limits))?;
        }
        out.write_length(self.blocks())?;
        for (hash, block) in self.blocks.table.iter().flat_map(Table::iter) {
            out.write_all(&hash.to_le_bytes())?;
            out.write_all(&[block.kind as u8, u8::from(block.length.is_v6), block.length.bits])?;
            out.write_all(&block.until.map_or(NEVER, Timestamp::as_micros).to_le_bytes())?;
            out.write_text(&block.reason)?;
        }
        out.finish()
    }

    /// Reads a snapshot, and not a byte beyond it, in many small reads: pass a buffered reader.
    ///
    /// # Errors
    /// When the input is truncated, not a snapshot of this version, or corrupt.
    pub fn read_from(from: impl Read) -> Result<Accounts, SnapshotError> {
        let mut input = Checksummed::new(from);
        if input.array()? != MAGIC {
            return Err(SnapshotError::UnknownFormat);
        }
        let seed = Seed(input.array()?);
        let mut editor = AccountsEditor::new(Accounts { seed, ..Accounts::default() });
        for _ in 0..input.word()? {
            let hash = u128::from_le_bytes(input.array()?);
            let (tier, limits) = read_tier_and_limits(&mut input)?;
            editor.put_user_hashed(hash, tier.as_deref(), limits).map_err(|_| SnapshotError::Corrupt)?;
        }
        for _ in 0..input.word()? {
            let tenant = input.text()?;
            let users = usize::try_from(input.word()?).map_err(|_| SnapshotError::Corrupt)?;
            editor.count_users(Some(&tenant), users);
        }
        for _ in 0..input.word()? {
            read_key(&mut input, &mut editor)?;
        }
        for _ in 0..input.word()? {
            let hash = u128::from_le_bytes(input.array()?);
            editor.put_block_hashed(hash, read_block(&mut input)?);
        }
        input.verify()?;
        Ok(editor.finish())
    }
}

/// Writes the tier, empty if it is not set, and the limits that are set.
fn write_tier_and_limits(
    out: &mut Checksummed<impl Write>,
    tier: Option<&str>,
    limits: AccountLimits,
) -> io::Result<()> {
    out.write_text(tier.unwrap_or_default())?;
    let AccountLimits { requests_per_second, requests_per_hour, requests_per_day, burst } = limits;
    for number in [requests_per_second, requests_per_hour, requests_per_day, burst] {
        out.write_all(&[u8::from(number.is_some())])?;
        if let Some(number) = number {
            out.write_all(&number.to_le_bytes())?;
        }
    }
    Ok(())
}

fn read_tier_and_limits(
    input: &mut Checksummed<impl Read>,
) -> Result<(Option<String>, AccountLimits), SnapshotError> {
    let tier = Some(input.text()?).filter(|tier| !tier.is_empty());
    let mut number = || match input.array()? {
        [0] => Ok(None),
        [1] => input.array().map(u32::from_le_bytes).map(Some),
        _ => Err(SnapshotError::Corrupt),
    };
    let limits = AccountLimits {
        requests_per_second: number()?,
        requests_per_hour: number()?,
        requests_per_day: number()?,
        burst: number()?,
    };
    Ok((tier, limits))
}

fn read_key(input: &mut Checksummed<impl Read>, editor: &mut AccountsEditor) -> Result<(), SnapshotError> {
    let length = usize::from(u16::from_le_bytes(input.array()?));
    let mut bytes = [0; RECORD_BYTES_MAX];
    let bytes = bytes.get_mut(..length).ok_or(SnapshotError::Corrupt)?;
    input.read_exact(bytes)?;
    let record = KeyRecord::decode(bytes).filter(|(_, decoded)| *decoded == length);
    let (record, _) = record.ok_or(SnapshotError::Corrupt)?;
    let (tier, limits) = read_tier_and_limits(input)?;
    let key = record.into_key(tier.as_deref(), limits);
    editor.put_key(&key).map_err(|_| SnapshotError::Corrupt)
}

fn read_block(input: &mut Checksummed<impl Read>) -> Result<BlockRecord, SnapshotError> {
    let [kind, is_v6, bits] = input.array()?;
    let kind = BlockKind::ALL.into_iter().find(|known| *known as u8 == kind);
    let kind = kind.ok_or(SnapshotError::Corrupt)?;
    let length = NetworkLength { is_v6: is_v6 != 0, bits };
    let until = Some(input.word()?).filter(|micros| *micros != NEVER).map(Timestamp::from_micros);
    Ok(BlockRecord { kind, length, until, reason: input.text()?.into() })
}
