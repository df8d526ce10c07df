//! Address handles: CREATE_AH. libmlx5 keeps them and asks for the peer's MAC address only.

use std::net::IpAddr;

use zerocopy::IntoBytes;

use crate::abi::{CreateAh, CreateAhDriver, driver};
use crate::attributes::Attributes;
use crate::config::Link;
use crate::context::Context;
use crate::elsewhere;
use crate::errno::Errno;
use crate::object::{Object, Pd};

use super::device::{check_port, check_route};
use super::legacy::{CORE_IN, CORE_OUT};

/// CREATE_AH.
pub(super) fn create(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let request: CreateAh = call.structure(CORE_IN)?;
    let path = &request.attr;
    check_port(&context.adapter, path.port_num)?;
    let roce = context.adapter.link == Link::Roce;
    if path.is_global != 0 {
        check_route(&context.adapter, (path.port_num, path.sgid_index), Some(path.dgid))?;
        elsewhere::tell(path.dgid);
    } else if roce {
        return Err(Errno::INVALID.because("attr.is_global: it is 0, and RoCE needs a GID"));
    }
    if roce {
        std::thread::sleep(context.adapter.device.requirements().address_delay);
    }
    let mut state = context.state();
    state.objects.get::<Pd>(request.pd_handle)?;
    let response = CreateAhDriver {
        response_length: size_of::<CreateAhDriver>() as u32,
        dmac: if roce { mac(path.dgid) } else { [0; 6] },
        reserved: [0; 6],
    };
    let address = Object::Ah { pd: request.pd_handle };
    state.objects.insert_given(&context.adapter, address, |handle| {
        call.put(driver::OUT, response.as_bytes())?;
        call.put_word(CORE_OUT, handle)
    })
}

/// Returns the MAC address of the peer or the multicast group with a GID.
fn mac(gid: [u8; 16]) -> [u8; 6] {
    barewire_hca::mac(IpAddr::from(gid).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_own_mac_addresses() {
        let of = |address: &str| match address.parse().unwrap() {
            IpAddr::V4(address) => mac(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => mac(address.octets()),
        };
        assert_eq!(of("127.7.0.1"), [2, 0, 127, 7, 0, 1]);
        assert_eq!(of("239.129.2.3"), [1, 0, 0x5e, 1, 2, 3]);
        assert_eq!(of("ff0e::102:304"), [0x33, 0x33, 1, 2, 3, 4]);
    }
}
