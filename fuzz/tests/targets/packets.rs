//! Packets for a device with live queue pairs of three transport services.

use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::icrc::icrc_ipv4;
use barewire_layouts::roce::{DEFAULT_PKEY, Reth, UDP_PORT};
use barewire_layouts::wqe::Opcode;
use bolero::check;
use zerocopy::IntoBytes;

use crate::allocation;
use crate::script::{Script, bytes_to};
use crate::support::foreign::{Foreign, PSN, QPN};
use crate::support::{Connection, Qp, Region, Wqe};

const REGION: usize = 4096;
/// Maximum memory for one packet: its frame and its responses.
const SHARE: usize = 1 << 20;
const SERVICES: [u8; 3] = [0x00, 0x20, 0x60];

struct Target {
    foreign: Foreign,
    others: [Qp; 2],
    region: Region,
    /// The first request is retransmitted repeatedly, so packets with the expected sequence number
    /// get through.
    psn: u32,
}

impl Target {
    fn new() -> Self {
        let mut foreign = Foreign::new(&Connection::default());
        let region = foreign.node.region(REGION);
        let mut others = [ServiceType::Uc, ServiceType::Ud]
            .map(|service| Qp::with_service(&foreign.node, service));
        let gid = foreign.address().to_ipv6_mapped().octets();
        for qp in &mut others {
            qp.connect_to(gid, QPN, &Connection::default(), (PSN, PSN));
        }
        for qp in others.iter_mut().chain([&mut foreign.qp]) {
            for _ in 0..4 {
                qp.post_receive(&[(region.address(), REGION, region.key)]);
            }
        }
        // Requests for which there may be responses.
        for opcode in [Opcode::RdmaRead, Opcode::RdmaWrite] {
            let wqe = Wqe::new(opcode).remote(1, 2).data(region.address(), 2000, region.key);
            foreign.qp.post(&wqe);
        }
        let atomic = Wqe::new(Opcode::AtomicFetchAdd).remote(8, 2).atomic(1, 0);
        foreign.qp.post(&atomic.data(region.address(), 8, region.key));
        foreign.node.device.step();
        Self { foreign, others, region, psn: 0 }
    }

    /// Sends a packet with a header that the device does not drop, followed by the script's bytes.
    fn frame(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        let [selector, opcode, flags, lead, length] = script.array();
        let service = usize::from(selector % 4);
        if service == 3 {
            return script.bytes(length.into()).to_vec();
        }
        let qp =
            if service == 0 { self.foreign.qp.number } else { self.others[service - 1].number };
        // Usually the expected number, and sometimes one shortly before or after.
        let psn = (PSN + self.psn).wrapping_add_signed((lead as i8 / 16).into()) & 0xff_ffff;
        self.psn += 1;
        let mut frame = vec![SERVICES[service] | opcode & 0x1f, flags & 0xf0];
        frame.extend(DEFAULT_PKEY.to_be_bytes());
        frame.extend(qp.to_be_bytes());
        frame[4] = flags << 6;
        frame.extend((psn | u32::from(selector) << 24 & 0x8000_0000).to_be_bytes());
        if selector & 4 != 0 {
            let offset = u64::from(script.number() % REGION as u16);
            let length = u32::from(script.number());
            let reth = Reth {
                address: (self.region.address() + offset).into(),
                rkey: self.region.key.into(),
                length: length.into(),
            };
            frame.extend(reth.as_bytes());
        }
        frame.extend(script.bytes(length.into()));
        if selector & 8 != 0 {
            // A full packet, like those in the middle of a message.
            frame.resize(frame.len() + 256, length);
        }
        frame.resize(frame.len().next_multiple_of(4), 0);
        let device = self.foreign.node.device.address();
        let std::net::IpAddr::V4(device) = device else { panic!("{device}: an IPv4 device") };
        let source = self.foreign.address().octets();
        frame.extend(icrc_ipv4(source, device.octets(), UDP_PORT, UDP_PORT, &frame));
        frame
    }
}

#[test]
fn any_packets() {
    check!().with_generator(bytes_to(1024)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let mut target = Target::new();
        while !script.is_over() {
            let frame = target.frame(&mut script);
            let most = allocation::peak(|| {
                target.foreign.send_raw(&target.foreign.socket, &frame);
                // Other tests check the responses.
                while target.foreign.socket.recv(&mut [0; 64]).is_ok() {}
            });
            assert!(most < SHARE, "{most} bytes for one packet");
        }
        // In every case, each work request completes once.
        target.foreign.qp.to_error();
        target.foreign.node.device.step();
        let sends = target.foreign.qp.send_cq.drain();
        assert!(sends.iter().map(|one| one.index).eq(0..3), "{sends:?}");
        let receives = target.foreign.qp.receive_cq.drain();
        assert!(receives.iter().map(|one| one.index).eq(0..4), "{receives:?}");
    });
}
