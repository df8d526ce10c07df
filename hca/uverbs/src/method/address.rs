//! Address handles: CREATE_AH. libmlx5 keeps them and asks for the peer's MAC address only.

use zerocopy::IntoBytes;

use crate::abi::{CreateAh, CreateAhDriver, driver};
use crate::attributes::Attributes;
use crate::config::Link;
use crate::context::Context;
use crate::errno::Errno;
use crate::object::{Object, Pd};

use super::device::{check_gid, check_port};
use super::legacy::{CORE_IN, CORE_OUT};

/// CREATE_AH.
pub(super) fn create(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let request: CreateAh = call.structure(CORE_IN)?;
    let path = &request.attr;
    check_port(&context.adapter, path.port_num)?;
    let roce = context.adapter.link == Link::Roce;
    if path.is_global != 0 {
        check_gid(&context.adapter, path.sgid_index)?;
    } else if roce {
        return Err(Errno::INVALID);
    }
    let mut state = context.state();
    state.objects.get::<Pd>(request.pd_handle)?;
    // The device derives MAC addresses from IP addresses (`02:00` and the last four bytes), so this
    // is the peer's.
    let [.., a, b, c, d] = path.dgid;
    let response = CreateAhDriver {
        response_length: size_of::<CreateAhDriver>() as u32,
        dmac: if roce { [2, 0, a, b, c, d] } else { [0; 6] },
        reserved: [0; 6],
    };
    let address = Object::Ah { pd: request.pd_handle };
    state.objects.insert_given(&context.adapter, address, |handle| {
        call.put(driver::OUT, response.as_bytes())?;
        call.put_word(CORE_OUT, handle)
    })
}
