//! PAGE_FAULT_RESUME.

use barewire_layouts::command::page_fault::PageFaultResumeIn;
use barewire_layouts::page_fault::FaultKind;
use barewire_layouts::prm::View;

use super::Outcome;
use crate::engine::{Context, Engine};

/// PRM: PAGE_FAULT_RESUME.
pub(super) fn resume(
    engine: &mut Engine,
    device: &mut Context<'_>,
    input: View<'_, PageFaultResumeIn>,
) -> Outcome {
    let kind = FaultKind::from_bits_truncate(input.get(PageFaultResumeIn::PAGE_FAULT_TYPE));
    let queue = input.get(PageFaultResumeIn::WQ_NUMBER);
    let token = input.get(PageFaultResumeIn::TOKEN);
    engine.resume(device, (kind, queue, token), input.get(PageFaultResumeIn::ERROR))
}
