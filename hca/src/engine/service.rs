//! Properties of the transport services.

use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::roce::Transport;

/// Returns the transport in the packets of a queue pair. Masked atomics have another, see
/// `atomic.rs`.
pub(super) fn transport(service: ServiceType) -> Transport {
    match service {
        ServiceType::Uc => Transport::Uc,
        ServiceType::Ud => Transport::Ud,
        ServiceType::Xrc => Transport::Xrc,
        ServiceType::Dci | ServiceType::Dct => Transport::Dc,
        _ => Transport::Rc,
    }
}

/// Returns whether requests of this service are acknowledged.
pub(super) fn is_reliable(service: ServiceType) -> bool {
    !matches!(service, ServiceType::Uc | ServiceType::Ud)
}
