//! A port for a program that takes its number as an argument.

use std::net::{Ipv4Addr, TcpListener};

/// Returns a free port that the kernel gives to no socket by itself (net.ipv4.ip_local_port_range):
/// no other test takes it before the program listens.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(10_000..32_768);
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}
