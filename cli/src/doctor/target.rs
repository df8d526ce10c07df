//! What the rows test: a device, or a transport on it.

use std::fmt;

use barewire::TransportId;
use barewire_tcp::HostAddress;

use super::outcome::{Checked, Halt};

/// The software HCA of a process.
pub(super) const SOFT: &str = "soft0:1";
/// The device of `shm` and `cma`, and that of `tcp` within a host.
pub(super) const MEMORY: &str = "memory";
pub(super) const LOOPBACK: &str = "127.0.0.1";
/// The variable that selects the backend of `rc_mlx5` on devices of the machine.
pub(super) const SETUP: &str = "BAREWIRE_MLX5_SETUP";

/// A port of a device, and the transport over it in rows about transports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// `NAME:PORT`; empty in rows about the host.
    pub(super) device: String,
    pub(super) transport: Option<TransportId>,
    /// The value of [`SETUP`], for `rc_mlx5` on a device of the machine.
    pub(super) setup: Option<&'static str>,
    /// Host and control port of the doctor that listens.
    pub(super) peer: Option<(String, u16)>,
}

impl Target {
    pub(super) fn host() -> Self {
        Self::device("")
    }

    pub(super) fn device(device: &str) -> Self {
        Self { device: device.to_owned(), transport: None, setup: None, peer: None }
    }

    /// The transports over this device, each with every backend.
    pub(super) fn paths(&self, is_mlx5: bool) -> Vec<Self> {
        let path = |transport, setup| Self {
            transport: Some(transport),
            setup,
            device: self.device.clone(),
            peer: self.peer.clone(),
        };
        if self.device == MEMORY {
            return vec![path(TransportId::Shm, None), path(TransportId::Cma, None)];
        }
        if !self.is_rdma() {
            return vec![path(TransportId::Tcp, None)];
        }
        // They set up the device as `rc_mlx5` does: by the first way that works.
        let others = [TransportId::UdMlx5, TransportId::DcMlx5, TransportId::XrcMlx5];
        let others = others.map(|id| path(id, None));
        if self.is_soft() {
            return [path(TransportId::RcMlx5, None)].into_iter().chain(others).collect();
        }
        let mlx5 = [Some("devx"), Some("init_obj")].map(|setup| path(TransportId::RcMlx5, setup));
        let mlx5 = mlx5.into_iter().chain(others);
        let verbs = [TransportId::RcVerbs, TransportId::UdVerbs].map(|id| path(id, None));
        mlx5.filter(|_| is_mlx5).chain(verbs).collect()
    }

    pub(super) fn is_soft(&self) -> bool {
        self.device == SOFT
    }

    /// Returns `true` for devices with queues; the others are memory and addresses.
    pub(super) fn is_rdma(&self) -> bool {
        self.device != MEMORY && self.device.parse::<HostAddress>().is_err()
    }

    /// Returns `true` if the transport is one over this project's driver.
    pub(super) fn is_mlx5(&self) -> bool {
        use TransportId::{DcMlx5, RcMlx5, UdMlx5, XrcMlx5};
        self.transport.is_some_and(|id| [RcMlx5, UdMlx5, DcMlx5, XrcMlx5].contains(&id))
    }

    /// Returns `true` for a software HCA that other hosts do not reach.
    pub(super) fn is_on_loopback(&self) -> Checked<bool> {
        let config = barewire_hca::Config::from_env();
        let address = config.map_err(|error| Halt::failed(error.to_string()))?.address;
        Ok(self.is_soft() && address.is_none_or(|address| address.is_loopback()))
    }

    /// The device's name and port.
    #[cfg(feature = "verbs")]
    pub(super) fn name_and_port(&self) -> Result<(&str, u8), Halt> {
        let (name, port) = self.device.split_once(':').unwrap_or((&self.device, "1"));
        match port.parse() {
            Ok(port) => Ok((name, port)),
            Err(_) => Err(Halt::failed(format!("'{port}' is not a port number"))),
        }
    }

    /// The transport of a row about transports.
    pub(super) fn transport(&self) -> Result<TransportId, Halt> {
        self.transport.ok_or_else(|| Halt::failed("the row has no transport"))
    }

    /// Opens the device as `rc_mlx5` does.
    pub(super) fn context(&self) -> Checked<barewire_mlx5::Context> {
        use barewire_mlx5::{Context, channel::soft::Soft, hca};

        if self.is_soft() {
            let device = hca::Config::from_env()
                .map_err(|error| Halt::failed(error.to_string()))
                .and_then(|config| Ok(hca::Device::open(config)?))?;
            return Ok(Context::open(Soft::new(device))?);
        }
        #[cfg(feature = "verbs")]
        {
            let way = std::env::var(SETUP).ok().and_then(|way| way.parse().ok());
            let (name, port) = self.name_and_port()?;
            Ok(barewire_mlx5::setup::open(name, port, way)?.context)
        }
        #[cfg(not(feature = "verbs"))]
        Err(Halt::Skipped("this build lacks the feature verbs".to_owned()))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.transport, &self.setup) {
            (Some(transport), Some(setup)) => {
                write!(f, "{transport} on {}, by {setup}", self.device)
            }
            (Some(transport), None) => write!(f, "{transport} on {}", self.device),
            (None, _) if self.device.is_empty() => f.write_str("this host"),
            (None, _) => f.write_str(&self.device),
        }
    }
}
