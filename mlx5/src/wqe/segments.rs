//! WQEs that refer to their payload.

use barewire_layouts::wqe::DataSegment;

use super::{Body, Sink, Unit};

/// The remote address if there is one, then a data segment for each non-empty one: a byte count of
/// zero means 2 GiB to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments<'a> {
    remote: Option<Unit>,
    local: &'a [DataSegment],
    filled: u32,
}

impl<'a> Segments<'a> {
    #[inline(always)]
    pub(crate) fn new(remote: Option<Unit>, local: &'a [DataSegment]) -> Self {
        let filled = local.iter().filter(|segment| segment.byte_count.get() != 0).count() as u32;
        Self { remote, local, filled }
    }
}

impl Body for Segments<'_> {
    #[inline(always)]
    fn units(&self) -> u32 {
        u32::from(self.remote.is_some()) + self.filled
    }

    #[inline(always)]
    fn emit(&self, sink: &mut impl Sink) {
        if let Some(remote) = self.remote {
            sink.unit(remote);
        }
        for segment in self.local {
            if segment.byte_count.get() != 0 {
                sink.unit(Unit::local(segment));
            }
        }
    }
}
