//! Accounts to disk and back, so that a node can start while the database is away.
//!
//! A header, the key of the hashes, the values in common, then users, keys and blocks, each list with its length before
//! it, and a checksum over all of it. Nothing is believed before the end is reached: a length only says how often to
//! read, never how much memory to take.

use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::blocks::{BlockKind, BlockRecord, NetworkLength};
use super::editor::{Editor, NewKey};
use super::keys::Fields;
use super::numbers::{Numbers, OwnNumbers};
use super::pool::{Pool, PoolId};
use super::{Accounts, KeyShard, Table, UserRecord};
use crate::identity::{ID_BYTES_MAX, Seed};
use crate::rules::overrides::{KEY_NAMESPACE, QUOTA_NAMESPACE};
use crate::time::Timestamp;

const MAGIC: [u8; 8] = *b"tollacc1";
/// Stands for no instant: no timestamp reaches it.
const NEVER: u64 = u64::MAX;

/// Why accounts cannot be read.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum AccountsError {
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
        out.bytes(&MAGIC)?;
        out.bytes(&self.seed.0)?;
        out.slots(&self.tiers, |out, tier| out.text(tier))?;
        out.slots(&self.quotas, |out, own| out.numbers(own.numbers))?;
        out.slots(&self.key_numbers, |out, own| out.numbers(own.numbers))?;
        out.length(self.users())?;
        for (hash, user) in self.users.iter().flat_map(Table::iter) {
            out.bytes(&hash.to_le_bytes())?;
            out.bytes(&PoolId::to_word(user.tier).to_le_bytes())?;
            out.bytes(&PoolId::to_word(user.numbers).to_le_bytes())?;
        }
        out.length(self.keys())?;
        for key in self.keys.iter().flat_map(KeyShard::iter) {
            out.key(&key)?;
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
    pub fn read_from(from: impl Read) -> Result<Accounts, AccountsError> {
        let mut input = Summed { inner: from, sum: SipHasher13::new() };
        if input.array::<8>()? != MAGIC {
            return Err(AccountsError::Foreign);
        }
        let mut editor = Editor::new(Accounts {
            seed: Seed(input.array()?),
            tiers: input.read_slots(|input| input.read_text().map(String::into_boxed_str))?,
            quotas: input.read_slots(|input| input.read_own(QUOTA_NAMESPACE))?,
            key_numbers: input.read_slots(|input| input.read_own(KEY_NAMESPACE))?,
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
        if sum == u64::from_le_bytes(expected) { Ok(editor.finish()) } else { Err(AccountsError::Damaged) }
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

    fn slots<T: Eq + std::hash::Hash>(
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

    fn numbers(&mut self, numbers: Numbers) -> io::Result<()> {
        for number in [numbers.per_second, numbers.per_hour, numbers.per_day, numbers.burst] {
            self.bytes(&[u8::from(number.is_some())])?;
            self.bytes(&number.unwrap_or(0).to_le_bytes())?;
        }
        Ok(())
    }

    fn key(&mut self, key: &Fields<'_>) -> io::Result<()> {
        self.text(key.id)?;
        self.bytes(key.verifier)?;
        self.bytes(key.previous.map_or(&[0; 32], |(verifier, _)| verifier))?;
        self.instant(key.previous.map(|(_, until)| until))?;
        // No identifier is empty: an empty text stands for none.
        self.text(key.user.unwrap_or_default())?;
        self.text(key.tenant.unwrap_or_default())?;
        self.bytes(&PoolId::to_word(key.tier).to_le_bytes())?;
        self.bytes(&PoolId::to_word(key.numbers).to_le_bytes())?;
        self.bytes(&key.scopes.to_le_bytes())?;
        self.instant(key.expires_at)?;
        self.bytes(&[u8::from(key.is_revoked)])
    }
}

impl<R: Read> Summed<R> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], AccountsError> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.sum.write(&bytes);
        Ok(bytes)
    }

    fn word(&mut self) -> Result<u64, AccountsError> {
        self.array().map(u64::from_le_bytes)
    }

    fn boolean(&mut self) -> Result<bool, AccountsError> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(AccountsError::Damaged),
        }
    }

    fn read_instant(&mut self) -> Result<Option<Timestamp>, AccountsError> {
        Ok(Some(self.word()?).filter(|micros| *micros != NEVER).map(Timestamp::from_micros))
    }

    fn read_text(&mut self) -> Result<String, AccountsError> {
        let length = self.word()?;
        let mut bytes = Vec::new();
        // As much as is there, whatever the length says.
        if self.inner.by_ref().take(length).read_to_end(&mut bytes)? as u64 != length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.sum.write(&bytes);
        String::from_utf8(bytes).map_err(|_| AccountsError::Damaged)
    }

    /// An identifier, or none.
    fn read_id(&mut self) -> Result<Option<String>, AccountsError> {
        let id = self.read_text()?;
        if id.len() > ID_BYTES_MAX {
            return Err(AccountsError::Damaged);
        }
        Ok(Some(id).filter(|id| !id.is_empty()))
    }

    fn read_slots<T: Eq + std::hash::Hash>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, AccountsError>,
    ) -> Result<Arc<Pool<T>>, AccountsError> {
        let mut pool = Pool::default();
        for _ in 0..self.word()? {
            let value = if self.boolean()? { Some(read(self)?) } else { None };
            if !pool.push_slot(value) {
                return Err(AccountsError::Damaged);
            }
        }
        Ok(Arc::new(pool))
    }

    fn read_own(&mut self, namespace: &str) -> Result<OwnNumbers, AccountsError> {
        let mut number = || {
            let is_given = self.boolean()?;
            let number = u32::from_le_bytes(self.array()?);
            Ok::<_, AccountsError>(Some(number).filter(|_| is_given))
        };
        let (per_second, per_hour, per_day, burst) = (number()?, number()?, number()?, number()?);
        let numbers = Numbers { per_second, per_hour, per_day, burst };
        if numbers.is_empty() {
            return Err(AccountsError::Damaged);
        }
        OwnNumbers::new(namespace, numbers).map_err(|_| AccountsError::Damaged)
    }

    /// The number of a value in common, which must be there.
    fn read_pool_id<T: Eq + std::hash::Hash>(
        &mut self,
        pool: &Pool<T>,
    ) -> Result<Option<PoolId>, AccountsError> {
        match PoolId::from_word(u32::from_le_bytes(self.array()?)) {
            Some(id) if pool.get(id).is_none() => Err(AccountsError::Damaged),
            id => Ok(id),
        }
    }

    fn read_user(&mut self, editor: &mut Editor) -> Result<(), AccountsError> {
        let hash = u128::from_le_bytes(self.array()?);
        let tier = self.read_pool_id(&editor.accounts().tiers)?;
        let numbers = self.read_pool_id(&editor.accounts().quotas)?;
        editor.put_user_hashed(hash, UserRecord { tier, numbers });
        Ok(())
    }

    fn read_key(&mut self, editor: &mut Editor) -> Result<(), AccountsError> {
        let id = self.read_id()?.ok_or(AccountsError::Damaged)?;
        let verifier = self.array()?;
        let previous: [u8; 32] = self.array()?;
        let previous = self.read_instant()?.map(|until| (previous, until));
        let (user, tenant) = (self.read_id()?, self.read_id()?);
        let tiers = Arc::clone(&editor.accounts().tiers);
        let tier = self.read_pool_id(&tiers)?.and_then(|tier| tiers.get(tier)).map(|tier| &**tier);
        let pool = Arc::clone(&editor.accounts().key_numbers);
        let numbers = self.read_pool_id(&pool)?.and_then(|own| pool.get(own));
        let key = NewKey {
            id: &id,
            verifier,
            previous,
            user: user.as_deref(),
            tenant: tenant.as_deref(),
            tier,
            numbers: numbers.map_or_else(Numbers::default, |own| own.numbers),
            scopes: u16::from_le_bytes(self.array()?),
            expires_at: self.read_instant()?,
            is_revoked: self.boolean()?,
        };
        editor.put_key(&key).map_err(|_| AccountsError::Damaged)
    }

    fn read_block(&mut self) -> Result<BlockRecord, AccountsError> {
        let [kind, is_v6, bits] = self.array()?;
        let kind = BlockKind::ALL.into_iter().find(|known| *known as u8 == kind);
        let kind = kind.ok_or(AccountsError::Damaged)?;
        let length = NetworkLength { is_v6: is_v6 != 0, bits };
        let until = self.read_instant()?;
        Ok(BlockRecord { kind, length, until, reason: self.read_text()?.into() })
    }
}
