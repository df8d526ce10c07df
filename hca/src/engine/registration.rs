//! Decoding of UMR work requests.

use barewire_layouts::command::mkey::Mkc;
use barewire_layouts::prm::Layout;
use barewire_layouts::wqe::{
    DS, DataSegment, MkeyContextSegment, UmrControlSegment, UmrFlags, UmrMask,
};
use zerocopy::transmute;

use super::report::Finding;
use super::segments::Segments;
use crate::memory::{Change, List};

const _: () = assert!(size_of::<MkeyContextSegment>() == Mkc::BYTES);

/// Reads the segments after the control segment, whose immediate is `key`.
pub(super) fn change(segments: &mut Segments<'_>, ds: u32, key: u32) -> Result<Change, Finding> {
    let control: UmrControlSegment = segments.next(ds, "room for the UMR control segment")?;
    let flags = UmrFlags::from_bits(control.flags).ok_or(Finding::Value {
        what: "UMR control segment: flags",
        got: control.flags.into(),
        wanted: "made of 0x08, 0x10, 0x20, 0x40 and 0x80",
    })?;
    // Only the kernel may change the other fields: protection domain, page size, local reads.
    let mask = UmrMask::from_bits(control.mask.get()).ok_or(Finding::Value {
        what: "UMR control segment: mkey_mask",
        got: control.mask.get(),
        wanted: "of the fields that a user may change: length, start address, key, QP number, rights but local read, free",
    })?;
    let offset = control.translation_offset.get();
    if !flags.contains(UmrFlags::TRANSLATION_OFFSET) && offset != 0 {
        let (what, got) = ("UMR control segment: bsf_octowords", u64::from(offset));
        return Err(Finding::Value { what, got, wanted: "0: there are no signatures" });
    }
    let context: MkeyContextSegment =
        segments.next(ds, "room for the memory key context segment")?;
    let octowords = usize::from(control.translation_octowords.get());
    let list = if octowords == 0 {
        None
    } else if flags.contains(UmrFlags::INLINE) {
        let bytes = segments.take(octowords * DS);
        if bytes.len() < octowords * DS {
            return Err(Finding::Ds { got: ds, wanted: "room for the list of translations" });
        }
        Some(List::Inline(bytes.to_vec()))
    } else {
        let data: DataSegment =
            segments.next(ds, "room for the data segment of the translations")?;
        let (length, wanted) = (data.byte_count.get(), (octowords * DS) as u32);
        if length != wanted {
            let (what, got) = ("data segment: length of the translations", u64::from(length));
            return Err(Finding::Value {
                what,
                got,
                wanted: "16 times the UMR control segment's klm_octowords",
            });
        }
        Some(List::Memory { address: data.address.get(), length, lkey: data.lkey.get() })
    };
    Ok(Change {
        key,
        flags,
        mask,
        context: transmute!(context),
        list: list.map(|list| (offset.into(), list)),
    })
}
