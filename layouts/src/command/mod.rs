//! PRM commands: inputs to the device's firmware, and its outputs.
//!
//! A command has an input (`...In`) and an output (`...Out`), both arrays of big-endian dwords that
//! start with a header. Offsets are those of the kernel's `mlx5_ifc.h`; fields that only user space
//! uses (`..._umem_id`, `..._umem_offset`) are in the PRM and in the headers of DEVX programs.
//!
//! ```
//! use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
//! use barewire_layouts::command::{self, CommandStatus};
//! use barewire_layouts::prm::{Layout, ViewMut};
//!
//! let mut input = [0; AllocPdIn::BYTES];
//! command::request::<AllocPdIn>(&mut input).expect("sized by the layout");
//! assert_eq!(input[..2], [0x08, 0x00]);
//!
//! let mut output = [0; AllocPdOut::BYTES];
//! ViewMut::<AllocPdOut>::new(&mut output).expect("sized by the layout").set(AllocPdOut::PD, 7);
//! let answer = command::answer::<AllocPdIn>(&output).expect("status OK");
//! assert_eq!(answer.get(AllocPdOut::PD), 7);
//! ```

use core::fmt;

use crate::prm::{Field, Layout, View, ViewMut, field_enum, layouts};

pub mod capability;
pub mod cq;
pub mod dct;
pub mod eq;
pub mod gid;
pub mod klm;
mod known;
pub mod mcg;
pub mod memic;
pub mod mkey;
pub mod page_fault;
pub mod pd;
pub mod port;
pub mod q_counter;
pub mod qp;
pub mod rmp;
pub mod srq;
pub mod strides;
pub mod uar;
pub mod umem;
pub mod xrc;
pub mod xrq;

field_enum! {
    /// Opcodes (mlx5_ifc.h: `MLX5_CMD_OP_*`) of the commands that barewire sends or executes.
    CommandOpcode: u16, "command opcode" {
        /// Reads a page of capabilities.
        QueryHcaCap = 0x100, "QUERY_HCA_CAP";
        /// Reads the card's names.
        QueryAdapter = 0x101, "QUERY_ADAPTER";
        /// Creates a memory key.
        CreateMkey = 0x200, "CREATE_MKEY";
        /// Reads a memory key's context.
        QueryMkey = 0x201, "QUERY_MKEY";
        /// Destroys a memory key.
        DestroyMkey = 0x202, "DESTROY_MKEY";
        /// Answers a page fault.
        PageFaultResume = 0x204, "PAGE_FAULT_RESUME";
        /// Allocates memory on the device.
        AllocMemic = 0x205, "ALLOC_MEMIC";
        /// Frees memory on the device.
        DeallocMemic = 0x206, "DEALLOC_MEMIC";
        /// Creates an event queue.
        CreateEq = 0x301, "CREATE_EQ";
        /// Destroys an event queue.
        DestroyEq = 0x302, "DESTROY_EQ";
        /// Reads an event queue's context.
        QueryEq = 0x303, "QUERY_EQ";
        /// Creates a completion queue.
        CreateCq = 0x400, "CREATE_CQ";
        /// Destroys a completion queue.
        DestroyCq = 0x401, "DESTROY_CQ";
        /// Reads a completion queue's context.
        QueryCq = 0x402, "QUERY_CQ";
        /// Changes a completion queue.
        ModifyCq = 0x403, "MODIFY_CQ";
        /// Creates a queue pair.
        CreateQp = 0x500, "CREATE_QP";
        /// Destroys a queue pair.
        DestroyQp = 0x501, "DESTROY_QP";
        /// Moves a queue pair from reset to init.
        Rst2InitQp = 0x502, "RST2INIT_QP";
        /// Moves a queue pair from init to ready-to-receive.
        Init2RtrQp = 0x503, "INIT2RTR_QP";
        /// Moves a queue pair from ready-to-receive to ready-to-send.
        Rtr2RtsQp = 0x504, "RTR2RTS_QP";
        /// Changes a queue pair that is ready to send.
        Rts2RtsQp = 0x505, "RTS2RTS_QP";
        /// Moves a queue pair to error.
        ToErrQp = 0x507, "2ERR_QP";
        /// Moves a queue pair to reset.
        ToRstQp = 0x50a, "2RST_QP";
        /// Reads a queue pair's context.
        QueryQp = 0x50b, "QUERY_QP";
        /// Changes a queue pair in init.
        Init2InitQp = 0x50e, "INIT2INIT_QP";
        /// Creates a shared receive queue.
        CreateSrq = 0x700, "CREATE_SRQ";
        /// Destroys a shared receive queue.
        DestroySrq = 0x701, "DESTROY_SRQ";
        /// Reads a shared receive queue's context.
        QuerySrq = 0x702, "QUERY_SRQ";
        /// Sets a shared receive queue's limit.
        ArmRq = 0x703, "ARM_RQ";
        /// Creates a shared receive queue of an XRC domain.
        CreateXrcSrq = 0x705, "CREATE_XRC_SRQ";
        /// Destroys a shared receive queue of an XRC domain.
        DestroyXrcSrq = 0x706, "DESTROY_XRC_SRQ";
        /// Reads the context of a shared receive queue of an XRC domain.
        QueryXrcSrq = 0x707, "QUERY_XRC_SRQ";
        /// Sets the limit of a shared receive queue of an XRC domain.
        ArmXrcSrq = 0x708, "ARM_XRC_SRQ";
        /// Creates a DC target.
        CreateDct = 0x710, "CREATE_DCT";
        /// Destroys a DC target.
        DestroyDct = 0x711, "DESTROY_DCT";
        /// Makes a DC target refuse new connections.
        DrainDct = 0x712, "DRAIN_DCT";
        /// Reads the context of a DC target.
        QueryDct = 0x713, "QUERY_DCT";
        /// Requests an event when an initiator has a wrong access key.
        ArmDctForKeyViolation = 0x714, "ARM_DCT_FOR_KEY_VIOLATION";
        /// Creates a shared receive queue with tag matching.
        CreateXrq = 0x717, "CREATE_XRQ";
        /// Destroys one.
        DestroyXrq = 0x718, "DESTROY_XRQ";
        /// Reads the context of one.
        QueryXrq = 0x719, "QUERY_XRQ";
        /// Sets the limit of one.
        ArmXrq = 0x71a, "ARM_XRQ";
        /// Reads whether the port is up.
        QueryVportState = 0x750, "QUERY_VPORT_STATE";
        /// Reads the Ethernet side of the port.
        QueryNicVportContext = 0x754, "QUERY_NIC_VPORT_CONTEXT";
        /// Reads an entry of the GID table.
        QueryRoceAddress = 0x760, "QUERY_ROCE_ADDRESS";
        /// Changes an entry of the GID table.
        SetRoceAddress = 0x761, "SET_ROCE_ADDRESS";
        /// Reads the InfiniBand side of the port.
        QueryHcaVportContext = 0x762, "QUERY_HCA_VPORT_CONTEXT";
        /// Reads GIDs.
        QueryHcaVportGid = 0x764, "QUERY_HCA_VPORT_GID";
        /// Reads partition keys.
        QueryHcaVportPkey = 0x765, "QUERY_HCA_VPORT_PKEY";
        /// Allocates a counter set.
        AllocQCounter = 0x771, "ALLOC_Q_COUNTER";
        /// Deallocates a counter set.
        DeallocQCounter = 0x772, "DEALLOC_Q_COUNTER";
        /// Reads a counter set.
        QueryQCounter = 0x773, "QUERY_Q_COUNTER";
        /// Creates a protection domain.
        AllocPd = 0x800, "ALLOC_PD";
        /// Deallocates a protection domain.
        DeallocPd = 0x801, "DEALLOC_PD";
        /// Allocates a UAR page.
        AllocUar = 0x802, "ALLOC_UAR";
        /// Deallocates a UAR page.
        DeallocUar = 0x803, "DEALLOC_UAR";
        /// Attaches a queue pair to a multicast group.
        AttachToMcg = 0x806, "ATTACH_TO_MCG";
        /// Detaches a queue pair from a multicast group.
        DetachFromMcg = 0x807, "DETACH_FROM_MCG";
        /// Creates an XRC domain.
        AllocXrcd = 0x80e, "ALLOC_XRCD";
        /// Deallocates an XRC domain.
        DeallocXrcd = 0x80f, "DEALLOC_XRCD";
        /// Reads how ports are bonded.
        QueryLag = 0x842, "QUERY_LAG";
        /// Creates a receive memory pool.
        CreateRmp = 0x90c, "CREATE_RMP";
        /// Changes a receive memory pool.
        ModifyRmp = 0x90d, "MODIFY_RMP";
        /// Destroys a receive memory pool.
        DestroyRmp = 0x90e, "DESTROY_RMP";
        /// Reads a receive memory pool's context.
        QueryRmp = 0x90f, "QUERY_RMP";
        /// Withdraws user memory from the device.
        DestroyUmem = 0xa0a, "DESTROY_UMEM";
    }
}

field_enum! {
    /// How a command ended (mlx5 device.h: `MLX5_CMD_STAT_*`).
    CommandStatus: u8, "command status" {
        /// Done.
        Ok = 0x00, "ok";
        /// The device failed.
        Internal = 0x01, "internal device error";
        /// No such command, or no such modifier.
        BadOperation = 0x02, "unknown or unsupported command";
        /// A parameter is out of its range or contradicts another.
        BadParameter = 0x03, "bad parameter";
        /// The device is not in a state that allows the command.
        BadSystemState = 0x04, "bad system state";
        /// A resource that the command names does not exist.
        BadResource = 0x05, "no such resource";
        /// The resource is in use.
        ResourceBusy = 0x06, "resource busy";
        /// Not yet.
        NotReady = 0x07, "device not ready";
        /// A limit of the device would be exceeded.
        LimitExceeded = 0x08, "limit exceeded";
        /// The resource is not in a state that allows the command.
        BadResourceState = 0x09, "resource in the wrong state";
        /// An index is beyond its table.
        BadIndex = 0x0a, "index out of range";
        /// Nothing is left of what the command asks for.
        NoResources = 0x0f, "out of resources";
        /// The queue pair is not in a state that allows the command.
        BadQpState = 0x10, "queue pair in the wrong state";
        /// A management packet is malformed.
        BadPacket = 0x30, "bad management packet";
        /// More CQEs are outstanding than the new size holds.
        BadSize = 0x40, "too many outstanding completions for the new size";
        /// The request is shorter than the command's layout.
        BadInputLength = 0x50, "bad input length";
        /// The output buffer is shorter than the command's layout.
        BadOutputLength = 0x51, "bad output length";
    }
}

layouts! {
    /// Header of every input.
    InHeader: 8, "cmd_in";
    /// Header of every output.
    OutHeader: 8, "cmd_out";
}

impl InHeader {
    /// The command.
    pub const OPCODE: Field<Self, CommandOpcode> = Field::new(0x0, 16);
    /// The user context that owns the objects (DEVX); 0 for the kernel.
    pub const UID: Field<Self, u16> = Field::new(0x10, 16);
    /// A variant of the command.
    pub const OP_MOD: Field<Self, u16> = Field::new(0x30, 16);
}

impl OutHeader {
    /// How it ended.
    pub const STATUS: Field<Self, CommandStatus> = Field::new(0x0, 8);
    /// Why it failed: a number that the firmware defines.
    pub const SYNDROME: Field<Self> = Field::new(0x20, 32);
}

/// The input of a command, with its opcode and the layout of its output.
pub trait Request: Layout {
    /// The command's opcode.
    const OPCODE: CommandOpcode;
    /// The layout of its output.
    type Answer: Layout;
}

/// Declares the opcode and output of an input: `AllocPdIn => AllocPd, AllocPdOut;`.
macro_rules! requests {
    ($($request:ident => $opcode:ident, $answer:ty;)+) => {$(
        impl $crate::command::Request for $request {
            const OPCODE: $crate::command::CommandOpcode = $crate::command::CommandOpcode::$opcode;
            type Answer = $answer;
        }
    )+};
}
pub(crate) use requests;

layouts! {
    /// The output of a command that returns only its status.
    StatusOut: 16, "status_out";
}

/// Clears `bytes`, writes the opcode of `R` and returns a view of the fields. Returns `None` if
/// `bytes` is shorter than the input.
pub fn request<R: Request>(bytes: &mut [u8]) -> Option<ViewMut<'_, R>> {
    bytes.fill(0);
    ViewMut::<InHeader>::new(bytes)?.set(InHeader::OPCODE, R::OPCODE);
    ViewMut::new(bytes)
}

/// Reads the output of `R`.
///
/// # Errors
/// [`CommandError`] if the status is not OK, or the bytes are shorter than the output's layout.
pub fn answer<R: Request>(bytes: &[u8]) -> Result<View<'_, R::Answer>, CommandError> {
    let short =
        CommandError { opcode: R::OPCODE, status: Ok(CommandStatus::BadOutputLength), syndrome: 0 };
    let header = View::<OutHeader>::new(bytes).ok_or(short)?;
    match header.get(OutHeader::STATUS) {
        Ok(CommandStatus::Ok) => View::new(bytes).ok_or(short),
        status => Err(CommandError {
            opcode: R::OPCODE,
            status: status.map_err(|unknown| unknown.bits as u8),
            syndrome: header.get(OutHeader::SYNDROME),
        }),
    }
}

/// A command that the device refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// The command.
    pub opcode: CommandOpcode,
    /// Its status; `Err` holds a number that [`CommandStatus`] does not name.
    pub status: Result<CommandStatus, u8>,
    /// The firmware's reason; 0 if it gave none.
    pub syndrome: u32,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: ", self.opcode)?;
        match self.status {
            Ok(status) => write!(f, "{status}")?,
            Err(number) => write!(f, "status {number:#04x}")?,
        }
        write!(f, " (syndrome {:#x}", self.syndrome)?;
        if let Some(cause) = known::known_cause(self.opcode, self.syndrome) {
            write!(f, ": {cause}")?;
        }
        f.write_str(")")
    }
}

impl core::error::Error for CommandError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn numbers_are_the_headers_own() {
        // mlx5_ifc.h and device.h
        assert_eq!(CommandOpcode::QueryHcaCap as u16, 0x100);
        assert_eq!(CommandOpcode::ToRstQp as u16, 0x50a);
        assert_eq!(CommandOpcode::try_from(0xa0a), Ok(CommandOpcode::DestroyUmem));
        assert!(CommandOpcode::try_from(0x1ff).is_err());
        assert_eq!(CommandStatus::try_from(0x51), Ok(CommandStatus::BadOutputLength));
        assert_eq!(CommandStatus::NoResources as u8, 0xf);
    }

    #[test]
    fn a_refusal_reads_as_a_sentence() {
        let mut bytes = [0; 16];
        let mut header = ViewMut::<OutHeader>::new(&mut bytes).unwrap();
        header.set(OutHeader::STATUS, CommandStatus::ResourceBusy).set(OutHeader::SYNDROME, 0x1234);
        assert_eq!(bytes, [6, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0]);
        let error = answer::<pd::DeallocPdIn>(&bytes).unwrap_err();
        assert_eq!(format!("{error}"), "DEALLOC_PD failed: resource busy (syndrome 0x1234)");
        bytes[0] = 0x77;
        let error = answer::<pd::DeallocPdIn>(&bytes).unwrap_err();
        assert_eq!(format!("{error}"), "DEALLOC_PD failed: status 0x77 (syndrome 0x1234)");
        // A syndrome whose meaning is known.
        bytes[..8].copy_from_slice(&[9, 0, 0, 0, 0, 0x31, 0xb6, 0x35]);
        let error = answer::<pd::DeallocPdIn>(&bytes).unwrap_err();
        let text = "DEALLOC_PD failed: resource in the wrong state (syndrome 0x31b635: memory keys of the protection domain still exist [linux-rdma 2021-03-11])";
        assert_eq!(format!("{error}"), text);
    }

    #[test]
    fn short_buffers_are_refused() {
        assert!(request::<pd::AllocPdIn>(&mut [0; 15]).is_none());
        assert!(request::<pd::AllocPdIn>(&mut []).is_none());
        let error = answer::<pd::AllocPdIn>(&[0; 15]).unwrap_err();
        assert_eq!(error.status, Ok(CommandStatus::BadOutputLength));
    }

    #[test]
    fn a_request_starts_clean() {
        let mut bytes = [0xff; 16];
        request::<pd::DeallocPdIn>(&mut bytes).unwrap().set(pd::DeallocPdIn::PD, 0x010203);
        assert_eq!(bytes, [0x08, 0x01, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0]);
    }
}
