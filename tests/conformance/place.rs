//! The places of the tests: every transport and device.

use barewire::config::Choice;
use barewire::{DeviceId, Domain, InterfaceConfig, TransportId};
use barewire_hca as hca;

use crate::support::{Pair, device};

/// A transport and a way to connect two ends.
#[derive(Clone)]
pub(crate) struct Place {
    /// The name in the table.
    pub(crate) name: String,
    kind: Kind,
    /// Interfaces match tags in the device.
    matches: bool,
}

#[derive(Clone)]
enum Kind {
    Self_,
    Shm,
    Cma,
    Tcp,
    /// Two ends on one software HCA.
    Loopback(TransportId),
    /// Two software HCAs, connected by UDP.
    Udp(TransportId),
    /// Devices of the machine.
    Machine {
        transport: String,
        devices: [String; 2],
    },
}

impl Place {
    /// All places, or those over the devices in the environment, if set:
    /// `BAREWIRE_TEST_DEVICES=mlx5_0:1,mlx5_1:1`, with the transports in
    /// `BAREWIRE_TEST_TRANSPORT=rc_mlx5,rc_verbs`.
    pub(crate) fn all() -> Vec<Self> {
        let Ok(devices) = std::env::var("BAREWIRE_TEST_DEVICES") else {
            let built_in = [
                ("self", Kind::Self_),
                ("shm", Kind::Shm),
                ("cma", Kind::Cma),
                ("tcp", Kind::Tcp),
                ("rc_mlx5 soft0", Kind::Loopback(TransportId::RcMlx5)),
                ("rc_mlx5 soft0-soft1", Kind::Udp(TransportId::RcMlx5)),
                ("dc_mlx5 soft0", Kind::Loopback(TransportId::DcMlx5)),
                ("dc_mlx5 soft0-soft1", Kind::Udp(TransportId::DcMlx5)),
                ("xrc_mlx5 soft0", Kind::Loopback(TransportId::XrcMlx5)),
                ("xrc_mlx5 soft0-soft1", Kind::Udp(TransportId::XrcMlx5)),
                ("ud_mlx5 soft0", Kind::Loopback(TransportId::UdMlx5)),
                ("ud_mlx5 soft0-soft1", Kind::Udp(TransportId::UdMlx5)),
            ];
            return built_in
                .map(|(name, kind)| Self { name: name.to_owned(), kind, matches: false })
                .into();
        };
        let transports =
            std::env::var("BAREWIRE_TEST_TRANSPORT").unwrap_or_else(|_| "rc_mlx5".to_owned());
        let label =
            std::env::var("BAREWIRE_TEST_LABEL").map_or(String::new(), |label| format!(" {label}"));
        let (one, other) = devices.split_once(',').expect("two devices, with a comma");
        let mut places = Vec::new();
        for transport in transports.split(',') {
            for [from, to] in [[one, one], [one, other]] {
                let short = |name: &str| name.trim_end_matches(":1").to_owned();
                let joined =
                    if from == to { short(from) } else { format!("{}-{}", short(from), short(to)) };
                let kind = Kind::Machine {
                    transport: transport.to_owned(),
                    devices: [from, to].map(str::to_owned),
                };
                let name = format!("{transport} {joined}{label}");
                places.push(Self { name, kind, matches: false });
            }
        }
        places
    }

    /// Returns whether the devices are opened without libibverbs.
    pub(crate) fn is_ours(&self) -> bool {
        !matches!(self.kind, Kind::Machine { .. })
    }

    /// The transport, if it is over an RDMA device.
    pub(crate) fn transport(&self) -> Option<TransportId> {
        match &self.kind {
            Kind::Loopback(transport) | Kind::Udp(transport) => Some(*transport),
            Kind::Machine { transport, .. } => transport.parse().ok(),
            Kind::Self_ | Kind::Shm | Kind::Cma | Kind::Tcp => None,
        }
    }

    /// This place, with interfaces that match tags in the device.
    pub(crate) fn matching_tags(&self) -> Self {
        Self { matches: true, ..self.clone() }
    }

    /// Two connected ends.
    pub(crate) fn pair(&self) -> Pair {
        self.pair_with(&InterfaceConfig::default())
    }

    /// Like `pair`, with these settings.
    pub(crate) fn pair_with(&self, config: &InterfaceConfig) -> Pair {
        let matching = self.matches.then(|| config.clone().tag_matching(Choice::Yes));
        let config = matching.as_ref().unwrap_or(config);
        match &self.kind {
            Kind::Self_ => Pair::over_self(config),
            Kind::Shm => Pair::over_shm(config),
            Kind::Cma => Pair::over_cma(config),
            Kind::Tcp => Pair::over_tcp(config),
            Kind::Loopback(transport) => {
                let one = device(hca::Faults::default());
                Pair::over_soft("one device", config, *transport, [one.clone(), one])
            }
            Kind::Udp(transport) => {
                let [one, other] = [(); 2].map(|()| device(hca::Faults::default()));
                Pair::over_soft("two devices", config, *transport, [one, other])
            }
            Kind::Machine { transport, devices } => {
                let [one, other] = devices.each_ref().map(|name| {
                    Domain::open(&DeviceId::new(transport.parse().unwrap(), name)).unwrap()
                });
                let name = if devices[0] == devices[1] {
                    "one device of the machine"
                } else {
                    "two devices of the machine"
                };
                Pair::over_machine(name, config, &one, &other)
            }
        }
    }

    /// The transport and a device of this machine, for ends in other threads and processes.
    pub(crate) fn ends(&self) -> Option<[(&str, &str); 2]> {
        match &self.kind {
            Kind::Shm => Some([("shm", "memory"); 2]),
            Kind::Tcp => Some([("tcp", "lo"); 2]),
            // Each process that opens it has its own device.
            Kind::Udp(transport) => Some([(transport.name(), "soft0:1"); 2]),
            Kind::Cma => Some([("cma", "memory"); 2]),
            Kind::Self_ | Kind::Loopback(_) => None,
            Kind::Machine { transport, devices: [one, other] } => {
                Some([(transport, one), (transport, other)])
            }
        }
    }
}
