//! The bodies of OFFER and ANSWER.
//!
//! | OFFER | bytes |
//! |---|---|
//! | milliseconds that the sender will wait | 4 |
//! | the sender's address: length, bytes | 2, .. |
//! | needs; error mode | 4; 1 |
//! | lanes: count, then each {kind, index here, there, endpoint address: length, bytes} | 1, .. |
//! | private data: length, bytes | 2, .. |
//!
//! | ANSWER | bytes |
//! |---|---|
//! | lanes: count, then each {reason or 0, endpoint address: length, bytes} | 1, .. |
//! | private data: length, bytes | 2, .. |

use super::message::{Kind, MAX_BODY, MessageError};
use super::reason::Reason;

/// Lanes of one link at most.
pub const MAX_LANES: usize = 16;

/// One lane that the offering side would connect. The numbers mean what the caller's plan says.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Lane {
    /// The kinds of traffic.
    pub kind: u8,
    /// Index of the interface in the sender's address.
    pub here: u8,
    /// Index of the interface in the receiver's address.
    pub there: u8,
    /// Address of the sender's endpoint; empty for a lane that connects to the interface.
    pub endpoint: Vec<u8>,
}

/// What the offering side would connect.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Offer {
    /// Operations that the sender's user needs; the protocol does not interpret it.
    pub needs: u32,
    /// How the sender's user handles errors; the protocol does not interpret it.
    pub errors: u8,
    /// At most [`MAX_LANES`].
    pub lanes: Vec<Lane>,
    /// For layers above, for example a listener's private data or a credit window.
    pub private: Vec<u8>,
}

/// What the answering side connected.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Answer {
    /// One for each lane of the offer: the address of the endpoint, which is empty for a lane that
    /// connects to the interface, or why there is none.
    pub lanes: Vec<Result<Vec<u8>, Reason>>,
    /// For layers above.
    pub private: Vec<u8>,
}

/// An OFFER as it was received: the offer, the sender's address, and how long the sender waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) patience: u32,
    pub(super) address: Vec<u8>,
    pub(super) offer: Offer,
}

impl Offer {
    /// Returns the body of an OFFER, or nothing if it is too long or has too many lanes.
    pub(super) fn body(&self, address: &[u8]) -> Option<Vec<u8>> {
        let mut body = vec![0; 4];
        put_long(&mut body, address)?;
        body.extend_from_slice(&self.needs.to_be_bytes());
        body.push(self.errors);
        put_count(&mut body, self.lanes.len())?;
        for lane in &self.lanes {
            body.extend_from_slice(&[lane.kind, lane.here, lane.there]);
            put_short(&mut body, &lane.endpoint)?;
        }
        put_long(&mut body, &self.private)?;
        (body.len() <= MAX_BODY).then_some(body)
    }

    pub(super) fn from_body(body: &[u8]) -> Result<Received, MessageError> {
        let mut reader = Reader { kind: Kind::Offer, bytes: body };
        let patience = u32::from_be_bytes(reader.array()?);
        let address = reader.long()?;
        let needs = u32::from_be_bytes(reader.array()?);
        let errors = reader.byte()?;
        let mut lanes = Vec::new();
        for _ in 0..reader.count()? {
            let [kind, here, there] = reader.array()?;
            lanes.push(Lane { kind, here, there, endpoint: reader.short()? });
        }
        let private = reader.long()?;
        reader.end()?;
        Ok(Received { patience, address, offer: Self { needs, errors, lanes, private } })
    }
}

impl Answer {
    /// Whether every lane was connected.
    pub fn is_complete(&self) -> bool {
        self.lanes.iter().all(Result::is_ok)
    }

    /// Returns the body of an ANSWER, or nothing if it is too long or has too many lanes.
    pub(super) fn body(&self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        put_count(&mut body, self.lanes.len())?;
        for lane in &self.lanes {
            match lane {
                Ok(endpoint) => {
                    body.push(0);
                    put_short(&mut body, endpoint)?;
                }
                Err(reason) => body.extend_from_slice(&[reason.code().max(1), 0]),
            }
        }
        put_long(&mut body, &self.private)?;
        (body.len() <= MAX_BODY).then_some(body)
    }

    pub(super) fn from_body(body: &[u8]) -> Result<Self, MessageError> {
        let mut reader = Reader { kind: Kind::Answer, bytes: body };
        let mut lanes = Vec::new();
        for _ in 0..reader.count()? {
            let reason = reader.byte()?;
            let endpoint = reader.short()?;
            lanes.push(match Reason::from_code(reason) {
                Reason::None => Ok(endpoint),
                _ if !endpoint.is_empty() => return reader.error("a refused lane has an endpoint"),
                reason => Err(reason),
            });
        }
        let private = reader.long()?;
        reader.end()?;
        Ok(Self { lanes, private })
    }
}

fn put_count(body: &mut Vec<u8>, count: usize) -> Option<()> {
    body.push(u8::try_from(count).ok().filter(|count| usize::from(*count) <= MAX_LANES)?);
    Some(())
}

fn put_short(body: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    body.push(u8::try_from(bytes.len()).ok()?);
    body.extend_from_slice(bytes);
    Some(())
}

fn put_long(body: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    body.extend_from_slice(&u16::try_from(bytes.len()).ok()?.to_be_bytes());
    body.extend_from_slice(bytes);
    Some(())
}

struct Reader<'a> {
    kind: Kind,
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn error<T>(&self, what: &'static str) -> Result<T, MessageError> {
        Err(MessageError::Body { kind: self.kind, what })
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], MessageError> {
        let Some((front, rest)) = self.bytes.split_at_checked(length) else {
            return self.error("cut short");
        };
        self.bytes = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, MessageError> {
        Ok(self.array::<1>()?[0])
    }

    fn count(&mut self) -> Result<u8, MessageError> {
        let count = self.byte()?;
        if usize::from(count) > MAX_LANES { self.error("too many lanes") } else { Ok(count) }
    }

    fn short(&mut self) -> Result<Vec<u8>, MessageError> {
        let length = self.byte()?;
        Ok(self.bytes(usize::from(length))?.to_vec())
    }

    fn long(&mut self) -> Result<Vec<u8>, MessageError> {
        let length = u16::from_be_bytes(self.array()?);
        Ok(self.bytes(usize::from(length))?.to_vec())
    }

    fn end(&self) -> Result<(), MessageError> {
        if self.bytes.is_empty() { Ok(()) } else { self.error("bytes behind its end") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        let lane =
            |kind, endpoint: &[u8]| Lane { kind, here: 2, there: 3, endpoint: endpoint.to_vec() };
        Offer {
            needs: 5,
            errors: 1,
            lanes: vec![lane(1, b""), lane(2, b"ep")],
            private: b"p".to_vec(),
        }
    }

    #[test]
    fn golden_bytes_of_the_bodies() {
        let body = offer().body(b"addr").unwrap();
        assert_eq!(
            body,
            b"\0\0\0\0\0\x04addr\0\0\0\x05\x01\x02\x01\x02\x03\0\x02\x02\x03\x02ep\0\x01p"
        );
        let received = Offer::from_body(&body).unwrap();
        assert_eq!(received, Received { patience: 0, address: b"addr".to_vec(), offer: offer() });
        let answer =
            Answer { lanes: vec![Ok(b"ep".to_vec()), Err(Reason::Busy)], private: b"q".to_vec() };
        let body = answer.body().unwrap();
        assert_eq!(body, b"\x02\0\x02ep\x04\0\0\x01q");
        assert_eq!(Answer::from_body(&body), Ok(answer));
    }

    #[test]
    fn every_shorter_or_longer_body_is_an_error() {
        let body = offer().body(b"addr").unwrap();
        for length in 0..body.len() {
            assert!(Offer::from_body(&body[..length]).is_err(), "{length}");
        }
        let mut long = body;
        long.push(0);
        assert!(Offer::from_body(&long).is_err());
    }

    #[test]
    fn what_does_not_fit_has_no_body() {
        let lanes = vec![Lane::default(); MAX_LANES + 1];
        assert_eq!(Offer { lanes, ..offer() }.body(b""), None);
        assert_eq!(Offer { private: vec![0; MAX_BODY], ..offer() }.body(b""), None);
        let lanes = vec![Lane { endpoint: vec![0; 256], ..Lane::default() }];
        assert_eq!(Offer { lanes, ..offer() }.body(b""), None);
    }
}
