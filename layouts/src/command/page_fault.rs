//! Page faults: PAGE_FAULT_RESUME (mlx5_ifc.h: `page_fault_resume_in`; since Linux 6.13 the same
//! bits are in `trans_page_fault_info`).
//!
//! The events that it answers are in [`crate::page_fault`].

use super::{StatusOut, requests};
use crate::page_fault::FaultKind;
use crate::prm::{Field, Layout, ViewMut, layouts};

layouts! {
    /// Lets the work that waits for pages go on, or fail.
    PageFaultResumeIn: 16, "page_fault_resume_in";
}

requests! {
    PageFaultResumeIn => PageFaultResume, StatusOut;
}

impl PageFaultResumeIn {
    /// The pages could not be brought in: the work fails.
    pub const ERROR: Field<Self, bool> = Field::new(0x40, 1);
    /// [`FaultKind`] of the event.
    pub const PAGE_FAULT_TYPE: Field<Self, u8> = Field::new(0x45, 3);
    /// The queue of the event; the token if the event names none.
    pub const WQ_NUMBER: Field<Self> = Field::new(0x48, 24);
    /// The token of the event.
    pub const TOKEN: Field<Self> = Field::new(0x68, 24);

    /// Fills in the answer to a fault of this kind, queue and token.
    pub fn answer(input: &mut ViewMut<'_, Self>, fault: (FaultKind, u32, u32), failed: bool) {
        let (kind, queue, token) = fault;
        input
            .set(Self::ERROR, failed)
            .set(Self::PAGE_FAULT_TYPE, kind.bits())
            .set(Self::WQ_NUMBER, queue)
            .set(Self::TOKEN, token);
    }
}

const _: () = assert!(PageFaultResumeIn::BYTES == 0x80 / 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;

    #[test]
    fn page_fault_resume_byte_for_byte() {
        let mut bytes = [0; PageFaultResumeIn::BYTES];
        let mut resume = request::<PageFaultResumeIn>(&mut bytes).unwrap();
        let kind = FaultKind::REQUESTER | FaultKind::WRITE;
        PageFaultResumeIn::answer(&mut resume, (kind, 0x0a_0b0c, 0x01_0203), true);
        let want = [0x02, 0x04, 0, 0, 0, 0, 0, 0, 0x83, 0x0a, 0x0b, 0x0c, 0, 1, 2, 3];
        assert_eq!(bytes, want);
    }
}
