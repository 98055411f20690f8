//! Charges: bytes that count as held by a connection until they are dropped.

use std::sync::Arc;

use prost::bytes::{Buf, Bytes};

use super::{Account, NoHeldRoom};

/// Bytes charged to a connection until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    account: Arc<Account>,
    bytes: usize,
}

impl HeldBytes {
    /// Charges `bytes`, and closes the connection if there is no room for them.
    pub(crate) fn new(account: &Arc<Account>, bytes: usize) -> Self {
        let held = Self {
            account: account.clone(),
            bytes,
        };
        if account.take(bytes).is_err() {
            account.end();
        }
        held
    }

    /// Changes the charge to `bytes`, and closes the connection if there is no room for them. A charge that is slightly
    /// too large stays.
    pub(crate) fn resize(&mut self, bytes: usize) {
        const LITTLE: usize = 512;
        if let Some(more @ 1..) = bytes.checked_sub(self.bytes) {
            self.bytes = bytes;
            if self.account.take(more).is_err() {
                self.account.end();
            }
        } else if self.bytes - bytes > LITTLE {
            self.account.give_back(self.bytes - bytes);
            self.bytes = bytes;
        }
    }

    /// Charges `bytes` if there is room.
    ///
    /// # Errors
    ///
    /// If there is no room.
    pub(crate) fn try_new(account: &Arc<Account>, bytes: usize) -> Result<Self, NoHeldRoom> {
        let mut held = Self {
            account: account.clone(),
            bytes: 0,
        };
        held.add(bytes)?;
        Ok(held)
    }

    /// Charges more bytes if there is room.
    ///
    /// # Errors
    ///
    /// If there is no room. What was charged is given back on drop.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), NoHeldRoom> {
        self.bytes += bytes;
        self.account.take(bytes)
    }

    /// The account of the connection.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Attaches the charge to `bytes`; it is given back when their last reference is dropped.
    pub(crate) fn with(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(HeldVec { bytes, _held: self })
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}

struct HeldVec {
    bytes: Vec<u8>,
    _held: HeldBytes,
}

impl AsRef<[u8]> for HeldVec {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes of a reply, charged until they are written or dropped.
///
/// Boxed, because hyper keeps room for two of them in the task of each call, and moving them costs more than an
/// allocation.
#[derive(Debug)]
pub(crate) struct ReplyBytes(Box<(Bytes, HeldBytes)>);

impl ReplyBytes {
    pub(crate) fn new(bytes: Bytes, held: HeldBytes) -> Self {
        Self(Box::new((bytes, held)))
    }
}

impl Buf for ReplyBytes {
    fn remaining(&self) -> usize {
        self.0.0.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.0.0.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.0.0.advance(count);
    }
}
