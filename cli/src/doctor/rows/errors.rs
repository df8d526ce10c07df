//! Errors of remote memory.

use barewire::{Access, Flags};

use super::super::outcome::{Checked, Halt, ensure};
use super::super::target::Target;
use super::session;

/// Writes to memory that is no longer registered: the endpoint must fail, and a new one work.
pub(in super::super) fn errors(target: &Target) -> Checked {
    const DURING: &str = "the write to deregistered memory";
    let mut session = session(target)?;
    let flags = session.attributes().flags;
    if !flags.contains(Flags::PUT_SHORT) {
        return Err(Halt::Skipped("the transport has no remote memory".to_owned()));
    }
    let memory = session.domain.allocate(4096, Access::all())?;
    let (address, packed) = (memory.address(), memory.pack_key());
    let key = session.domain.unpack_key(&packed)?;
    memory.deregister()?;
    let endpoint = session.endpoint.clone();
    session.wait.post(DURING, || endpoint.put_short(&[1; 8], address, &key))?;
    let flushed = session.flush(DURING, 8);
    ensure(flushed.is_err(), || "a write to deregistered memory succeeded".to_owned())?;
    let error = endpoint.error().ok_or_else(|| Halt::failed("the endpoint has no error"))?;
    // All of it: a software HCA with a fixed address is opened once at a time.
    drop((session, endpoint, key));
    let mut again = self::session(target)?;
    let memory = again.allocate(8)?;
    let remote = again.exchange(&memory, 8)?;
    let endpoint = again.endpoint.clone();
    again.wait.post(DURING, || endpoint.put_short(&[7; 8], remote.address, &remote.key))?;
    again.flush(DURING, 8)?;
    ensure(memory.load_u64(0)? == u64::from_ne_bytes([7; 8]), || {
        "the next endpoint wrote other bytes".to_owned()
    })?;
    Ok(format!("reported as: {error}"))
}
