//! Multicast groups of datagram queue pairs: ATTACH_TO_MCG, DETACH_FROM_MCG (mlx5_ifc.h:
//! `attach_to_mcg_*`, `detach_from_mcg_*`).

use super::{StatusOut, requests};
use crate::prm::{ByteField, Field, layouts};

layouts! {
    /// Delivers the datagrams of a group to a queue pair, beside its own.
    AttachToMcgIn: 32, "attach_to_mcg_in";
    /// Ends that.
    DetachFromMcgIn: 32, "detach_from_mcg_in";
}

requests! {
    AttachToMcgIn => AttachToMcg, StatusOut;
    DetachFromMcgIn => DetachFromMcg, StatusOut;
}

impl AttachToMcgIn {
    /// The queue pair.
    pub const QPN: Field<Self> = Field::new(0x48, 24);
    /// The group.
    pub const MULTICAST_GID: ByteField<Self, 16> = ByteField::new(0x80);
}

impl DetachFromMcgIn {
    /// The queue pair.
    pub const QPN: Field<Self> = Field::new(0x48, 24);
    /// The group.
    pub const MULTICAST_GID: ByteField<Self, 16> = ByteField::new(0x80);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;
    use crate::prm::Layout;

    const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];

    fn want(opcode: [u8; 2]) -> [u8; 32] {
        let mut want = [0; 32];
        want[..2].copy_from_slice(&opcode);
        want[9..12].copy_from_slice(&[0x12, 0x34, 0x56]);
        want[16..].copy_from_slice(&GID);
        want
    }

    #[test]
    fn both_commands_byte_for_byte() {
        let mut bytes = [0; AttachToMcgIn::BYTES];
        request::<AttachToMcgIn>(&mut bytes)
            .unwrap()
            .set(AttachToMcgIn::QPN, 0x0012_3456)
            .set_array(AttachToMcgIn::MULTICAST_GID, GID);
        assert_eq!(bytes, want([0x08, 0x06]));
        let mut bytes = [0; DetachFromMcgIn::BYTES];
        request::<DetachFromMcgIn>(&mut bytes)
            .unwrap()
            .set(DetachFromMcgIn::QPN, 0x0012_3456)
            .set_array(DetachFromMcgIn::MULTICAST_GID, GID);
        assert_eq!(bytes, want([0x08, 0x07]));
    }
}
