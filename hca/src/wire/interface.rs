//! The network interface that has an address.

use std::ffi::CString;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// Returns the bytes of the longest packet of the interface that has `address`: its MTU, at most
/// 65535. `None` if no interface has it, or the kernel does not say.
pub(crate) fn mtu(address: IpAddr) -> Option<u16> {
    let name = of(address).ok()?.name;
    let mtu = mtu_of(&CString::new(name).ok()?).ok()?;
    Some(mtu.clamp(0, i32::from(u16::MAX)) as u16)
}

/// Returns the index of the interface that has `address`.
///
/// # Errors
/// No interface has it, or the kernel's error.
pub(super) fn index(address: IpAddr) -> io::Result<u32> {
    of(address)?.index.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

fn of(address: IpAddr) -> io::Result<if_addrs::Interface> {
    let mut interfaces = if_addrs::get_if_addrs()?.into_iter();
    let found = interfaces.find(|interface| interface.ip() == address);
    found.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// netdevice(7), SIOCGIFMTU.
fn mtu_of(name: &CString) -> io::Result<i32> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: an `ifreq` of zeros is valid: an empty name, and a union of plain numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.to_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the descriptor is open while `socket` lives. The kernel reads the name, which ends with
    // a zero, and writes the MTU to the union; `request` is not used by anyone else meanwhile.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFMTU has written this field.
    Ok(unsafe { request.ifr_ifru.ifru_mtu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_an_mtu_and_a_strange_address_has_none() {
        let expected = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        let expected: u32 = expected.trim().parse().unwrap();
        let found = mtu("127.0.0.1".parse().unwrap());
        assert_eq!(found.map(u32::from), Some(expected.min(65535)));
        assert_eq!(mtu("192.0.2.77".parse().unwrap()), None);
    }
}
