//! The kernel's part in page faults (linux odp.c: `mlx5_ib_pfault`).

use barewire_layouts::command::page_fault::PageFaultResumeIn;
use barewire_layouts::page_fault::PageFault;

use crate::adapter::Adapter;

/// Brings in the pages of a fault, and lets the device go on; with an error, if the program has no
/// memory there.
pub(super) fn serve(adapter: &Adapter, fault: &PageFault) {
    let mut pages = adapter.device.absent_pages(fault).into_iter();
    let failed = pages.any(|pages| adapter.device.page_in(pages).is_err());
    // The device refuses it if the program has destroyed the queue, as the kernel's does.
    let _ = adapter.command::<PageFaultResumeIn>(|resume| {
        PageFaultResumeIn::answer(resume, fault.resumed_by(), failed);
    });
}
