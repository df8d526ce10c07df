//! The work requests of a golden file, and posting them.

use barewire_mlx5::doorbell::Doorbell;
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::queue::send::{Batch, SendQueue};
use barewire_mlx5::request::{
    self, CompareSwap, FetchAdd, Inline, Invalidate, MaskedAdd, MaskedCompareSwap, MaskedFetchAdd,
    MaskedSwap, Nop, Read, Segments, Send, SendImmediate, SendInvalidate, ToPeer, Write,
    WriteImmediate,
};
use barewire_mlx5::{ControlFlags, DataSegment, PostError, RemoteAddressSegment, WqeIndex};
use serde_json::Value;

use super::{Result, bytes, number};

/// Values of the recorder that lines of the `ibv_wr` form omit.
pub(crate) struct Recorder {
    /// Start of the local region; its key follows.
    pub(crate) local: u64,
    pub(crate) lkey: u32,
    /// Start of the remote region; its key follows.
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
}

impl Recorder {
    /// Derives regions and keys from the requests that contain them.
    pub(crate) fn from_requests(requests: &[&Value]) -> Self {
        let segments: Vec<&Value> = requests
            .iter()
            .flat_map(|request| request["sge"].as_array().into_iter().flatten())
            .collect();
        let lowest = |values: &[&Value], key: &str| {
            values
                .iter()
                .filter_map(|value| value[key].as_u64())
                .min()
                .map_or(0, |address| address & !0xfff)
        };
        let key = |values: &[&Value], key: &str| {
            values.iter().find_map(|value| value[key].as_u64()).unwrap_or(0) as u32
        };
        Self {
            local: lowest(&segments, "addr"),
            lkey: key(&segments, "lkey"),
            remote: lowest(requests, "remote_addr"),
            rkey: key(requests, "rkey"),
        }
    }

    /// The source bytes at `offset`: the recorder filled the buffer with bytes that increase by
    /// seven.
    fn source(offset: u64, length: u64) -> Vec<u8> {
        (offset..offset + length).map(|at| (at * 7 + 1) as u8).collect()
    }
}

/// One work request.
pub(crate) struct Request {
    opcode: String,
    flags: ControlFlags,
    /// The bytes of an inline request.
    inline: Option<Vec<u8>>,
    local: Vec<DataSegment>,
    remote: RemoteAddressSegment,
    immediate: u32,
    compare_or_add: u64,
    swap: u64,
    masks: [u64; 2],
    destination: Option<AddressVector>,
}

impl Request {
    /// Parses request `position` of operation `line`. `destination` is used for a datagram without
    /// a destination.
    pub(crate) fn read(
        line: &Value,
        position: usize,
        recorder: &Recorder,
        destination: Option<AddressVector>,
    ) -> Result<Self> {
        let request = &line["params"][position];
        let opcode = request["opcode"].as_str().ok_or_else(|| format!("no opcode in {request}"))?;
        let flags = flags(line, request);
        let (inline, local) = payload(request, recorder)?;
        let address =
            request["remote_addr"].as_u64().unwrap_or(recorder.remote + 64 * position as u64);
        let rkey = request["rkey"].as_u64().map_or(recorder.rkey, |rkey| rkey as u32);
        let immediate = match (request["imm_be_hex"].as_str(), request["invalidate_rkey"].as_u64())
        {
            (Some(hex), _) => {
                u32::from_str_radix(hex, 16).map_err(|error| format!("{hex}: {error}"))?
            }
            (None, key) => key.unwrap_or(0) as u32,
        };
        let first_of = |keys: &[&str]| keys.iter().find_map(|key| request[*key].as_u64());
        Ok(Self {
            opcode: opcode.to_owned(),
            flags,
            inline,
            local,
            remote: RemoteAddressSegment::new(address, rkey),
            immediate,
            compare_or_add: first_of(&["compare_add", "compare", "add"]).unwrap_or(0),
            swap: first_of(&["swap"]).unwrap_or(0),
            masks: [
                first_of(&["compare_mask", "field_boundary"]).unwrap_or(0),
                first_of(&["swap_mask"]).unwrap_or(0),
            ],
            destination: destination.map(|to| addressed(to, request)),
        })
    }

    /// Returns whether the request invalidates a memory key, for which the next request must wait.
    pub(crate) fn is_local_invalidation(&self) -> bool {
        self.opcode == "LOCAL_INV"
    }

    /// Adds a fence after a local invalidation, like libmlx5.
    pub(crate) fn fence_behind_invalidation(&mut self) {
        if !self.flags.contains(ControlFlags::FENCE) {
            self.flags |= ControlFlags::SMALL_FENCE;
        }
    }
}

/// A queue, or a batch of one.
pub(crate) trait Posts {
    fn post<R: request::Request>(&mut self, request: R, flags: ControlFlags) -> Posted;
    fn post_to<R: ToPeer>(&mut self, to: &AddressVector, request: R, flags: ControlFlags)
    -> Posted;
}

type Posted = core::result::Result<WqeIndex, PostError>;

impl<D: Doorbell> Posts for SendQueue<D> {
    fn post<R: request::Request>(&mut self, request: R, flags: ControlFlags) -> Posted {
        self.post(request, flags)
    }

    fn post_to<R: ToPeer>(
        &mut self,
        to: &AddressVector,
        request: R,
        flags: ControlFlags,
    ) -> Posted {
        self.towards(to).post(request, flags)
    }
}

impl<D: Doorbell> Posts for Batch<'_, D> {
    fn post<R: request::Request>(&mut self, request: R, flags: ControlFlags) -> Posted {
        self.post(request, flags)
    }

    fn post_to<R: ToPeer>(
        &mut self,
        to: &AddressVector,
        request: R,
        flags: ControlFlags,
    ) -> Posted {
        self.towards(to).post(request, flags)
    }
}

impl Request {
    /// Posts it.
    pub(crate) fn post(&self, queue: &mut impl Posts) -> Result<Posted> {
        let Self { flags, remote, immediate, .. } = *self;
        let local = &self.local[..];
        if let Some(to) = &self.destination {
            return Ok(match (&*self.opcode, &self.inline) {
                ("SEND", Some(payload)) => queue.post_to(to, Send(Inline(payload)), flags),
                ("SEND", None) => queue.post_to(to, Send(Segments(local)), flags),
                ("SEND_WITH_IMM", Some(payload)) => {
                    queue.post_to(to, SendImmediate { local: Inline(payload), immediate }, flags)
                }
                ("SEND_WITH_IMM", None) => {
                    queue.post_to(to, SendImmediate { local: Segments(local), immediate }, flags)
                }
                (opcode, _) => return Err(format!("no datagram has opcode {opcode}")),
            });
        }
        let result =
            || local.first().copied().ok_or_else(|| format!("{}: no result buffer", self.opcode));
        Ok(match (&*self.opcode, &self.inline) {
            ("RDMA_WRITE", Some(payload)) => {
                queue.post(Write { local: Inline(payload), remote }, flags)
            }
            ("RDMA_WRITE", None) => match local {
                [local] => queue.post(Write { local: *local, remote }, flags),
                _ => queue.post(Write { local: Segments(local), remote }, flags),
            },
            ("RDMA_WRITE_WITH_IMM", Some(payload)) => {
                queue.post(WriteImmediate { local: Inline(payload), remote, immediate }, flags)
            }
            ("RDMA_WRITE_WITH_IMM", None) => match local {
                [local] => queue.post(WriteImmediate { local: *local, remote, immediate }, flags),
                _ => {
                    queue.post(WriteImmediate { local: Segments(local), remote, immediate }, flags)
                }
            },
            ("SEND", Some(payload)) => queue.post(Send(Inline(payload)), flags),
            ("SEND", None) => match local {
                [local] => queue.post(Send(*local), flags),
                _ => queue.post(Send(Segments(local)), flags),
            },
            ("SEND_WITH_IMM", Some(payload)) => {
                queue.post(SendImmediate { local: Inline(payload), immediate }, flags)
            }
            ("SEND_WITH_IMM", None) => {
                queue.post(SendImmediate { local: Segments(local), immediate }, flags)
            }
            ("SEND_WITH_INV", Some(payload)) => {
                queue.post(SendInvalidate { local: Inline(payload), rkey: immediate }, flags)
            }
            ("SEND_WITH_INV", None) => {
                queue.post(SendInvalidate { local: Segments(local), rkey: immediate }, flags)
            }
            ("LOCAL_INV", _) => queue.post(Invalidate { key: immediate }, flags),
            ("RDMA_READ", _) => match local {
                [local] => queue.post(Read { local: *local, remote }, flags),
                _ => queue.post(Read { local: Segments(local), remote }, flags),
            },
            ("ATOMIC_FETCH_AND_ADD", _) => {
                queue.post(FetchAdd { local: result()?, remote, add: self.compare_or_add }, flags)
            }
            ("ATOMIC_CMP_AND_SWP", _) => queue.post(
                CompareSwap {
                    local: result()?,
                    remote,
                    compare: self.compare_or_add,
                    swap: self.swap,
                },
                flags,
            ),
            ("MASKED_ATOMIC_FETCH_AND_ADD", _) => self.masked_add(queue, result()?),
            ("MASKED_ATOMIC_CMP_AND_SWP", _) => self.masked_swap(queue, result()?),
            ("NOP", _) => queue.post(Nop, flags),
            (opcode, _) => return Err(format!("unknown opcode {opcode}")),
        })
    }

    /// Posts a masked fetch-and-add of the width of the result buffer.
    fn masked_add(&self, queue: &mut impl Posts, local: DataSegment) -> Posted {
        let (operand, [field_boundary, _]) = (self.compare_or_add, self.masks);
        if local.byte_count.get() == 4 {
            let operands =
                MaskedAdd { operand: operand as u32, field_boundary: field_boundary as u32 };
            queue.post(MaskedFetchAdd { local, remote: self.remote, operands }, self.flags)
        } else {
            queue.post(
                MaskedFetchAdd {
                    local,
                    remote: self.remote,
                    operands: MaskedAdd { operand, field_boundary },
                },
                self.flags,
            )
        }
    }

    /// Posts a masked compare-and-swap of the width of the result buffer.
    fn masked_swap(&self, queue: &mut impl Posts, local: DataSegment) -> Posted {
        let (compare, swap, [compare_mask, swap_mask]) =
            (self.compare_or_add, self.swap, self.masks);
        if local.byte_count.get() == 4 {
            let operands = MaskedSwap {
                compare: compare as u32,
                compare_mask: compare_mask as u32,
                swap: swap as u32,
                swap_mask: swap_mask as u32,
            };
            queue.post(MaskedCompareSwap { local, remote: self.remote, operands }, self.flags)
        } else {
            let operands = MaskedSwap { compare, compare_mask, swap, swap_mask };
            queue.post(MaskedCompareSwap { local, remote: self.remote, operands }, self.flags)
        }
    }
}

/// The control flags. In the `ibv_wr` form, a list has `signaled` instead of `send_flags`, and a
/// single operation has it in its name.
fn flags(line: &Value, request: &Value) -> ControlFlags {
    let bits = request["send_flags"].as_u64().unwrap_or_else(|| {
        let requests = line["params"].as_array().map_or(&[][..], Vec::as_slice);
        let named = |word| line["name"].as_str().unwrap_or("").split('_').any(|part| part == word);
        let signaled = match request["signaled"].as_bool() {
            Some(signaled) => signaled,
            None => named("sig") && requests.iter().all(|request| request["signaled"].is_null()),
        };
        u64::from(named("fence")) | u64::from(signaled) << 1 | u64::from(named("solicited")) << 2
    });
    let mut flags = ControlFlags::empty();
    flags.set(ControlFlags::FENCE, bits & 1 != 0);
    flags.set(ControlFlags::COMPLETION, bits & 2 != 0);
    flags.set(ControlFlags::SOLICITED, bits & 4 != 0);
    flags
}

/// The payload of an inline request, or the segments.
fn payload(request: &Value, recorder: &Recorder) -> Result<(Option<Vec<u8>>, Vec<DataSegment>)> {
    if let Some(length) = request["inline"].as_u64() {
        return Ok((
            Some(Recorder::source(request["src_off"].as_u64().unwrap_or(0), length)),
            vec![],
        ));
    }
    if let Some(length) = request["sge_len"].as_u64() {
        let segment = DataSegment::new(recorder.local + 0x1000, length as u32, recorder.lkey);
        return Ok((None, vec![segment]));
    }
    let segments = request["sge"].as_array().map_or(&[][..], Vec::as_slice);
    if request["send_flags"].as_u64().unwrap_or(0) & 8 != 0 {
        let mut inline = vec![];
        for segment in segments {
            inline.extend(bytes(segment["data"].as_str().unwrap_or(""))?);
        }
        return Ok((Some(inline), vec![]));
    }
    let mut local = vec![];
    for segment in segments {
        let (length, lkey) = (number(segment, "length")? as u32, number(segment, "lkey")? as u32);
        local.push(DataSegment::new(number(segment, "addr")?, length, lkey));
    }
    Ok((None, local))
}

/// `to`, overridden by the fields of the request.
fn addressed(to: AddressVector, request: &Value) -> AddressVector {
    let field =
        |key: &str, otherwise: u32| request[key].as_u64().map_or(otherwise, |value| value as u32);
    let qpn = field("remote_qpn", to.qpn());
    let qkey = field("remote_qkey", to.base.qkey.get());
    AddressVector::infiniband(qpn, qkey, field("dlid", u32::from(to.base.lid_or_port.get())) as u16)
}
