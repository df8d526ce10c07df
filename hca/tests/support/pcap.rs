//! Reads capture files by their published format, and computes the invariant CRC by the annex,
//! without code of the device.

use std::path::{Path, PathBuf};
use std::process::Command;

const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
const ETHERNET: usize = 14;
const UDP: usize = 8;
const BTH: usize = 12;

/// A file name of this test's own.
pub fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("barewire-hca-{}-{name}.pcap", std::process::id()))
}

/// One captured packet.
#[derive(Debug)]
pub struct Frame {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    /// Where its IP header ends.
    udp: usize,
}

impl Frame {
    /// The opcode of its base transport header.
    pub fn opcode(&self) -> u8 {
        self.bytes[self.udp + UDP]
    }

    /// Transport headers, payload and padding.
    pub fn transport(&self) -> &[u8] {
        &self.bytes[self.udp + UDP..self.bytes.len() - 4]
    }

    /// The four bytes at its end.
    pub fn icrc(&self) -> [u8; 4] {
        *self.bytes.last_chunk().unwrap()
    }

    /// What they should be: IBTA annex A17.3.3.
    pub fn computed_icrc(&self) -> [u8; 4] {
        let mut ip = self.bytes[ETHERNET..self.bytes.len() - 4].to_vec();
        let udp = self.udp - ETHERNET;
        if ip[0] >> 4 == 4 {
            // Type of service, time to live, header checksum.
            for at in [1, 8, 10, 11] {
                ip[at] = 0xff;
            }
        } else {
            // Traffic class, flow label, hop limit.
            ip[0] |= 0x0f;
            for at in [1, 2, 3, 7] {
                ip[at] = 0xff;
            }
        }
        // The UDP checksum, and the byte of FECN, BECN and reserved bits.
        for at in [udp + 6, udp + 7, udp + UDP + 4] {
            ip[at] = 0xff;
        }
        let covered = [[0xff; 8].as_slice(), &ip].concat();
        (!divide(&covered)).to_le_bytes()
    }
}

/// The remainder of the division by the Ethernet polynomial, one bit at a time.
fn divide(bytes: &[u8]) -> u32 {
    let mut remainder = u32::MAX;
    for byte in bytes {
        remainder ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = remainder & 1;
            remainder >>= 1;
            if carry == 1 {
                remainder ^= 0xedb8_8320;
            }
        }
    }
    remainder
}

/// The packets of a capture.
pub fn frames(pcap: &Path) -> Vec<Frame> {
    let file = std::fs::read(pcap).unwrap();
    assert_eq!(file[..4], 0xa1b2_c3d4_u32.to_ne_bytes());
    let mut rest = &file[FILE_HEADER..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_ne_bytes(rest[8..12].try_into().unwrap()) as usize;
        let bytes = rest[RECORD_HEADER..RECORD_HEADER + length].to_vec();
        let udp = ETHERNET + if bytes[12..14] == [0x08, 0x00] { 20 } else { 40 };
        assert!(bytes.len() >= udp + UDP + BTH + 4);
        frames.push(Frame { bytes, udp });
        rest = &rest[RECORD_HEADER + length..];
    }
    frames
}

/// Returns whether tshark can be run. If not, prints a message, and fails if `CI` is set.
pub fn has_tshark() -> bool {
    match Command::new("tshark").arg("--version").output() {
        Ok(_) => true,
        Err(error) => {
            eprintln!(
                "NOT TESTED: tshark cannot be run ({error}); install the Debian package tshark"
            );
            assert!(std::env::var_os("CI").is_none(), "continuous integration must have tshark");
            false
        }
    }
}

/// Returns for each packet the fields as tshark names and shows them; fields that a packet lacks
/// are empty.
pub fn tshark(pcap: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    // It takes the payload of any send for RPC over RDMA.
    command.args(["--disable-protocol", "rpcordma"]);
    command.arg("-r").arg(pcap).args(["-T", "fields", "-E", "separator=;", "-E", "occurrence=f"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    lines.lines().map(|line| line.split(';').map(str::to_owned).collect()).collect()
}
