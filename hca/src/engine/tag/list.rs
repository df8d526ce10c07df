//! Operations on the list: WQEs with the tag matching opcode.

use barewire_layouts::cqe::TagEvent;
use barewire_layouts::wqe::{
    DataSegment, INLINE, INVALID_LKEY, TagFlags, TagOperation, TagSegment,
};

use crate::engine::failure::Failure;
use crate::engine::report::Finding;
use crate::engine::segments::Segments;
use crate::engine::{Port, Qp, completer};
use crate::object::{Full, TagBuffer};

/// A decoded operation.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Change {
    operation: TagOperation,
    completion: bool,
    /// Unexpected messages that software has processed, if the WQE requests it.
    count: Option<u16>,
    index: u16,
    /// Tag and mask.
    tag: (u64, u64),
    buffer: TagBuffer,
}

/// Reads the segments after the control segment.
pub(in crate::engine) fn change(segments: &mut Segments<'_>, ds: u32) -> Result<Change, Finding> {
    let segment: TagSegment = segments.next(ds, "room for the tag matching segment")?;
    let Some(operation) = segment.operation() else {
        let (what, got) = ("tag matching segment: opcode", u64::from(segment.operation >> 4));
        return Err(Finding::Value { what, got, wanted: "0 (no-op), 1 (append) or 2 (remove)" });
    };
    let mut buffer = TagBuffer::default();
    if operation == TagOperation::Append {
        let data: DataSegment = segments.next(ds, "room for the data segment of an append")?;
        let (length, lkey) = (data.byte_count.get(), data.lkey.get());
        if length & INLINE != 0 {
            let (what, got) = ("data segment of an append: byte count", u64::from(length));
            return Err(Finding::Value { what, got, wanted: "below 2^31" });
        }
        if lkey != INVALID_LKEY {
            buffer = TagBuffer { address: data.address.get(), length, lkey };
        }
    }
    let flags = segment.flags();
    Ok(Change {
        operation,
        completion: flags.contains(TagFlags::COMPLETION),
        count: flags.contains(TagFlags::SOFTWARE_COUNT).then_some(segment.software_count.get()),
        index: segment.index.get(),
        tag: (segment.tag.get(), segment.mask.get()),
        buffer,
    })
}

/// Executes the operation of WQE `index`. Returns why it fails, if it does.
pub(in crate::engine) fn execute(
    qp: &mut Qp,
    port: &mut Port<'_>,
    change: &Change,
    index: u16,
) -> Option<Failure> {
    let queue = qp.srq.and_then(|number| port.srqs.get_mut(number));
    let Some(tags) = queue.and_then(|srq| srq.tags.as_mut()) else {
        port.report(qp.number, index, Finding::NoTagList);
        return Some(Failure::BAD_WQE);
    };
    if let Some(count) = change.count {
        tags.synchronize(count);
    }
    let (event, success) = match change.operation {
        TagOperation::Nop => (TagEvent::Nop, true),
        TagOperation::Remove => (TagEvent::Remove, tags.remove(change.index)),
        TagOperation::Append => {
            if let Err(full) = tags.append(change.index, change.tag, change.buffer) {
                let finding = match full {
                    Full::Taken(entry) => Finding::TagEntryTaken { entry },
                    Full::Beyond => Finding::Value {
                        what: "tag matching segment: index",
                        got: change.index.into(),
                        wanted: "the next entry, below the size of the list",
                    },
                };
                port.report(qp.number, index, finding);
                return Some(Failure::BAD_WQE);
            }
            (TagEvent::Append, true)
        }
    };
    if change.completion {
        completer::list_changed(qp, port, (event, change.index), success);
    }
    None
}
