//! Accounts to disk and back, so that a node can start while the database is away.
//!
//! A header, the key of the hashes, the values in common, then users, keys and blocks, each list with its length before
//! it, and a checksum over all of it. Nothing is believed before the end is reached: a length only says how often to
//! read, never how much memory to take.

use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::blocks::{BlockKind, BlockRecord, NetworkLength};
use super::editor::AccountsEditor;
use super::keys::{KeyRecord, RECORD_BYTES_MAX};
use super::limits::{AccountLimits, CompiledLimits};
use super::pool::{Pool, PoolId};
use super::{Accounts, KeyShard, Table, UserRecord};
use crate::identity::{IdNormalization, NormalForm, Seed};
use crate::rules::overrides::{KEY_NAMESPACE, QUOTA_NAMESPACE};
use crate::time::Timestamp;

const MAGIC: [u8; 8] = *b"tollacc1";
/// The same with how ids are folded behind it. Only where they are, so that an older build reads what it understands.
const MAGIC_FOLDED: [u8; 8] = *b"tollacc2";
/// Stands for no instant: no timestamp reaches it.
const NEVER: u64 = u64::MAX;

/// Why accounts cannot be read.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum AccountsFileError {
    /// Reading failed, or the file ends too early.
    #[error("cannot read the accounts")]
    Io(#[from] io::Error),
    /// Not accounts, or of another version.
    #[error("not accounts of this version")]
    Foreign,
    /// The bytes make no sense or do not match their checksum.
    #[error("the accounts are damaged")]
    Damaged,
}

impl Accounts {
    /// Writes everything. In many small pieces: give it a buffer.
    ///
    /// # Errors
    /// When writing fails; what was written by then cannot be read.
    pub fn write_to(&self, to: impl Write) -> io::Result<()> {
        let mut out = Summed { inner: to, sum: SipHasher13::new() };
        if self.normalization == IdNormalization::default() {
            out.bytes(&MAGIC)?;
        } else {
            out.bytes(&MAGIC_FOLDED)?;
            let IdNormalization { user, tenant, login } = self.normalization;
            out.bytes(&[user as u8, tenant as u8, login as u8])?;
        }
        out.bytes(&self.seed.0)?;
        out.slots(&self.tiers, |out, tier| out.text(tier))?;
        out.slots(&self.quotas, |out, own| out.limits(own.written))?;
        out.slots(&self.key_limits, |out, own| out.limits(own.written))?;
        out.length(self.users())?;
        for (hash, user) in self.users.iter().flat_map(Table::iter) {
            out.bytes(&hash.to_le_bytes())?;
            out.bytes(&PoolId::to_word(user.tier).to_le_bytes())?;
            out.bytes(&PoolId::to_word(user.limits).to_le_bytes())?;
        }
        out.length(self.keys())?;
        let mut record = Vec::new();
        for key in self.keys.iter().flat_map(KeyShard::iter) {
            // As it is in memory, behind its length.
            record.clear();
            key.encode(&mut record);
            out.bytes(&u16::try_from(record.len()).unwrap_or(u16::MAX).to_le_bytes())?;
            out.bytes(&record)?;
        }
        out.length(self.blocks())?;
        for (hash, block) in self.blocks.table.iter().flat_map(Table::iter) {
            out.bytes(&hash.to_le_bytes())?;
            out.bytes(&[block.kind as u8, u8::from(block.length.is_v6), block.length.bits])?;
            out.instant(block.until)?;
            out.text(&block.reason)?;
        }
        let sum = out.sum.finish();
        out.inner.write_all(&sum.to_le_bytes())?;
        out.inner.flush()
    }

    /// Reads what [`Accounts::write_to`] wrote, and not a byte beyond it. In many small pieces: give it a buffer.
    ///
    /// # Errors
    /// When the bytes end too early, are something else, or are damaged. Nothing is believed of them then.
    pub fn read_from(from: impl Read) -> Result<Accounts, AccountsFileError> {
        let mut input = Summed { inner: from, sum: SipHasher13::new() };
        let normalization = match input.array::<8>()? {
            MAGIC => IdNormalization::default(),
            MAGIC_FOLDED => input.read_normalization()?,
            _ => return Err(AccountsFileError::Foreign),
        };
        let mut editor = AccountsEditor::new(Accounts {
            normalization,
            seed: Seed(input.array()?),
            tiers: input.read_slots(|input| input.read_text().map(String::into_boxed_str))?,
            quotas: input.read_slots(|input| input.read_own(QUOTA_NAMESPACE))?,
            key_limits: input.read_slots(|input| input.read_own(KEY_NAMESPACE))?,
            ..Accounts::default()
        });
        for _ in 0..input.word()? {
            input.read_user(&mut editor)?;
        }
        for _ in 0..input.word()? {
            input.read_key(&mut editor)?;
        }
        for _ in 0..input.word()? {
            let hash = u128::from_le_bytes(input.array()?);
            let block = input.read_block()?;
            editor.put_block_hashed(hash, block);
        }
        let sum = input.sum.finish();
        let mut expected = [0; 8];
        input.inner.read_exact(&mut expected)?;
        if sum == u64::from_le_bytes(expected) {
            Ok(editor.finish())
        } else {
            Err(AccountsFileError::Damaged)
        }
    }
}

/// A reader or writer that sums what passes through it.
struct Summed<T> {
    inner: T,
    sum: SipHasher13,
}

impl<W: Write> Summed<W> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.write(bytes);
        self.inner.write_all(bytes)
    }

    fn length(&mut self, length: usize) -> io::Result<()> {
        self.bytes(&(length as u64).to_le_bytes())
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.length(text.len())?;
        self.bytes(text.as_bytes())
    }

    fn instant(&mut self, at: Option<Timestamp>) -> io::Result<()> {
        self.bytes(&at.map_or(NEVER, Timestamp::as_micros).to_le_bytes())
    }

    fn slots<T: Eq + Hash>(
        &mut self,
        pool: &Pool<T>,
        mut write: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.length(pool.slots().len())?;
        for slot in pool.slots() {
            self.bytes(&[u8::from(slot.is_some())])?;
            if let Some(value) = slot {
                write(self, value)?;
            }
        }
        Ok(())
    }

    fn limits(&mut self, limits: AccountLimits) -> io::Result<()> {
        for number in
            [limits.requests_per_second, limits.requests_per_hour, limits.requests_per_day, limits.burst]
        {
            self.bytes(&[u8::from(number.is_some())])?;
            self.bytes(&number.unwrap_or(0).to_le_bytes())?;
        }
        Ok(())
    }
}

impl<R: Read> Summed<R> {
    fn read_normalization(&mut self) -> Result<IdNormalization, AccountsFileError> {
        let fold =
            |number: u8| NormalForm::ALL.get(usize::from(number)).copied().ok_or(AccountsFileError::Damaged);
        let [user, tenant, login] = self.array()?;
        Ok(IdNormalization { user: fold(user)?, tenant: fold(tenant)?, login: fold(login)? })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], AccountsFileError> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.sum.write(&bytes);
        Ok(bytes)
    }

    fn word(&mut self) -> Result<u64, AccountsFileError> {
        self.array().map(u64::from_le_bytes)
    }

    fn boolean(&mut self) -> Result<bool, AccountsFileError> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(AccountsFileError::Damaged),
        }
    }

    fn read_instant(&mut self) -> Result<Option<Timestamp>, AccountsFileError> {
        Ok(Some(self.word()?).filter(|micros| *micros != NEVER).map(Timestamp::from_micros))
    }

    fn read_text(&mut self) -> Result<String, AccountsFileError> {
        let length = self.word()?;
        let mut bytes = Vec::new();
        // As much as is there, whatever the length says.
        if self.inner.by_ref().take(length).read_to_end(&mut bytes)? as u64 != length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.sum.write(&bytes);
        String::from_utf8(bytes).map_err(|_| AccountsFileError::Damaged)
    }

    fn read_slots<T: Eq + Hash>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, AccountsFileError>,
    ) -> Result<Arc<Pool<T>>, AccountsFileError> {
        let mut pool = Pool::default();
        for _ in 0..self.word()? {
            let value = if self.boolean()? { Some(read(self)?) } else { None };
            if !pool.push_slot(value) {
                return Err(AccountsFileError::Damaged);
            }
        }
        Ok(Arc::new(pool))
    }

    fn read_own(&mut self, namespace: &str) -> Result<CompiledLimits, AccountsFileError> {
        let mut number = || {
            let is_given = self.boolean()?;
            let number = u32::from_le_bytes(self.array()?);
            Ok::<_, AccountsFileError>(Some(number).filter(|_| is_given))
        };
        let (requests_per_second, requests_per_hour, requests_per_day, burst) =
            (number()?, number()?, number()?, number()?);
        let limits = AccountLimits { requests_per_second, requests_per_hour, requests_per_day, burst };
        if limits.is_empty() {
            return Err(AccountsFileError::Damaged);
        }
        CompiledLimits::new(namespace, limits).map_err(|_| AccountsFileError::Damaged)
    }

    fn read_user(&mut self, editor: &mut AccountsEditor) -> Result<(), AccountsFileError> {
        let hash = u128::from_le_bytes(self.array()?);
        let [tier, limits] = [self.array()?, self.array()?];
        let [tier, limits] = [tier, limits].map(u32::from_le_bytes).map(PoolId::from_word);
        is_there(&editor.accounts().tiers, tier)?;
        is_there(&editor.accounts().quotas, limits)?;
        editor.put_user_hashed(hash, UserRecord { tier, limits });
        Ok(())
    }

    fn read_key(&mut self, editor: &mut AccountsEditor) -> Result<(), AccountsFileError> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let mut bytes = [0; RECORD_BYTES_MAX];
        let bytes = bytes.get_mut(..length).ok_or(AccountsFileError::Damaged)?;
        self.inner.read_exact(bytes)?;
        self.sum.write(bytes);
        let key = KeyRecord::decode(bytes).filter(|(_, decoded)| *decoded == length);
        let (key, _) = key.ok_or(AccountsFileError::Damaged)?;
        is_there(&editor.accounts().tiers, key.tier)?;
        is_there(&editor.accounts().key_limits, key.limits)?;
        editor.put_key_fields(&key).map_err(|_| AccountsFileError::Damaged)
    }

    fn read_block(&mut self) -> Result<BlockRecord, AccountsFileError> {
        let [kind, is_v6, bits] = self.array()?;
        let kind = BlockKind::ALL.into_iter().find(|known| *known as u8 == kind);
        let kind = kind.ok_or(AccountsFileError::Damaged)?;
        let length = NetworkLength { is_v6: is_v6 != 0, bits };
        let until = self.read_instant()?;
        Ok(BlockRecord { kind, length, until, reason: self.read_text()?.into() })
    }
}

/// A value in common that somebody has must be there.
fn is_there<T: Eq + Hash>(pool: &Pool<T>, id: Option<PoolId>) -> Result<(), AccountsFileError> {
    match id {
        Some(id) if pool.get(id).is_none() => Err(AccountsFileError::Damaged),
        _ => Ok(()),
    }
}
