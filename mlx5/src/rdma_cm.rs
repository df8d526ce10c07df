//! Connections by IP address with any program that uses rdma_cm: those of
//! [`barewire_verbs::rdma_cm`], which connect an [`RcQueuePair`] of this driver.
//!
//! Open the port that [`Connector`] or [`Request`] names, create the queue pair, post receives, and
//! pass it to [`Connector::connect`] or [`Request::accept`]. `examples/rdma_cm.rs` does so on both
//! sides.

use barewire_layouts::command::qp::Mtu;
pub use barewire_verbs::rdma_cm::{
    Connect, ConnectError, Connection, ConnectionEvent, Connector, Listener, Offer, Path, Reason,
    Request, Step,
};

use crate::doorbell::Doorbell;
use crate::error::Error;
use crate::rc::{OwnReceive, RcQueuePair};
use crate::values::{Port, PortAddress, PortOptions, RcPath};

impl<D: Doorbell, R: OwnReceive> Connect for RcQueuePair<D, R> {
    type Error = Error;

    fn number(&self) -> u32 {
        Self::number(self)
    }

    fn device(&self) -> Option<&str> {
        self.context().device_name()
    }

    /// Connects with the GID that the connection manager has chosen.
    fn connect(&mut self, path: &Path) -> Result<(), Error> {
        let port = *self.port();
        let same = |what, found: u64, wanted: u64| {
            if found == wanted {
                return Ok(());
            }
            let wanted = format!("{wanted}, as the connection manager has chosen it");
            Err(Error::Parameter { what, value: found, wanted })
        };
        same("the port of the queue pair", port.number.into(), path.port.into())?;
        let (partition, wanted) = (port.partition_index, path.partition_index);
        same("the partition index of the queue pair", partition.into(), wanted.into())?;
        if let Some(global) = path.receive.route.global
            && global.source_index != port.gid_index
        {
            let gid_index = Some(global.source_index);
            let options = PortOptions { gid_index, partition_key: None };
            let chosen = self.context().choose_port(options)?;
            self.set_port(Port { partition_index: port.partition_index, ..chosen });
        }
        RcQueuePair::connect(self, &rc_path(path)?)
    }
}

/// The path in the terms of this driver. Its limits of reads and atomics are powers of two.
fn rc_path(path: &Path) -> Result<RcPath, Error> {
    let Path { receive, send, .. } = path;
    let bytes = receive.mtu;
    let mtu = Mtu::ALL.iter().find(|mtu| mtu.bytes() as u32 == bytes).copied();
    let mtu = mtu.ok_or_else(|| Error::parameter("path MTU", bytes, "256 to 4096"))?;
    let global = receive.route.global;
    Ok(RcPath {
        remote_qpn: receive.peer,
        remote: PortAddress {
            gid: global.map_or([0; 16], |global| global.gid.0),
            // The device or the kernel resolves it.
            mac: [0; 6],
            lid: receive.route.lid,
        },
        receive_psn: receive.packet_sequence_number,
        send_psn: Some(send.packet_sequence_number),
        mtu,
        ack_timeout: send.timeout,
        retry_count: send.retries,
        rnr_retry: send.rnr_retries,
        min_rnr_nak: receive.rnr_timer,
        log_max_reads: send.initiator_depth.checked_ilog2().unwrap_or(0) as u8,
        log_peer_reads: Some(log_responder_reads(receive.responder_resources)),
        traffic_class: global.map_or(0, |global| global.traffic_class),
        service_level: receive.route.service_level,
        enhancements: crate::Enhancements::NONE,
    })
}

/// log2 of the peer's reads, rounded up, so that as many as agreed are executed: at most 7, as the
/// field of the command has three bits.
fn log_responder_reads(reads: u8) -> u8 {
    u32::from(reads).next_power_of_two().ilog2().min(7) as u8
}
