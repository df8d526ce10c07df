//! The list of an interface's device, as matching sees it.

use std::rc::Rc;

use barewire::{Domain, Interface, TagReceive};

use super::super::buffer::Buffer;
use super::super::offload::List;

/// A receive with the buffer that the device writes to.
pub(in crate::tag) trait HasBuffer {
    fn buffer(&self) -> &Buffer;
}

/// The receives in the list, by an index of our own, which is the context of their events.
#[derive(Debug)]
pub(in crate::tag) struct DeviceList {
    interface: Interface,
    domain: Rc<Domain>,
    /// The shortest buffer that the device gets.
    least: usize,
    posted: Vec<Option<TagReceive>>,
    free: Vec<u16>,
}

impl DeviceList {
    /// Buffers of fewer than `threshold` bytes stay in software, and so do those that are shorter
    /// than the longest eager message: a message that is too long for the buffer in the list would
    /// fail its connection.
    pub(in crate::tag) fn new(
        interface: &Interface,
        domain: &Rc<Domain>,
        threshold: usize,
    ) -> Self {
        Self {
            interface: interface.clone(),
            domain: Rc::clone(domain),
            least: threshold.max(interface.attributes().tag.max_zcopy),
            posted: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<R: HasBuffer> List<R> for DeviceList {
    fn append(&mut self, tag: u64, mask: u64, receive: &R) -> Option<u16> {
        let buffer = receive.buffer();
        if buffer.len() < self.least {
            return None;
        }
        let index = self.free.last().copied().or_else(|| self.posted.len().try_into().ok())?;
        let posted = buffer.registered(&self.domain, |memory, _| {
            let slice = memory.slice(0, buffer.len()).ok()?;
            self.interface.tag_receive(tag, mask, &slice, index.into()).ok()
        });
        // A full list, or memory that cannot be registered.
        let posted = posted.ok().flatten()?;
        self.free.pop();
        let at = usize::from(index);
        if self.posted.len() <= at {
            self.posted.resize(at + 1, None);
        }
        self.posted[at] = Some(posted);
        Some(index)
    }

    fn remove(&mut self, entry: u16) {
        if let Some(receive) = self.posted.get(usize::from(entry)).copied().flatten() {
            // The transport has room for an append and a removal of each entry; one that was closed
            // ends all receives.
            let _ = self.interface.tag_cancel(receive, false);
        }
    }

    fn release(&mut self, entry: u16) {
        if let Some(place) = self.posted.get_mut(usize::from(entry))
            && place.take().is_some()
        {
            self.free.push(entry);
        }
    }
}
