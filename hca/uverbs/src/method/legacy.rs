//! Commands of the older write() ABI, received through `UVERBS_METHOD_INVOKE_WRITE`.

use std::sync::Arc;

use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
use zerocopy::IntoBytes;

use crate::abi::{OpenXrcd, command, driver};
use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::event::Channel;
use crate::object::{Object, Pd};

use super::{
    address, completion, device, memory, modify, multicast, query_qp, queue_pair, shared_receive,
};

/// The command's input and output, without the header of the write() ABI.
pub(super) const CORE_IN: u16 = 0;
pub(super) const CORE_OUT: u16 = 1;
/// The number of the command.
pub(crate) const COMMAND: u16 = 2;

/// `UVERBS_METHOD_INVOKE_WRITE`.
pub(super) fn invoke(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[CORE_IN, CORE_OUT, COMMAND, driver::IN, driver::OUT])?;
    let number = call.word(COMMAND)?;
    if !call.has(CORE_IN) && !call.has(CORE_OUT) {
        // libibverbs probes for this method with a short buffer; ENOSPC means that it exists.
        return Err(Errno::NO_SPACE);
    }
    let result = match number {
        command::QUERY_DEVICE => {
            call.put(CORE_OUT, device::attributes(&context.adapter)?.as_bytes())
        }
        command::QUERY_DEVICE_EX => {
            call.put(CORE_OUT, device::attributes_ex(&context.adapter)?.as_bytes())?;
            call.put(
                driver::OUT,
                device::own_attributes(&context.adapter, call.room(driver::OUT))?.as_bytes(),
            )
        }
        command::ALLOC_PD => alloc_pd(context, call),
        command::CREATE_AH => address::create(context, call),
        command::REG_MR => memory::register(context, call),
        command::REREG_MR => memory::change(context, call),
        command::CREATE_COMP_CHANNEL => completion_channel(context, call),
        command::RESIZE_CQ => completion::resize(context, call),
        command::MODIFY_CQ_EX => completion::modify(context, call),
        command::QUERY_QP => query_qp::query(context, call),
        command::OPEN_QP => queue_pair::open(context, call),
        command::OPEN_XRCD => open_xrcd(context, call),
        command::ATTACH_MCAST => multicast::attach(context, call),
        command::DETACH_MCAST => multicast::detach(context, call),
        command::ALLOC_MW => memory::window(context, call),
        command::MODIFY_QP | command::MODIFY_QP_EX => modify::modify(context, call),
        command::MODIFY_SRQ => shared_receive::modify(context, call),
        command::QUERY_SRQ => shared_receive::query(context, call),
        _ => Err(Errno::UNSUPPORTED.because("the software HCA does not have it")),
    };
    // This ABI reports every invalid handle with the same error.
    result.map_err(|error| if error == Errno::NO_ENTRY { Errno::INVALID } else { error })
}

fn alloc_pd(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let answer = context.adapter.command::<AllocPdIn>(|_| {})?;
    let number = answer.view::<AllocPdIn>()?.get(AllocPdOut::PD);
    let pd = Object::Pd(Pd { number });
    context.state().objects.insert_given(&context.adapter, pd, |handle| {
        call.put_word(driver::OUT, number)?;
        call.put_word(CORE_OUT, handle)
    })
}

/// OPEN_XRCD.
fn open_xrcd(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let request: OpenXrcd = call.structure(CORE_IN)?;
    let adapter = &context.adapter;
    let mut state = context.state();
    let domain = adapter.shared().open(adapter, request.fd, request.oflags as i32)?;
    let domain = Object::Xrcd(domain);
    state.objects.insert_given(adapter, domain, |handle| call.put_word(CORE_OUT, handle))
}

fn completion_channel(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let channel = Arc::new(Channel::new(false)?);
    channel.hand_over(|descriptor| call.put_word(CORE_OUT, descriptor))?;
    context.state().keep(&channel);
    Ok(())
}
