//! Messages that the program keeps (`UCT_CB_PARAM_FLAG_DESC`).
//!
//! A transport that allocates its receive buffers lends the bytes in front of a message
//! ([`Message::keep_if`]). They hold what uct.h requires of a descriptor, so that a kept message is
//! neither copied nor needs memory:
//!
//! ```text
//! | Descriptor | unused | pointer to the descriptor | rx_headroom | data
//! ```
//!
//! The callback gets the flag only for messages whose headroom is lent. The others it copies.

use std::ffi::{c_uint, c_void};
use std::ptr::{NonNull, with_exposed_provenance_mut};

use barewire::{KeptMessage, MESSAGE_HEADROOM, Message};

use crate::abi::{AmCallback, IfaceParams};
use crate::status::{INPROGRESS, INVALID_PARAM, Status};

/// `UCT_CB_PARAM_FLAG_DESC`
const IS_DESCRIPTOR: c_uint = 1 << 0;

/// `uct_recv_desc_t`, with the message that it releases.
#[repr(C)]
struct Descriptor {
    release: unsafe extern "C" fn(*mut Descriptor, *mut c_void),
    message: KeptMessage,
}

const _: () = assert!(align_of::<Descriptor>() <= 8 && size_of::<Descriptor>() <= 72);
/// The longest `rx_headroom`.
const MOST: usize = MESSAGE_HEADROOM - size_of::<Descriptor>() - size_of::<*mut Descriptor>();

/// What a program requires of messages that it keeps.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Bytes in front of the data, or more than [`MOST`].
    headroom: usize,
    /// The data is aligned if its address and `offset` have none of these bits.
    mask: usize,
    offset: usize,
}

impl Layout {
    /// # Errors
    /// [`INVALID_PARAM`]: the alignment is not a power of two above its offset.
    pub(crate) fn new(params: &IfaceParams) -> Result<Self, Status> {
        let given = |field| params.field_mask & field != 0;
        let offset = if given(IfaceParams::AM_ALIGN_OFFSET) { params.am_align_offset } else { 0 };
        let alignment = if given(IfaceParams::AM_ALIGNMENT) { params.am_alignment } else { 1 };
        if !alignment.is_power_of_two() || offset >= alignment {
            crate::log::error(&"the alignment of messages is not a power of two above its offset");
            return Err(INVALID_PARAM);
        }
        let headroom = if given(IfaceParams::RX_HEADROOM) { params.rx_headroom } else { 0 };
        Ok(Self { headroom, mask: alignment - 1, offset })
    }

    /// Returns whether a message with this headroom and data can be kept.
    #[inline(always)]
    fn fits(self, headroom: &[u8], data: &[u8]) -> bool {
        !headroom.is_empty()
            && self.headroom <= MOST
            && data.as_ptr().addr().wrapping_add(self.offset) & self.mask == 0
    }
}

/// Calls the program's callback with a message, and keeps the message if the callback says so.
///
/// # Safety
/// The callback and its argument are those of `uct_iface_set_am_handler`.
#[inline(always)]
pub(crate) unsafe fn deliver(
    message: Message<'_>,
    layout: Layout,
    callback: AmCallback,
    argument: *mut c_void,
) {
    let mut start = NonNull::<u8>::dangling();
    let kept = message.keep_if(|headroom, data| {
        let fits = layout.fits(headroom, data);
        start = NonNull::from(&mut *headroom).cast();
        // The program reaches the headroom by the address of the data.
        start.as_ptr().expose_provenance();
        let data_start = with_exposed_provenance_mut(data.as_ptr().expose_provenance());
        let flags = if fits { IS_DESCRIPTOR } else { 0 };
        // SAFETY: the caller's promise. The callback reads the data, and writes at most as many bytes
        // in front of it as the program asked for, which are in the headroom (`fits`).
        let status = unsafe { callback(argument, data_start, data.len(), flags) };
        // Without the flag the callback copies what it keeps.
        fits && status == INPROGRESS
    });
    if let Some(message) = kept {
        // SAFETY: `fits` compared the lengths, and `start` is the start of the headroom of `message`.
        unsafe { hand_over(message, start, layout.headroom) };
    }
}

/// Writes the descriptor of a kept message.
///
/// # Safety
/// `start` is the first of [`MESSAGE_HEADROOM`] bytes in front of the data of `message`. `headroom`
/// is at most [`MOST`].
#[cold]
#[inline(never)]
unsafe fn hand_over(message: KeptMessage, start: NonNull<u8>, headroom: usize) {
    let descriptor = start.cast::<Descriptor>();
    // SAFETY: headrooms are aligned to 8, and have room for the descriptor, its pointer and the bytes
    // of the program (the definition of `MOST`), which may not be aligned. Until `release`, the
    // headroom belongs to the kept message, which the descriptor owns.
    unsafe {
        let place = start.add(MESSAGE_HEADROOM - headroom - size_of::<*mut Descriptor>());
        descriptor.write(Descriptor { release, message });
        place.cast::<NonNull<Descriptor>>().write_unaligned(descriptor);
    }
}

/// `uct_iface_release_desc` calls this function.
unsafe extern "C" fn release(descriptor: *mut Descriptor, _: *mut c_void) {
    // SAFETY: the program releases a descriptor once. The copy is moved out of the buffer before its
    // drop returns the buffer.
    drop(unsafe { descriptor.read() }.message);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(mask: u64, alignment: usize, offset: usize) -> Result<Layout, Status> {
        // SAFETY: zeros are valid: null pointers, numbers and no function.
        let mut params: IfaceParams = unsafe { std::mem::zeroed() };
        params.field_mask = mask;
        params.am_alignment = alignment;
        params.am_align_offset = offset;
        Layout::new(&params)
    }

    #[test]
    fn alignments_are_checked() {
        let (alignment, offset) = (IfaceParams::AM_ALIGNMENT, IfaceParams::AM_ALIGN_OFFSET);
        for wrong in [
            layout(alignment, 0, 0),
            layout(alignment, 3, 0),
            layout(alignment | offset, 8, 8),
            layout(offset, 0, 11),
        ] {
            assert_eq!(wrong.err(), Some(INVALID_PARAM));
        }
        let bytes = [0_u64; 2];
        let data = &bytes.as_ptr().cast::<u8>();
        // SAFETY: inside of the array.
        let data = unsafe { std::slice::from_raw_parts(data.add(4), 8) };
        let fits = |alignment_, offset_| {
            layout(alignment | offset, alignment_, offset_).unwrap().fits(&[0], data)
        };
        assert!(fits(4, 0) && fits(8, 4) && !fits(8, 0) && !fits(8, 3));
        assert!(!layout(0, 0, 0).unwrap().fits(&[], data));
    }
}
