//! What the transport services have in common, and what not.

use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::roce::Transport;

/// The transport service that packets of a queue pair have. Masked atomics have another, see `atomic.rs`.
pub(super) fn transport(service: ServiceType) -> Transport {
    match service {
        ServiceType::Uc => Transport::Uc,
        ServiceType::Ud => Transport::Ud,
        ServiceType::Xrc => Transport::Xrc,
        ServiceType::Dci | ServiceType::Dct => Transport::Dc,
        _ => Transport::Rc,
    }
}

/// Whether what a queue pair of this service sends is acknowledged.
pub(super) fn is_reliable(service: ServiceType) -> bool {
    !matches!(service, ServiceType::Uc | ServiceType::Ud)
}
