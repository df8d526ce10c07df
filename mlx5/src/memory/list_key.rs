//! Keys that work requests fill with ranges of other keys.

use barewire_layouts::wqe::UmrControlSegment;

#[cfg(feature = "verbs")]
use crate::backend::init_obj;
use crate::backend::{Backend, commands};
use crate::channel::Object;
#[cfg(feature = "verbs")]
use crate::context::Context;
#[cfg(feature = "verbs")]
use crate::context::DomainObject;
use crate::context::ProtectionDomain;
use crate::error::Error;
use crate::request::MAX_RANGES;

/// Entries of the list in a memory window of verbs.
pub(super) const SHORT: u32 = UmrControlSegment::LIST_UNIT as u32;

/// A key with a list. It is free, that is, without memory, until a work request fills it.
#[derive(Debug)]
pub(super) struct ListKey {
    /// With the low byte of the last change.
    key: u32,
    entries: u32,
    domain: ProtectionDomain,
    _object: Created,
}

#[derive(Debug)]
enum Created {
    Commands(#[expect(dead_code, reason = "dropping it destroys the key")] Box<dyn Object>),
    #[cfg(feature = "verbs")]
    Verbs(#[expect(dead_code, reason = "dropping it frees the key")] barewire_verbs::MemoryWindow),
}

impl ListKey {
    /// Creates a key with room for `entries`, which is rounded up. Sends of peers may invalidate it
    /// if `ends_by_send`.
    pub(super) fn create(
        domain: &ProtectionDomain,
        entries: u32,
        ends_by_send: bool,
    ) -> Result<Self, Error> {
        if entries == 0 || entries as usize > MAX_RANGES {
            let wanted = format!("1 to {MAX_RANGES}");
            return Err(Error::parameter("ranges of a memory key", entries, wanted));
        }
        let entries = entries.next_multiple_of(SHORT);
        let context = domain.context();
        let (object, key) = match (context.backend(), domain.object()) {
            (Backend::Commands(channel), object) => {
                let relaxed = context.capabilities().relaxed_keys;
                let variant = context.next_key_variant();
                let (channel, number) = (&**channel, object.number());
                let made = commands::create_list_key(
                    channel,
                    number,
                    entries,
                    ends_by_send,
                    relaxed,
                    variant,
                )?;
                (Created::Commands(made.0), made.1)
            }
            #[cfg(feature = "verbs")]
            (Backend::InitObj(_), DomainObject::Verbs { domain, .. }) => {
                let window = init_obj::allocate_window(domain, entries, ends_by_send)?;
                let key = window.key();
                (Created::Verbs(window), key)
            }
            #[cfg(feature = "verbs")]
            (Backend::InitObj(_), DomainObject::Commands { .. }) => Context::foreign()?,
        };
        Ok(Self { key, entries, domain: domain.clone(), _object: object })
    }

    /// The key with the low byte of the last change.
    #[inline]
    pub(super) fn key(&self) -> u32 {
        self.key
    }

    /// The key with the low byte of the next change: the device refuses older ones.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.key & !0xff | self.key.wrapping_add(1) & 0xff
    }

    /// Notes that a change to `key` was posted.
    #[inline]
    pub(super) fn changed(&mut self, key: u32) {
        self.key = key;
    }

    /// Entries for which the list has room.
    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    /// The protection domain of the key.
    pub(super) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }
}
