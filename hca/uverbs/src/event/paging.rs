//! The kernel's part in page faults (linux odp.c: `mlx5_ib_pfault`).

use barewire_layouts::command::page_fault::PageFaultResumeIn;
use barewire_layouts::page_fault::PageFault;

use crate::adapter::Adapter;

/// Returns whether the kernel finds the queue of a fault. If faults name WQEs, it knows its own queues
/// only, and leaves the others stopped (linux odp.c: `odp_get_rsc`).
pub(super) fn is_served(adapter: &Adapter, fault: &PageFault) -> bool {
    match *fault {
        PageFault::Wqe { queue, .. } if adapter.device.requirements().faults_name_wqes() => {
            adapter.events().knows_queue(queue)
        }
        PageFault::Wqe { .. } | PageFault::Rdma { .. } => true,
    }
}

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
