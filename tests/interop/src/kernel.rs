//! A device of the kernel, used through libibverbs as its manual pages describe.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use rdma_sys::{
    ibv_access_flags, ibv_alloc_pd, ibv_close_device, ibv_context, ibv_cq, ibv_create_cq,
    ibv_create_qp, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_cq, ibv_destroy_qp,
    ibv_free_device_list, ibv_get_device_list, ibv_get_device_name, ibv_gid, ibv_modify_qp, ibv_mr,
    ibv_mtu, ibv_open_device, ibv_pd, ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_qp,
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_query_gid,
    ibv_recv_wr, ibv_reg_mr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_flags,
    ibv_wc_opcode, ibv_wc_status, ibv_wc_status_str, ibv_wr_opcode,
};

use crate::Result;
use crate::side::{
    ACK_TIMEOUT, Done, Endpoint, LOG_READS, MEMORY, MIN_RNR_NAK, Operation, Place, RETRIES, Side,
    WINDOW,
};

const PORT: u8 = 1;
/// Shortly before the sequence numbers wrap.
const PSN: u32 = 0xff_ffc0;
const PAGE: usize = 4096;
/// The prefix of an IPv4 address in a GID (RFC 4291, 2.5.5.2).
const IPV4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// A queue pair with the objects it depends on. The pointers come from libibverbs and belong to
/// this value until `drop` frees them; they are null during `open`.
pub(crate) struct Kernel {
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    completions: *mut ibv_cq,
    memory: NonNull<u8>,
    region: *mut ibv_mr,
    pair: *mut ibv_qp,
    /// The index of `gid`.
    gid_index: u8,
    gid: [u8; 16],
    peer: Option<Endpoint>,
}

fn layout() -> Layout {
    Layout::from_size_align(MEMORY, PAGE).expect("a size and an alignment that fit")
}

/// Maps a null pointer of libibverbs to an error.
fn given<T>(what: &str, pointer: *mut T) -> Result<*mut T> {
    if pointer.is_null() {
        return Err(format!("cannot make {what}: {}", io::Error::last_os_error()).into());
    }
    Ok(pointer)
}

/// Maps the result of functions that return an error number.
fn done(what: &str, status: i32) -> Result<()> {
    match status {
        0 => Ok(()),
        error => Err(format!("{what}: {}", io::Error::from_raw_os_error(error.abs())).into()),
    }
}

fn open_device(name: &str) -> Result<*mut ibv_context> {
    let mut count = 0;
    // SAFETY: `count` is valid for writes.
    let list = given("a list of devices", unsafe { ibv_get_device_list(&raw mut count) })?;
    let mut context = ptr::null_mut();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices and has not been freed; the name of a device ends
        // with a NUL.
        unsafe {
            let device = *list.add(index);
            if CStr::from_ptr(ibv_get_device_name(device)).to_bytes() == name.as_bytes() {
                context = ibv_open_device(device);
            }
        }
    }
    // SAFETY: freed once; an open device does not need the list.
    unsafe { ibv_free_device_list(list) };
    given(&format!("a context of {name}"), context)
}

/// The first GID of the device that is an IPv4 address.
fn ipv4_gid(context: *mut ibv_context) -> Result<(u8, [u8; 16])> {
    for index in 0..=u8::MAX {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and `gid` is valid for writes.
        if unsafe { ibv_query_gid(context, PORT, i32::from(index), &raw mut gid) } != 0 {
            break;
        }
        // SAFETY: every bit pattern of the union is sixteen bytes.
        let gid = unsafe { gid.raw };
        if gid.starts_with(&IPV4_MAPPED) {
            return Ok((index, gid));
        }
    }
    Err("the device has no GID with an IPv4 address".into())
}

impl Kernel {
    pub(crate) fn open(name: &str) -> Result<Self> {
        // SAFETY: the layout has a nonzero size.
        let Some(memory) = NonNull::new(unsafe { alloc_zeroed(layout()) }) else {
            handle_alloc_error(layout())
        };
        let mut new = Self {
            context: ptr::null_mut(),
            domain: ptr::null_mut(),
            completions: ptr::null_mut(),
            memory,
            region: ptr::null_mut(),
            pair: ptr::null_mut(),
            gid_index: 0,
            gid: [0; 16],
            peer: None,
        };
        new.context = open_device(name)?;
        (new.gid_index, new.gid) = ipv4_gid(new.context)?;
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | remote_access();
        // SAFETY: all objects live until `drop`, which frees them in reverse order. The memory
        // lives as long, and is accessed through copies by raw pointers only.
        unsafe {
            new.domain = given("a protection domain", ibv_alloc_pd(new.context))?;
            let none = ptr::null_mut();
            let completions =
                ibv_create_cq(new.context, 4 * WINDOW as i32, none, ptr::null_mut(), 0);
            new.completions = given("a completion queue", completions)?;
            let region = ibv_reg_mr(new.domain, memory.as_ptr().cast(), MEMORY, access as i32);
            new.region = given("a memory region", region)?;
            // SAFETY: the structure consists of numbers and pointers, for which zero is valid.
            let mut wanted: ibv_qp_init_attr = MaybeUninit::zeroed().assume_init();
            (wanted.send_cq, wanted.recv_cq) = (new.completions, new.completions);
            wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
            (wanted.cap.max_send_wr, wanted.cap.max_recv_wr) =
                (2 * WINDOW as u32, 2 * WINDOW as u32);
            (wanted.cap.max_send_sge, wanted.cap.max_recv_sge) = (1, 1);
            new.pair = given("a queue pair", ibv_create_qp(new.domain, &raw mut wanted))?;
        }
        new.modify(ibv_qp_state::IBV_QPS_INIT, |attributes| {
            attributes.port_num = PORT;
            attributes.qp_access_flags = remote_access();
            ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
                | ibv_qp_attr_mask::IBV_QP_PORT
                | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS
        })?;
        Ok(new)
    }

    /// Moves the queue pair to `state`, with the attributes that `fill` sets and names.
    fn modify(
        &mut self,
        state: ibv_qp_state::Type,
        fill: impl FnOnce(&mut ibv_qp_attr) -> ibv_qp_attr_mask,
    ) -> Result<()> {
        // SAFETY: the structure consists of numbers, and unions of numbers, for which zero is
        // valid.
        let mut attributes: ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attributes.qp_state = state;
        let mask = fill(&mut attributes) | ibv_qp_attr_mask::IBV_QP_STATE;
        // SAFETY: the queue pair has not been destroyed, and the attributes are only read.
        let status = unsafe { ibv_modify_qp(self.pair, &raw mut attributes, mask.0 as i32) };
        done("ibv_modify_qp", status)
    }

    /// The segment of `place`, which must lie in the memory.
    fn segment(&self, place: Place) -> Result<ibv_sge> {
        self.at(place.offset, place.length)?;
        // SAFETY: the region has not been deregistered.
        let lkey = unsafe { (*self.region).lkey };
        Ok(ibv_sge {
            addr: self.address() + place.offset as u64,
            length: place.length as u32,
            lkey,
        })
    }

    fn address(&self) -> u64 {
        self.memory.addr().get() as u64
    }

    /// The address of `length` bytes at `offset`.
    fn at(&self, offset: usize, length: usize) -> Result<*mut u8> {
        match offset.checked_add(length) {
            // SAFETY: the offset lies in the allocation, as just checked.
            Some(end) if end <= MEMORY => Ok(unsafe { self.memory.as_ptr().add(offset) }),
            _ => Err(format!("{length} bytes at {offset} are not in the memory").into()),
        }
    }
}

fn remote_access() -> u32 {
    (ibv_access_flags::IBV_ACCESS_REMOTE_READ
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
        | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
        .0
}

impl Side for Kernel {
    fn endpoint(&self) -> Endpoint {
        // SAFETY: queue pair and region have not been destroyed.
        let (qpn, rkey) = unsafe { ((*self.pair).qp_num, (*self.region).rkey) };
        Endpoint { qpn, psn: PSN, gid: self.gid, address: self.address(), rkey }
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<()> {
        let gid_index = self.gid_index;
        self.modify(ibv_qp_state::IBV_QPS_RTR, |attributes| {
            attributes.path_mtu = ibv_mtu::IBV_MTU_1024;
            attributes.dest_qp_num = peer.qpn;
            attributes.rq_psn = peer.psn;
            attributes.max_dest_rd_atomic = 1 << LOG_READS;
            attributes.min_rnr_timer = MIN_RNR_NAK;
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.port_num = PORT;
            attributes.ah_attr.grh.dgid = ibv_gid { raw: peer.gid };
            attributes.ah_attr.grh.sgid_index = gid_index;
            attributes.ah_attr.grh.hop_limit = 64;
            ibv_qp_attr_mask::IBV_QP_AV
                | ibv_qp_attr_mask::IBV_QP_PATH_MTU
                | ibv_qp_attr_mask::IBV_QP_DEST_QPN
                | ibv_qp_attr_mask::IBV_QP_RQ_PSN
                | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER
        })?;
        self.modify(ibv_qp_state::IBV_QPS_RTS, |attributes| {
            attributes.sq_psn = PSN;
            attributes.max_rd_atomic = 1 << LOG_READS;
            attributes.timeout = ACK_TIMEOUT;
            attributes.retry_cnt = RETRIES;
            attributes.rnr_retry = RETRIES;
            ibv_qp_attr_mask::IBV_QP_SQ_PSN
                | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC
                | ibv_qp_attr_mask::IBV_QP_TIMEOUT
                | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
                | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
        })?;
        self.peer = Some(*peer);
        Ok(())
    }

    fn post(&mut self, operation: &Operation) -> Result<()> {
        let peer = self.peer.ok_or("not connected")?;
        // SAFETY: the structure consists of numbers, pointers, and unions of them, for which zero
        // is valid.
        let mut request: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        let local = match *operation {
            Operation::Send { local, immediate } => {
                request.opcode = ibv_wr_opcode::IBV_WR_SEND;
                if let Some(immediate) = immediate {
                    request.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
                    request.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
                }
                local
            }
            Operation::Write { local, remote, immediate } => {
                request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                if let Some(immediate) = immediate {
                    request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                    request.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
                }
                // The request is zero, so every member of its union is valid.
                request.wr.rdma =
                    rdma_sys::rdma_t { remote_addr: peer.address + remote as u64, rkey: peer.rkey };
                local
            }
            Operation::Read { local, remote } => {
                request.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
                request.wr.rdma =
                    rdma_sys::rdma_t { remote_addr: peer.address + remote as u64, rkey: peer.rkey };
                local
            }
            Operation::FetchAdd { local, remote, operand } => {
                request.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
                request.wr.atomic = rdma_sys::atomic_t {
                    remote_addr: peer.address + remote as u64,
                    compare_add: operand,
                    swap: 0,
                    rkey: peer.rkey,
                };
                local
            }
            Operation::CompareSwap { local, remote, compare, swap } => {
                request.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
                request.wr.atomic = rdma_sys::atomic_t {
                    remote_addr: peer.address + remote as u64,
                    compare_add: compare,
                    swap,
                    rkey: peer.rkey,
                };
                local
            }
        };
        let mut segment = self.segment(local)?;
        request.sg_list = &raw mut segment;
        request.num_sge = i32::from(local.length > 0);
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair has not been destroyed; request and segment are read before the
        // call returns; the segment lies in registered memory that outlives the queue pair.
        done("ibv_post_send", unsafe {
            ibv_post_send(self.pair, &raw mut request, &raw mut refused)
        })
    }

    fn post_receive(&mut self, place: Place) -> Result<()> {
        let mut segment = self.segment(place)?;
        let mut request =
            ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list: &raw mut segment, num_sge: 1 };
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair has not been destroyed; request and segment are read before the
        // call returns; the segment lies in registered memory that outlives the queue pair.
        done("ibv_post_recv", unsafe {
            ibv_post_recv(self.pair, &raw mut request, &raw mut refused)
        })
    }

    fn poll(&mut self) -> Result<Option<Done>> {
        let mut entry = MaybeUninit::<ibv_wc>::zeroed();
        // SAFETY: the queue has not been destroyed, and `entry` has room for the one requested
        // entry.
        let count = unsafe { ibv_poll_cq(self.completions, 1, entry.as_mut_ptr()) };
        if count == 0 {
            return Ok(None);
        }
        if count < 0 {
            return Err(format!("ibv_poll_cq: {count}").into());
        }
        // SAFETY: the structure was zeroed and then filled in.
        let entry = unsafe { entry.assume_init() };
        if entry.status != ibv_wc_status::IBV_WC_SUCCESS {
            // SAFETY: the function returns a static text for every number.
            let status =
                unsafe { CStr::from_ptr(ibv_wc_status_str(entry.status)) }.to_string_lossy();
            return Err(format!("{status} (vendor {:#x})", entry.vendor_err).into());
        }
        let received = entry.opcode & ibv_wc_opcode::IBV_WC_RECV != 0;
        let has_immediate = entry.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        // SAFETY: both members of the union are numbers of the same size.
        let immediate = unsafe { entry.imm_data_invalidated_rkey_union.imm_data };
        let immediate = has_immediate.then(|| u32::from_be(immediate));
        Ok(Some(if received {
            Done::Received { length: entry.byte_len, immediate }
        } else {
            Done::Posted
        }))
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        let place = self.at(offset, bytes.len())?;
        // SAFETY: `at` has checked the range; the bytes are a Rust slice outside it.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let place = self.at(offset, bytes.len())?;
        // SAFETY: `at` has checked the range; the bytes are a Rust slice outside it.
        unsafe { place.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: each object came from libibverbs and is freed once, after the objects that depend
        // on it. If one is not destroyed, neither are those that it depends on. The memory is freed
        // last, and leaked if the device still has it.
        unsafe {
            let _ = self.pair.is_null() || ibv_destroy_qp(self.pair) == 0;
            let released = self.region.is_null() || ibv_dereg_mr(self.region) == 0;
            let _ = self.completions.is_null() || ibv_destroy_cq(self.completions) == 0;
            let _ = self.domain.is_null() || ibv_dealloc_pd(self.domain) == 0;
            let _ = self.context.is_null() || ibv_close_device(self.context) == 0;
            if released {
                dealloc(self.memory.as_ptr(), layout());
            }
        }
    }
}
