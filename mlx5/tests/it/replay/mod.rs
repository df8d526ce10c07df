//! Posts the operations of a golden file through the driver, over plain memory.
//!
//! The tests and `examples/wqe_dump.rs` share it. `reference/golden/README.md` describes the file.
//! Values that the file does not contain are those of the recorder:
//!
//! - a datagram goes to the other UD queue pair of the file, with queue key 0x11111111, at LID 1;
//! - see [`request::Recorder`] for the `ibv_wr` form.

pub(crate) mod memory;
pub(crate) mod request;

use std::collections::BTreeMap;

use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::queue::send::{SendQueue, UNMODERATED};
use serde_json::Value;

use memory::PlainQueue;
use request::{Recorder, Request};

/// An error in a file, as text.
pub(crate) type Result<T> = core::result::Result<T, String>;

/// The filler for bytes that are not written.
pub(crate) const UNTOUCHED: u8 = 0xee;
/// A second filler: a byte that differs between the two was not written.
const OTHER: u8 = 0x11;

const QKEY: u32 = 0x1111_1111;
const LID: u16 = 1;

/// The bytes that an operation wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Name of the operation in the file.
    pub(crate) name: String,
    /// The ring's blocks, in ring order.
    pub(crate) ring: Vec<u8>,
    /// Both words of the doorbell record.
    pub(crate) record: Vec<u8>,
    /// The bytes stored to the BlueFlame register.
    pub(crate) register: Vec<u8>,
}

/// Queues like those of a file, to which its operations are posted in order.
pub(crate) struct Replay {
    lines: Vec<Value>,
    recorder: Recorder,
    queues: BTreeMap<u64, Queue>,
}

/// Two queues with different fillers.
struct Queue {
    twins: [PlainQueue; 2],
    destination: Option<AddressVector>,
    /// The previous request was a local invalidation.
    behind_invalidation: bool,
}

/// Parses the lines of a file.
fn parse(text: &str) -> Result<Vec<Value>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", at + 1))
        })
        .collect()
}

/// The recorder's values, from the requests of a file.
pub(crate) fn recorder(text: &str) -> Result<Recorder> {
    let lines = parse(text)?;
    let requests: Vec<&Value> =
        lines.iter().flat_map(|line| line["params"].as_array().into_iter().flatten()).collect();
    Ok(Recorder::from_requests(&requests))
}

impl Replay {
    /// Reads a file and creates its queues.
    pub(crate) fn new(text: &str) -> Result<Self> {
        let (lines, recorder) = (parse(text)?, recorder(text)?);
        let pairs: Vec<&Value> = lines.iter().filter(|line| line["kind"] == "qp").collect();
        let mut queues = BTreeMap::new();
        for pair in &pairs {
            let (qpn, blocks) = (number(pair, "qpn")? as u32, number(pair, "sq_wqe_cnt")? as u32);
            if !blocks.is_power_of_two() || !(16..=1 << 15).contains(&blocks) {
                return Err(format!("a send ring of {blocks} blocks"));
            }
            let peer = pairs
                .iter()
                .find(|other| is_ud(other) && other["qpn"] != pair["qpn"])
                .unwrap_or(pair);
            let destination = if is_ud(pair) {
                Some(AddressVector::infiniband(number(peer, "qpn")? as u32, QKEY, LID))
            } else {
                None
            };
            let queue = Queue {
                twins: [(); 2].map(|()| PlainQueue::new(qpn, blocks, UNMODERATED)),
                destination,
                behind_invalidation: false,
            };
            queues.insert(number(pair, "ord")?, queue);
        }
        Ok(Self { lines, recorder, queues })
    }

    /// Posts all operations in the order of the file.
    pub(crate) fn run(&mut self) -> Result<Vec<Written>> {
        let mut written = vec![];
        for line in self.lines.iter().filter(|line| line["kind"] == "op") {
            let name = line["name"].as_str().unwrap_or("");
            let queue = self
                .queues
                .get_mut(&number(line, "qp")?)
                .ok_or_else(|| format!("{name}: its queue pair is not in the file"))?;
            written.push(
                queue.post(line, &self.recorder).map_err(|error| format!("{name}: {error}"))?,
            );
        }
        Ok(written)
    }
}

/// The requests of an operation. `behind_invalidation` states whether the previous request was a
/// local invalidation, and is updated to the last of this operation.
pub(crate) fn requests(
    line: &Value,
    recorder: &Recorder,
    destination: Option<AddressVector>,
    behind_invalidation: &mut bool,
) -> Result<Vec<Request>> {
    let mut requests = vec![];
    for position in 0..line["params"].as_array().map_or(0, Vec::len) {
        let mut request = Request::read(line, position, recorder, destination)?;
        if *behind_invalidation {
            request.fence_behind_invalidation();
        }
        *behind_invalidation = request.is_local_invalidation();
        requests.push(request);
    }
    Ok(requests)
}

/// Posts the requests of an operation: one alone, or several as a batch.
pub(crate) fn post(requests: &[Request], queue: &mut SendQueue) -> Result<()> {
    let refused = |error: barewire_mlx5::PostError| error.to_string();
    if let [request] = requests {
        return request.post(queue)?.map(drop).map_err(refused);
    }
    let mut batch = queue.batch();
    requests.iter().try_for_each(|request| request.post(&mut batch)?.map(drop).map_err(refused))
}

impl Queue {
    fn post(&mut self, line: &Value, recorder: &Recorder) -> Result<Written> {
        let requests = requests(line, recorder, self.destination, &mut self.behind_invalidation)?;
        let producer = number(line, "pi_before")? as u32;
        for (plain, filler) in self.twins.iter_mut().zip([UNTOUCHED, OTHER]) {
            plain.advance(producer);
            plain.fill(filler);
            post(&requests, &mut plain.queue)?;
        }
        let [plain, other] = &self.twins;
        let written = Written {
            name: line["name"].as_str().unwrap_or("").to_owned(),
            ring: plain.posted(),
            record: plain.record(),
            register: stored(&plain.register(), &other.register()),
        };
        self.twins.iter_mut().for_each(PlainQueue::reap);
        Ok(written)
    }
}

/// The bytes stored to the half of the register that was written.
fn stored(plain: &[u8], other: &[u8]) -> Vec<u8> {
    let mut halves = plain.chunks(plain.len() / 2).zip(other.chunks(other.len() / 2));
    halves
        .find_map(|(plain, other)| {
            let last = plain.iter().zip(other).rposition(|(plain, other)| plain == other)?;
            Some(plain[..=last].to_vec())
        })
        .unwrap_or_default()
}

fn is_ud(pair: &Value) -> bool {
    pair["type"].as_str().is_some_and(|kind| kind.starts_with("UD"))
}

/// The number in field `key` of `value`.
pub(crate) fn number(value: &Value, key: &str) -> Result<u64> {
    value[key].as_u64().ok_or_else(|| format!("no number {key} in {value}"))
}

/// Parses hexadecimal text.
pub(crate) fn bytes(text: &str) -> Result<Vec<u8>> {
    let digit =
        |byte: u8| (byte as char).to_digit(16).ok_or_else(|| format!("not hexadecimal: {text}"));
    text.as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Ok((digit(*high)? << 4 | digit(*low)?) as u8),
            _ => Err(format!("half a byte at the end: {text}")),
        })
        .collect()
}

/// `bytes` in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('?');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
