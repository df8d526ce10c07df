//! Requests to a process's memory and their responses, as they follow each other on a connection.
//!
//! A request has 40 bytes, which the data of a put follow:
//!
//! | bytes | field | little-endian |
//! |---|---|---|
//! | 0 | operation: put 1, get 2, atomic 3 | u8 |
//! | 1 | atomic: the change | u8 |
//! | 2 | atomic: bytes of the word, 4 or 8 | u8 |
//! | 3 | atomic: 1 if it returns the old value | u8 |
//! | 4..8 | zeros | |
//! | 8..16 | the region's number | u64 |
//! | 16..24 | address | u64 |
//! | 24..32 | bytes to put or get, or the operand | u64 |
//! | 32..40 | compare-and-swap: the value compared with; else zero | u64 |
//!
//! Requests are executed in order, and the responses are in the same order. A response has 24
//! bytes, which the data of a get follow:
//!
//! | bytes | field | little-endian |
//! |---|---|---|
//! | 0..8 | how many requests are finished, this one included | u64 |
//! | 8 | outcome: done 0, refused 1, altered bytes on the connection 2 | u8 |
//! | 9 | operation of the request | u8 |
//! | 10..16 | zeros | |
//! | 16..24 | bytes that follow, or the old value | u64 |
//!
//! A response without data or value covers all requests before it. After an outcome other than
//! 'done', no request is executed.

use thiserror::Error;

/// Bytes of a request without its data.
pub const REQUEST_BYTES: usize = 40;
/// Bytes of a response without its data.
pub const RESPONSE_BYTES: usize = 24;

/// Bytes are not a request, or not a response. What follows them cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("it sent bytes that are neither a request nor a response")]
pub struct Foreign;

/// The change that an atomic makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Change {
    /// Adds, wrapping around.
    Add = 1,
    /// Bitwise and.
    And = 2,
    /// Bitwise or.
    Or = 3,
    /// Bitwise exclusive or.
    Xor = 4,
    /// Replaces.
    Swap = 5,
    /// Replaces the word if it equals the compared value.
    CompareSwap = 6,
}

impl Change {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Add,
            2 => Self::And,
            3 => Self::Or,
            4 => Self::Xor,
            5 => Self::Swap,
            6 => Self::CompareSwap,
            _ => return None,
        })
    }

    /// The new value.
    pub(crate) fn apply(self, old: u64, operand: u64, compare: u64) -> u64 {
        match self {
            Self::Add => old.wrapping_add(operand),
            Self::And => old & operand,
            Self::Or => old | operand,
            Self::Xor => old ^ operand,
            Self::Swap => operand,
            Self::CompareSwap if old == compare => operand,
            Self::CompareSwap => old,
        }
    }
}

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Writes the data that follow.
    Put = 1,
    /// Reads.
    Get = 2,
    /// Changes a word.
    Atomic = 3,
}

impl Operation {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Put,
            2 => Self::Get,
            3 => Self::Atomic,
            _ => return None,
        })
    }
}

/// An operation with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Writes the `length` bytes that follow.
    Put {
        /// Bytes.
        length: u64,
    },
    /// Reads `length` bytes.
    Get {
        /// Bytes.
        length: u64,
    },
    /// Changes a word.
    Atomic {
        /// The change.
        change: Change,
        /// Bytes of the word: 4 or 8.
        width: u8,
        /// Returns the old value.
        fetch: bool,
        /// The operand; the upper half is zero for 4 bytes.
        operand: u64,
        /// The value that compare-and-swap compares with.
        compare: u64,
    },
}

/// A request to a process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The region's number.
    pub token: u64,
    /// The address.
    pub address: u64,
    /// The operation.
    pub action: Action,
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl Request {
    /// The bytes of the request, without data.
    pub fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let (first, operand, compare) = match self.action {
            Action::Put { length } => ([Operation::Put as u8, 0, 0, 0], length, 0),
            Action::Get { length } => ([Operation::Get as u8, 0, 0, 0], length, 0),
            Action::Atomic { change, width, fetch, operand, compare } => {
                ([Operation::Atomic as u8, change as u8, width, fetch.into()], operand, compare)
            }
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&first);
        let numbers = [self.token, self.address, operand, compare];
        for (place, number) in bytes[8..].as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        bytes
    }

    /// Parses a request.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Foreign> {
        let [operation, change, width, fetch, 0, 0, 0, 0, ..] = *bytes else { return Err(Foreign) };
        let (operand, compare) = (number(bytes, 24), number(bytes, 32));
        let plain = [change, width, fetch] == [0; 3] && compare == 0;
        let action = match Operation::from_code(operation) {
            Some(Operation::Put) if plain => Action::Put { length: operand },
            Some(Operation::Get) if plain => Action::Get { length: operand },
            Some(Operation::Atomic) => {
                let change = Change::from_code(change).ok_or(Foreign)?;
                let fits = |value: u64| width == 8 || value <= u32::MAX.into();
                let compares = change == Change::CompareSwap || compare == 0;
                if !matches!(width, 4 | 8)
                    || fetch > 1
                    || !fits(operand)
                    || !fits(compare)
                    || !compares
                {
                    return Err(Foreign);
                }
                Action::Atomic { change, width, fetch: fetch == 1, operand, compare }
            }
            _ => return Err(Foreign),
        };
        Ok(Self { token: number(bytes, 8), address: number(bytes, 16), action })
    }

    /// The operation.
    pub fn operation(&self) -> Operation {
        match self.action {
            Action::Put { .. } => Operation::Put,
            Action::Get { .. } => Operation::Get,
            Action::Atomic { .. } => Operation::Atomic,
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// It was executed.
    Done = 0,
    /// The region refused it.
    Refused = 1,
    /// Its bytes were altered on the way, and it was not executed.
    Altered = 2,
}

/// The response to a request, and to those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// How many requests are finished, this one included.
    pub finished: u64,
    /// The outcome of the last one.
    pub outcome: Outcome,
    /// The operation of the last one.
    pub operation: Operation,
    /// The bytes of data of a get, or the old value of an atomic.
    pub value: u64,
}

impl Response {
    /// The bytes of the response, without data.
    pub fn to_bytes(self) -> [u8; RESPONSE_BYTES] {
        let mut bytes = [0; RESPONSE_BYTES];
        bytes[..8].copy_from_slice(&self.finished.to_le_bytes());
        bytes[8] = self.outcome as u8;
        bytes[9] = self.operation as u8;
        bytes[16..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// Parses a response.
    pub fn parse(bytes: &[u8; RESPONSE_BYTES]) -> Result<Self, Foreign> {
        let operation = Operation::from_code(bytes[9]).ok_or(Foreign)?;
        let outcome = match bytes[8] {
            0 => Outcome::Done,
            1 => Outcome::Refused,
            2 => Outcome::Altered,
            _ => return Err(Foreign),
        };
        if bytes[10..16] != [0; 6] {
            return Err(Foreign);
        }
        Ok(Self { finished: number(bytes, 0), outcome, operation, value: number(bytes, 16) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_requests() {
        let request = Request {
            token: 0x1122_3344_5566_7788,
            address: 0x99,
            action: Action::Put { length: 5 },
        };
        let bytes = request.to_bytes();
        assert_eq!(bytes[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..16], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!((bytes[16], bytes[24], bytes[32]), (0x99, 5, 0));
        assert_eq!(Request::parse(&bytes), Ok(request));
        let action = Action::Atomic {
            change: Change::CompareSwap,
            width: 4,
            fetch: true,
            operand: 7,
            compare: 8,
        };
        let request = Request { token: 1, address: 2, action };
        assert_eq!(request.to_bytes()[..4], [3, 6, 4, 1]);
        assert_eq!(Request::parse(&request.to_bytes()), Ok(request));
        for (outcome, code) in [(Outcome::Done, 0), (Outcome::Refused, 1), (Outcome::Altered, 2)] {
            let response = Response { finished: 3, outcome, operation: Operation::Get, value: 4 };
            assert_eq!(response.to_bytes()[8..10], [code, 2]);
            assert_eq!(Response::parse(&response.to_bytes()), Ok(response));
        }
    }

    #[test]
    fn changes() {
        let all =
            [Change::Add, Change::And, Change::Or, Change::Xor, Change::Swap, Change::CompareSwap];
        let results: Vec<u64> =
            all.iter().map(|change| change.apply(0b1100, 0b1010, 0b1100)).collect();
        assert_eq!(results, [0b10110, 0b1000, 0b1110, 0b0110, 0b1010, 0b1010]);
        assert_eq!(Change::CompareSwap.apply(1, 2, 3), 1);
        assert_eq!(Change::Add.apply(u64::MAX, 1, 0), 0);
        for change in all {
            assert_eq!(Change::from_code(change as u8), Some(change));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: [u8; 40], first in 0u8..4, change in 0u8..8) {
            let mut near = bytes;
            near[..8].copy_from_slice(&[first, change, 8, change & 1, 0, 0, 0, 0]);
            for bytes in [bytes, near] {
                if let Ok(request) = Request::parse(&bytes) {
                    prop_assert_eq!(request.to_bytes(), bytes);
                }
            }
            let response: [u8; 24] = std::array::from_fn(|i| bytes[i]);
            if let Ok(parsed) = Response::parse(&response) {
                prop_assert_eq!(parsed.to_bytes(), response);
            }
        }
    }
}
