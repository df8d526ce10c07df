//! Families of objects, of which firmware may lack or mistreat some.

use std::fmt;
use std::str::FromStr;

use barewire_layouts::command::dct::CreateDctOut;
use barewire_layouts::command::qp::{CreateQpIn, CreateQpOut, Qpc, ServiceType};
use barewire_layouts::command::{CommandOpcode, InHeader};
use barewire_layouts::prm::View;

use crate::object::{Objects, SrqKind};

/// A set of families of objects, as text separated by colons: `rmp:dct`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Families(u8);

impl Families {
    /// Shared receive queues of reliable connections.
    pub const RMP: Self = Self(1);
    /// Targets of DC.
    pub const DCT: Self = Self(1 << 1);
    /// Initiators of DC.
    pub const DCI: Self = Self(1 << 2);
    /// Queue pairs and shared receive queues of XRC.
    pub const XRC: Self = Self(1 << 3);
    /// Queue pairs for unreliable datagrams.
    pub const UD: Self = Self(1 << 4);
    /// Shared receive queues with tag matching.
    pub const XRQ: Self = Self(1 << 5);

    const NAMES: [(Self, &str); 6] = [
        (Self::RMP, "rmp"),
        (Self::DCT, "dct"),
        (Self::DCI, "dci"),
        (Self::XRC, "xrc"),
        (Self::UD, "ud"),
        (Self::XRQ, "xrq"),
    ];

    /// Returns whether both sets have a family in common.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether the set has no family.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The families of what the command in `input` creates.
    pub(crate) fn created_by(input: &[u8]) -> Self {
        let opcode = View::<InHeader>::new(input).map(|header| header.get(InHeader::OPCODE));
        match opcode {
            Some(Ok(CommandOpcode::CreateRmp)) => Self::RMP,
            Some(Ok(CommandOpcode::CreateDct)) => Self::DCT,
            Some(Ok(CommandOpcode::CreateXrcSrq)) => Self::XRC,
            Some(Ok(CommandOpcode::CreateXrq)) => Self::XRQ,
            Some(Ok(CommandOpcode::CreateQp)) => {
                let service = View::<CreateQpIn>::new(input)
                    .and_then(|input| input.nested(CreateQpIn::QPC).get(Qpc::ST).ok());
                match service {
                    Some(ServiceType::Dci) => Self::DCI,
                    Some(ServiceType::Xrc) => Self::XRC,
                    Some(ServiceType::Ud) => Self::UD,
                    _ => Self::default(),
                }
            }
            _ => Self::default(),
        }
    }
}

/// Returns the number of the queue pair or target that the command in `input` has created, if it is
/// of the families `deaf`: one that gets no packet.
pub(crate) fn deaf<E>(
    objects: &Objects<E>,
    deaf: Families,
    input: &[u8],
    output: &[u8],
) -> Option<u32> {
    let header = View::<InHeader>::new(input)?;
    match header.get(InHeader::OPCODE) {
        Ok(CommandOpcode::CreateDct) if deaf.has(Families::DCT) => {
            Some(View::<CreateDctOut>::new(output)?.get(CreateDctOut::DCTN))
        }
        Ok(CommandOpcode::CreateQp) => {
            let number = View::<CreateQpOut>::new(output)?.get(CreateQpOut::QPN);
            let kind = objects.qps.get(number)?.srq.and_then(|srq| objects.srqs.get(srq));
            let shared = match kind.map(|srq| srq.kind) {
                Some(SrqKind::Rmp) => deaf.has(Families::RMP),
                Some(SrqKind::Xrq) => deaf.has(Families::XRQ),
                _ => false,
            };
            (shared || deaf.has(Families::created_by(input))).then_some(number)
        }
        _ => None,
    }
}

impl fmt::Display for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().filter(|(family, _)| self.has(*family));
        f.write_str(&names.map(|(_, name)| *name).collect::<Vec<_>>().join(":"))
    }
}

impl FromStr for Families {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        text.split(':').try_fold(Self::default(), |Self(bits), name| {
            let known = Self::NAMES.iter().find(|(_, known)| *known == name);
            known.map(|(Self(family), _)| Self(bits | family)).ok_or(())
        })
    }
}
