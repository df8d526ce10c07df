//! Posting and polling. These functions are called in loops: they allocate nothing and take no
//! locks of this crate.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{
    ibv_ah, ibv_cq, ibv_data_buf, ibv_qp, ibv_qp_ex, ibv_qp_to_qp_ex, ibv_recv_wr, ibv_send_wr,
    ibv_sge, ibv_srq, ibv_wc, ibv_wr_opcode,
};

use super::{Ah, Cq, Plain, Qp, Srq};

/// A scatter/gather element in the layout of verbs.
pub(crate) type Element = ibv_sge;

/// `IBV_SEND_INLINE`.
const INLINE: u32 = 1 << 3;
/// The maximum number of pieces of inline data in a request.
pub(crate) const PIECES: usize = 2;

// SAFETY: all fields are integers, pointers or unions of these, for which zero is valid.
unsafe impl Plain for ibv_send_wr {}
// SAFETY: all fields are integers, for which zero is valid.
unsafe impl Plain for ibv_wc {}

/// The operation of a request.
#[derive(Clone, Copy)]
pub(crate) enum Verb {
    Send,
    SendImmediate(u32),
    Write,
    WriteImmediate(u32),
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// The data of a request.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    Inline([&'a [u8]; PIECES]),
    Elements(&'a [Element]),
}

/// A send request.
#[derive(Clone, Copy)]
pub(crate) struct Post<'a> {
    pub(crate) id: u64,
    pub(crate) flags: u32,
    pub(crate) verb: Verb,
    /// Remote address and key; not used by sends.
    pub(crate) remote: (u64, u32),
    /// Address handle, queue pair number and queue key of a datagram.
    pub(crate) datagram: Option<(&'a Ah, u32, u32)>,
    pub(crate) payload: Payload<'a>,
}

#[cfg(test)]
impl Post<'_> {
    /// The flags for `ibv_post_send`.
    pub(crate) fn list_flags(&self) -> u32 {
        request(self, &mut [Element { addr: 0, length: 0, lkey: 0 }; PIECES]).send_flags
    }
}

/// A queue pair with builder functions.
pub(crate) struct Extended {
    extended: NonNull<ibv_qp_ex>,
    #[expect(dead_code, reason = "keeps the queue pair alive")]
    qp: Arc<Qp>,
}

impl std::fmt::Debug for Extended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Extended")
    }
}

// SAFETY: the pointer refers to the object that `qp` keeps alive, and the library's
// functions serialise accesses by locks.
unsafe impl Send for Extended {}
// SAFETY: the pointer refers to the object that `qp` keeps alive, and the library's
// functions serialise accesses by locks.
unsafe impl Sync for Extended {}

impl Extended {
    /// Returns `None` if the queue pair was created without builder functions, or its provider
    /// lacks one that every request needs.
    pub(crate) fn of(qp: &Arc<Qp>) -> Option<Self> {
        // SAFETY: the queue pair is alive. The function returns null for a queue pair without
        // builder functions.
        let extended = NonNull::new(unsafe { ibv_qp_to_qp_ex(qp.raw()) })?;
        // SAFETY: the pointer is not null, and the queue pair is alive.
        let functions = unsafe { extended.as_ref() };
        let all = functions.wr_start.is_some()
            && functions.wr_complete.is_some()
            && functions.wr_abort.is_some()
            && functions.wr_set_inline_data_list.is_some()
            && functions.wr_set_inline_data.is_some()
            && functions.wr_set_sge_list.is_some();
        all.then(|| Self { extended, qp: Arc::clone(qp) })
    }
}

/// The error of a post if the provider lacks the function.
const UNSUPPORTED: i32 = 95; // EOPNOTSUPP

#[inline(always)]
fn sent(result: i32) -> Result<(), i32> {
    match result {
        0 => Ok(()),
        // Some old providers return -1 with errno set.
        ..0 => Err(last_error()),
        errno => Err(errno),
    }
}

#[cold]
fn last_error() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(UNSUPPORTED)
}

impl Extended {
    /// Posts with the builder functions (`ibv_wr_*`). The error is an errno value.
    #[inline(always)]
    pub(crate) fn post(&self, post: &Post<'_>) -> Result<(), i32> {
        let qp = self.extended.as_ptr();
        // SAFETY: the queue pair is alive. `Self::of` checked that the functions exist that are
        // called unchecked, and providers do not remove them. Between `wr_start` and `wr_complete`
        // or `wr_abort` the provider holds its lock, so only this thread accesses the fields. The
        // borrowed data of the request is alive during the call. A request that `build` did not
        // complete is aborted.
        unsafe {
            (*qp).wr_start.unwrap_unchecked()(qp);
            (*qp).wr_id = post.id;
            (*qp).wr_flags = post.flags;
            if let Err(errno) = build(qp, post) {
                (*qp).wr_abort.unwrap_unchecked()(qp);
                return Err(errno);
            }
            sent((*qp).wr_complete.unwrap_unchecked()(qp))
        }
    }
}

/// Converts a request to the form of `ibv_post_send`. Inline data is listed in `pieces`.
fn request(post: &Post<'_>, pieces: &mut [Element; PIECES]) -> ibv_send_wr {
    let (remote_addr, rkey) = post.remote;
    let mut request =
        ibv_send_wr { wr_id: post.id, send_flags: post.flags, ..ibv_send_wr::zeroed() };
    match post.payload {
        Payload::Inline(data) => {
            for (piece, bytes) in pieces.iter_mut().zip(data) {
                *piece =
                    Element { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
            }
            request.send_flags |= INLINE;
            request.sg_list = pieces.as_mut_ptr();
            request.num_sge = if data[1].is_empty() { 1 } else { 2 };
        }
        Payload::Elements(elements) => {
            request.sg_list = elements.as_ptr().cast_mut();
            request.num_sge = elements.len() as i32;
        }
    }
    let rdma = rdma_sys::rdma_t { remote_addr, rkey };
    let atomic = |compare_add, swap| rdma_sys::atomic_t { remote_addr, compare_add, swap, rkey };
    request.opcode = match post.verb {
        Verb::Send | Verb::SendImmediate(_) => {
            if let Some((handle, remote_qpn, remote_qkey)) = post.datagram {
                request.wr.ud = rdma_sys::ud_t { ah: handle.raw(), remote_qpn, remote_qkey };
            }
            if let Verb::SendImmediate(immediate) = post.verb {
                request.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
                ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
            } else {
                ibv_wr_opcode::IBV_WR_SEND
            }
        }
        Verb::Write => {
            request.wr.rdma = rdma;
            ibv_wr_opcode::IBV_WR_RDMA_WRITE
        }
        Verb::WriteImmediate(immediate) => {
            request.wr.rdma = rdma;
            request.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        }
        Verb::Read => {
            request.wr.rdma = rdma;
            ibv_wr_opcode::IBV_WR_RDMA_READ
        }
        Verb::CompareSwap { compare, swap } => {
            request.wr.atomic = atomic(compare, swap);
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP
        }
        Verb::FetchAdd { add } => {
            request.wr.atomic = atomic(add, 0);
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
        }
    };
    request
}

impl Extended {
    /// Posts several requests with one doorbell: all of them, or none.
    pub(crate) fn post_all(&self, posts: &[Post<'_>]) -> Result<(), i32> {
        let qp = self.extended.as_ptr();
        // SAFETY: the queue pair is alive. `Self::of` checked that the functions exist that are
        // called unchecked, and providers do not remove them. Between `wr_start` and `wr_complete`
        // or `wr_abort` the provider holds its lock, so only this thread accesses the fields. The
        // borrowed data of the requests is alive during the call. Requests that `build` did not
        // complete are aborted.
        unsafe {
            (*qp).wr_start.unwrap_unchecked()(qp);
            for post in posts {
                (*qp).wr_id = post.id;
                (*qp).wr_flags = post.flags;
                if let Err(errno) = build(qp, post) {
                    (*qp).wr_abort.unwrap_unchecked()(qp);
                    return Err(errno);
                }
            }
            sent((*qp).wr_complete.unwrap_unchecked()(qp))
        }
    }
}

impl Qp {
    /// Posts with `ibv_post_send`. The error is an errno value. Not inlined, so that callers with
    /// builder functions need no stack space for the request.
    #[inline(never)]
    pub(crate) fn post(&self, post: Post<'_>) -> Result<(), i32> {
        let mut pieces = [Element { addr: 0, length: 0, lkey: 0 }; PIECES];
        let mut request = request(&post, &mut pieces);
        self.post_send(&raw mut request).map_err(|(_, errno)| errno)
    }

    /// Posts several requests without inline data, in order. The error contains the number of
    /// requests that were posted before the one that failed.
    pub(crate) fn post_all(&self, posts: &[Post<'_>]) -> Result<(), (usize, i32)> {
        let mut nothing = [Element { addr: 0, length: 0, lkey: 0 }; PIECES];
        let mut requests: Vec<_> = posts.iter().map(|post| request(post, &mut nothing)).collect();
        let first = requests.as_mut_ptr();
        for at in 1..requests.len() {
            // SAFETY: `at` is less than the length of the vector, which is accessed through `first`
            // only until the requests are posted.
            unsafe { (*first.add(at - 1)).next = first.add(at) };
        }
        if requests.is_empty() {
            return Ok(());
        }
        self.post_send(first).map_err(|(bad, errno)| {
            let place = |bad: *mut ibv_send_wr| {
                bad.addr().wrapping_sub(first.addr()) / size_of::<ibv_send_wr>()
            };
            (place(bad).min(posts.len()), errno)
        })
    }

    /// Posts a linked list of requests. The error contains the first request that was not posted.
    fn post_send(&self, first: *mut ibv_send_wr) -> Result<(), (*mut ibv_send_wr, i32)> {
        let (qp, mut bad) = (self.raw(), first);
        // SAFETY: the queue pair is alive. The callers own the requests in the list, which, with
        // the data that they point to, are valid during the call. The provider only reads them.
        unsafe {
            let Some(function) = (*(*qp).context).ops.post_send else {
                return Err((first, UNSUPPORTED));
            };
            sent(function(qp, first, &raw mut bad)).map_err(|errno| (bad, errno))
        }
    }

    /// Posts a receive request. The error is an errno value.
    #[inline]
    pub(crate) fn receive(&self, id: u64, elements: &[Element]) -> Result<(), i32> {
        let mut bad = ptr::null_mut();
        self.post_receive(&mut receive(id, elements), &mut bad)
    }

    /// Posts a receive request for each of `items`, with the number and the elements that `of`
    /// returns. The error contains the number of requests that were posted before the one that
    /// failed.
    pub(crate) fn receive_all<T>(
        &self,
        items: &[T],
        of: impl Fn(&T) -> (u64, &[Element]),
    ) -> Result<(), (usize, i32)> {
        receive_all(items, of, |first, bad| self.post_receive(first, bad))
    }

    /// Posts a linked list of requests.
    #[inline]
    fn post_receive(&self, first: &mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> Result<(), i32> {
        let qp: *mut ibv_qp = self.raw();
        // SAFETY: the queue pair is alive. The caller borrows all requests in the list, which, with
        // their elements, are valid during the call. The provider only reads them.
        unsafe {
            let Some(function) = (*(*qp).context).ops.post_recv else { return Err(UNSUPPORTED) };
            sent(function(qp, first, bad))
        }
    }
}

impl Srq {
    /// Posts a receive request. The error is an errno value.
    #[inline]
    pub(crate) fn receive(&self, id: u64, elements: &[Element]) -> Result<(), i32> {
        let mut bad = ptr::null_mut();
        self.post_receive(&mut receive(id, elements), &mut bad)
    }

    /// Like [`Qp::receive_all`].
    pub(crate) fn receive_all<T>(
        &self,
        items: &[T],
        of: impl Fn(&T) -> (u64, &[Element]),
    ) -> Result<(), (usize, i32)> {
        receive_all(items, of, |first, bad| self.post_receive(first, bad))
    }

    /// Posts a linked list of requests.
    #[inline]
    fn post_receive(&self, first: &mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> Result<(), i32> {
        let srq: *mut ibv_srq = self.raw();
        // SAFETY: the queue is alive. The caller borrows all requests in the list, which, with
        // their elements, are valid during the call. The provider only reads them.
        unsafe {
            let Some(function) = (*(*srq).context).ops.post_srq_recv else {
                return Err(UNSUPPORTED);
            };
            sent(function(srq, first, bad))
        }
    }
}

/// Receive requests per call of the provider.
const CHAIN: usize = 16;

fn receive_all<T>(
    items: &[T],
    of: impl Fn(&T) -> (u64, &[Element]),
    post: impl Fn(&mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> Result<(), i32>,
) -> Result<(), (usize, i32)> {
    let mut chain: [ibv_recv_wr; CHAIN] = std::array::from_fn(|_| receive(0, &[]));
    for (part, items) in items.chunks(CHAIN).enumerate() {
        let mut next = ptr::null_mut();
        // In reverse order, since each request points to the next one.
        for (place, item) in chain.iter_mut().zip(items).rev() {
            let (id, elements) = of(item);
            *place = ibv_recv_wr { next, ..receive(id, elements) };
            next = place;
        }
        let first = next;
        let mut bad = first;
        // SAFETY: `first` is null or points to an element of `chain`, to which no other reference
        // is used during the call.
        if let Some(request) = unsafe { first.as_mut() } {
            post(request, &mut bad).map_err(|errno| {
                let place = bad.addr().wrapping_sub(first.addr()) / size_of::<ibv_recv_wr>();
                (part * CHAIN + place.min(items.len()), errno)
            })?;
        }
    }
    Ok(())
}

fn receive(id: u64, elements: &[Element]) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id: id,
        next: ptr::null_mut(),
        sg_list: elements.as_ptr().cast_mut(),
        num_sge: elements.len() as i32,
    }
}

/// Builds one request.
///
/// # Safety
/// `qp` must be alive, and `wr_start` must have been called. Its functions `wr_set_inline_data`,
/// `wr_set_inline_data_list` and `wr_set_sge_list` must not be null.
#[inline(always)]
unsafe fn build(qp: *mut ibv_qp_ex, post: &Post<'_>) -> Result<(), i32> {
    let (address, key) = post.remote;
    // SAFETY: by the contract, `qp` is alive and in a request, and the three functions that are
    // called unchecked are not null. All others are checked. The borrowed data is alive during the
    // call.
    unsafe {
        match post.verb {
            Verb::Send => (*qp).wr_send.ok_or(UNSUPPORTED)?(qp),
            Verb::SendImmediate(immediate) => {
                (*qp).wr_send_imm.ok_or(UNSUPPORTED)?(qp, immediate.to_be());
            }
            Verb::Write => (*qp).wr_rdma_write.ok_or(UNSUPPORTED)?(qp, key, address),
            Verb::WriteImmediate(immediate) => {
                (*qp).wr_rdma_write_imm.ok_or(UNSUPPORTED)?(qp, key, address, immediate.to_be());
            }
            Verb::Read => (*qp).wr_rdma_read.ok_or(UNSUPPORTED)?(qp, key, address),
            Verb::CompareSwap { compare, swap } => {
                (*qp).wr_atomic_cmp_swp.ok_or(UNSUPPORTED)?(qp, key, address, compare, swap);
            }
            Verb::FetchAdd { add } => {
                (*qp).wr_atomic_fetch_add.ok_or(UNSUPPORTED)?(qp, key, address, add);
            }
        }
        if let Some((handle, number, key)) = post.datagram {
            let handle: *mut ibv_ah = handle.raw();
            (*qp).wr_set_ud_addr.ok_or(UNSUPPORTED)?(qp, handle, number, key);
        }
        match post.payload {
            Payload::Inline([bytes, []]) => {
                (*qp).wr_set_inline_data.unwrap_unchecked()(
                    qp,
                    bytes.as_ptr().cast_mut().cast(),
                    bytes.len(),
                );
            }
            Payload::Inline(data) => {
                let buffers = data.map(|bytes| ibv_data_buf {
                    addr: bytes.as_ptr().cast_mut().cast(),
                    length: bytes.len(),
                });
                (*qp).wr_set_inline_data_list.unwrap_unchecked()(
                    qp,
                    buffers.len(),
                    buffers.as_ptr(),
                );
            }
            Payload::Elements(elements) => {
                (*qp).wr_set_sge_list.unwrap_unchecked()(qp, elements.len(), elements.as_ptr());
            }
        }
    }
    Ok(())
}

impl Cq {
    /// Moves completions into `completions` and returns their number.
    #[inline]
    pub(crate) fn poll(&self, completions: &mut [ibv_wc]) -> io::Result<usize> {
        let queue: *mut ibv_cq = self.raw();
        let most = i32::try_from(completions.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue is alive, and the slice has room for `most` completions.
        let count = unsafe {
            let Some(function) = (*(*queue).context).ops.poll_cq else {
                return Err(io::Error::from_raw_os_error(UNSUPPORTED));
            };
            function(queue, most, completions.as_mut_ptr())
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Requests an event for the next completion, or for the next one that was solicited or failed.
    #[inline]
    pub(crate) fn arm(&self, solicited_only: bool) -> io::Result<()> {
        let queue: *mut ibv_cq = self.raw();
        // SAFETY: the queue and its context are alive as long as `self` is borrowed.
        let result = unsafe {
            let Some(function) = (*(*queue).context).ops.req_notify_cq else {
                return Err(io::Error::from_raw_os_error(UNSUPPORTED));
            };
            function(queue, i32::from(solicited_only))
        };
        super::status(result)
    }
}
