//! Account snapshots, so that a node can start while the database is unreachable.
//!
//! The format: magic bytes, the hash seed, the shared values, then users, keys and blocks, each list preceded by its
//! length, and a checksum over everything.

use std::hash::Hash;
use std::io::{self, Read, Write};
use std::sync::Arc;

use super::blocks::{BlockKind, BlockRecord, NetworkLength};
use super::editor::AccountsEditor;
use super::keys::{KeyRecord, RECORD_BYTES_MAX};
use super::limits::{AccountLimits, CompiledLimits};
use super::pool::{Pool, PoolId};
use super::{Accounts, KeyShard, Table, UserRecord};
use crate::identity::Seed;
use crate::rules::overrides::{KEY_NAMESPACE, QUOTA_NAMESPACE};
use crate::snapshot::{Checksummed, SnapshotError};
use crate::time::Timestamp;

const MAGIC: [u8; 8] = *b"tollacc1";
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
        write_pool(&mut out, &self.tiers, |out, tier| out.write_text(tier))?;
        write_pool(&mut out, &self.quotas, |out, compiled| write_limits(out, compiled.written))?;
        write_pool(&mut out, &self.key_limits, |out, compiled| write_limits(out, compiled.written))?;
        out.write_length(self.users())?;
        for (hash, user) in self.users.iter().flat_map(Table::iter) {
            out.write_all(&hash.to_le_bytes())?;
            out.write_all(&PoolId::to_word(user.tier).to_le_bytes())?;
            out.write_all(&PoolId::to_word(user.limits).to_le_bytes())?;
        }
        out.write_length(self.keys())?;
        let mut record = Vec::new();
        for key in self.keys.iter().flat_map(KeyShard::iter) {
            record.clear();
            key.encode(&mut record);
            out.write_all(&u16::try_from(record.len()).unwrap_or(u16::MAX).to_le_bytes())?;
            out.write_all(&record)?;
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
        let mut editor = AccountsEditor::new(Accounts {
            seed: Seed(input.array()?),
            tiers: read_pool(&mut input, |input| input.text().map(String::into_boxed_str))?,
            quotas: read_pool(&mut input, |input| read_limits(input, QUOTA_NAMESPACE))?,
            key_limits: read_pool(&mut input, |input| read_limits(input, KEY_NAMESPACE))?,
            ..Accounts::default()
        });
        for _ in 0..input.word()? {
            read_user(&mut input, &mut editor)?;
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

fn write_pool<W: Write, T: Eq + Hash>(
    out: &mut Checksummed<W>,
    pool: &Pool<T>,
    mut write: impl FnMut(&mut Checksummed<W>, &T) -> io::Result<()>,
) -> io::Result<()> {
    out.write_length(pool.slots().len())?;
    for slot in pool.slots() {
        out.write_all(&[u8::from(slot.is_some())])?;
        if let Some(value) = slot {
            write(out, value)?;
        }
    }
    Ok(())
}

fn write_limits<W: Write>(out: &mut Checksummed<W>, limits: AccountLimits) -> io::Result<()> {
    let AccountLimits { requests_per_second, requests_per_hour, requests_per_day, burst } = limits;
    for number in [requests_per_second, requests_per_hour, requests_per_day, burst] {
        out.write_all(&[u8::from(number.is_some())])?;
        out.write_all(&number.unwrap_or(0).to_le_bytes())?;
    }
    Ok(())
}

fn read_pool<R: Read, T: Eq + Hash>(
    input: &mut Checksummed<R>,
    mut read: impl FnMut(&mut Checksummed<R>) -> Result<T, SnapshotError>,
) -> Result<Arc<Pool<T>>, SnapshotError> {
    let mut pool = Pool::default();
    for _ in 0..input.word()? {
        let value = if read_bool(input)? { Some(read(input)?) } else { None };
        if !pool.push_slot(value) {
            return Err(SnapshotError::Corrupt);
        }
    }
    Ok(Arc::new(pool))
}

fn read_bool<R: Read>(input: &mut Checksummed<R>) -> Result<bool, SnapshotError> {
    match input.array()? {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(SnapshotError::Corrupt),
    }
}

fn read_limits<R: Read>(
    input: &mut Checksummed<R>,
    namespace: &str,
) -> Result<CompiledLimits, SnapshotError> {
    let mut number = || {
        let is_given = read_bool(input)?;
        let number = u32::from_le_bytes(input.array()?);
        Ok::<_, SnapshotError>(Some(number).filter(|_| is_given))
    };
    let limits = AccountLimits {
        requests_per_second: number()?,
        requests_per_hour: number()?,
        requests_per_day: number()?,
        burst: number()?,
    };
    if limits.is_empty() {
        return Err(SnapshotError::Corrupt);
    }
    CompiledLimits::new(namespace, limits).map_err(|_| SnapshotError::Corrupt)
}

fn read_user<R: Read>(input: &mut Checksummed<R>, editor: &mut AccountsEditor) -> Result<(), SnapshotError> {
    let hash = u128::from_le_bytes(input.array()?);
    let [tier, limits] = [input.array()?, input.array()?].map(u32::from_le_bytes).map(PoolId::from_word);
    check_pool_id(&editor.accounts().tiers, tier)?;
    check_pool_id(&editor.accounts().quotas, limits)?;
    editor.put_user_hashed(hash, UserRecord { tier, limits });
    Ok(())
}

fn read_key<R: Read>(input: &mut Checksummed<R>, editor: &mut AccountsEditor) -> Result<(), SnapshotError> {
    let length = usize::from(u16::from_le_bytes(input.array()?));
    let mut bytes = [0; RECORD_BYTES_MAX];
    let bytes = bytes.get_mut(..length).ok_or(SnapshotError::Corrupt)?;
    input.read_exact(bytes)?;
    let key = KeyRecord::decode(bytes).filter(|(_, decoded)| *decoded == length);
    let (key, _) = key.ok_or(SnapshotError::Corrupt)?;
    check_pool_id(&editor.accounts().tiers, key.tier)?;
    check_pool_id(&editor.accounts().key_limits, key.limits)?;
    editor.put_key_record(&key).map_err(|_| SnapshotError::Corrupt)
}

fn read_block<R: Read>(input: &mut Checksummed<R>) -> Result<BlockRecord, SnapshotError> {
    let [kind, is_v6, bits] = input.array()?;
    let kind = BlockKind::ALL.into_iter().find(|known| *known as u8 == kind);
    let kind = kind.ok_or(SnapshotError::Corrupt)?;
    let length = NetworkLength { is_v6: is_v6 != 0, bits };
    let until = Some(input.word()?).filter(|micros| *micros != NEVER).map(Timestamp::from_micros);
    Ok(BlockRecord { kind, length, until, reason: input.text()?.into() })
}

fn check_pool_id<T: Eq + Hash>(pool: &Pool<T>, id: Option<PoolId>) -> Result<(), SnapshotError> {
    match id {
        Some(id) if pool.get(id).is_none() => Err(SnapshotError::Corrupt),
        _ => Ok(()),
    }
}
