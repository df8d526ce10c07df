//! Ports, and what a driver queries at start: QUERY_VPORT_STATE, QUERY_NIC_VPORT_CONTEXT,
//! QUERY_HCA_VPORT_CONTEXT, QUERY_HCA_VPORT_GID, QUERY_HCA_VPORT_PKEY, QUERY_LAG, QUERY_ADAPTER
//! (mlx5_ifc.h: structures of these names).

use super::requests;
use crate::prm::{ByteField, Field, Nested, field_enum, layouts};

/// The table index that means all entries.
pub const ALL_ENTRIES: u16 = 0xffff;
/// The default partition key, of a full member (IBTA 10.9.1.2).
pub const DEFAULT_PKEY: u16 = 0xffff;

field_enum! {
    /// Whether a port is up (mlx5 driver.h: `VPORT_STATE_*`).
    VportState: u8, "vport state" {
        /// Down.
        Down = 0x0, "down";
        /// Up.
        Up = 0x1, "up";
    }
}

field_enum! {
    /// A port's logical state (IBTA 14.2.5.6, PortInfo.PortState).
    PortState: u8, "port state" {
        /// Down.
        Down = 1, "down";
        /// Initialised.
        Init = 2, "init";
        /// Armed.
        Armed = 3, "armed";
        /// Active.
        Active = 4, "active";
    }
}

field_enum! {
    /// A port's physical state (IBTA 14.2.5.6, PortInfo.PortPhysicalState).
    PhysicalState: u8, "port physical state" {
        /// Polling for a peer.
        Polling = 2, "polling";
        /// It is turned off.
        Disabled = 3, "disabled";
        /// It has a link.
        LinkUp = 5, "link up";
    }
}

layouts! {
    /// Queries whether the port is up.
    QueryVportStateIn: 16, "query_vport_state_in";
    /// It is.
    QueryVportStateOut: 16, "query_vport_state_out";
    /// Queries the Ethernet side of a port.
    QueryNicVportContextIn: 16, "query_nic_vport_context_in";
    /// It. A list of addresses may follow.
    QueryNicVportContextOut: 16 + 256, "query_nic_vport_context_out";
    /// The Ethernet side of a port.
    NicVportContext: 256, "nic_vport_context";
    /// Queries the InfiniBand side of a port.
    QueryHcaVportContextIn: 16, "query_hca_vport_context_in";
    /// It.
    QueryHcaVportContextOut: 16 + 512, "query_hca_vport_context_out";
    /// The InfiniBand side of a port.
    HcaVportContext: 512, "hca_vport_context";
    /// Queries GIDs.
    QueryHcaVportGidIn: 16, "query_hca_vport_gid_in";
    /// The first of them; the others follow.
    QueryHcaVportGidOut: 16 + 16, "query_hca_vport_gid_out";
    /// Queries partition keys.
    QueryHcaVportPkeyIn: 16, "query_hca_vport_pkey_in";
    /// The first of them; the others follow.
    QueryHcaVportPkeyOut: 16 + 4, "query_hca_vport_pkey_out";
    /// Queries how ports are bonded.
    QueryLagIn: 16, "query_lag_in";
    /// How; all zero: not at all.
    QueryLagOut: 16, "query_lag_out";
    /// Queries the card's names.
    QueryAdapterIn: 16, "query_adapter_in";
    /// They.
    QueryAdapterOut: 16 + 256, "query_adapter_out";
    /// A card's names.
    QueryAdapterParamBlock: 256, "query_adapter_param_block";
}

requests! {
    QueryVportStateIn => QueryVportState, QueryVportStateOut;
    QueryNicVportContextIn => QueryNicVportContext, QueryNicVportContextOut;
    QueryHcaVportContextIn => QueryHcaVportContext, QueryHcaVportContextOut;
    QueryHcaVportGidIn => QueryHcaVportGid, QueryHcaVportGidOut;
    QueryHcaVportPkeyIn => QueryHcaVportPkey, QueryHcaVportPkeyOut;
    QueryLagIn => QueryLag, QueryLagOut;
    QueryAdapterIn => QueryAdapter, QueryAdapterOut;
}

impl QueryVportStateIn {
    /// Another function's port is meant.
    pub const OTHER_VPORT: Field<Self, bool> = Field::new(0x40, 1);
}

impl QueryVportStateOut {
    /// The state that the administrator requested.
    pub const ADMIN_STATE: Field<Self, VportState> = Field::new(0x78, 4);
    /// The actual state.
    pub const STATE: Field<Self, VportState> = Field::new(0x7c, 4);
}

impl QueryNicVportContextIn {
    /// Another function's port is meant.
    pub const OTHER_VPORT: Field<Self, bool> = Field::new(0x40, 1);
}

impl QueryNicVportContextOut {
    /// The Ethernet side.
    pub const NIC_VPORT_CONTEXT: Nested<Self, NicVportContext> = Nested::new(0x80);
}

impl NicVportContext {
    /// RoCE is on.
    pub const ROCE_EN: Field<Self, bool> = Field::new(0x1f, 1);
    /// The most bytes of an Ethernet frame's payload.
    pub const MTU: Field<Self, u16> = Field::new(0x130, 16);
    /// Identity of the machine.
    pub const SYSTEM_IMAGE_GUID: Field<Self, u64> = Field::new(0x140, 64);
    /// Identity of the port.
    pub const PORT_GUID: Field<Self, u64> = Field::new(0x180, 64);
    /// Identity of the card.
    pub const NODE_GUID: Field<Self, u64> = Field::new(0x1c0, 64);
    /// The Ethernet address (`permanent_address`).
    pub const PERMANENT_ADDRESS: ByteField<Self, 6> = ByteField::new(0x7b0);
}

impl QueryHcaVportContextIn {
    /// Another function's port is meant.
    pub const OTHER_VPORT: Field<Self, bool> = Field::new(0x40, 1);
    /// The port, from 1; 0 means the first.
    pub const PORT_NUM: Field<Self, u8> = Field::new(0x4c, 4);
}

impl QueryHcaVportContextOut {
    /// The InfiniBand side.
    pub const HCA_VPORT_CONTEXT: Nested<Self, HcaVportContext> = Nested::new(0x80);
}

impl HcaVportContext {
    /// Packets must carry a global route header.
    pub const GRH_REQUIRED: Field<Self, bool> = Field::new(0x103, 1);
    /// Physical state.
    pub const PORT_PHYSICAL_STATE: Field<Self, PhysicalState> = Field::new(0x110, 4);
    /// Logical state of the port.
    pub const PORT_STATE: Field<Self, PortState> = Field::new(0x118, 4);
    /// Logical state of this function's share of it.
    pub const VPORT_STATE: Field<Self, PortState> = Field::new(0x11c, 4);
    /// Identity of the machine.
    pub const SYSTEM_IMAGE_GUID: Field<Self, u64> = Field::new(0x140, 64);
    /// Identity of the port.
    pub const PORT_GUID: Field<Self, u64> = Field::new(0x180, 64);
    /// Identity of the card.
    pub const NODE_GUID: Field<Self, u64> = Field::new(0x1c0, 64);
    /// Local identifier; none on RoCE.
    pub const LID: Field<Self, u16> = Field::new(0x300, 16);
}

impl QueryHcaVportGidIn {
    /// Another function's port is meant.
    pub const OTHER_VPORT: Field<Self, bool> = Field::new(0x40, 1);
    /// The port, from 1; 0 means the first.
    pub const PORT_NUM: Field<Self, u8> = Field::new(0x4c, 4);
    /// Index into the table, or [`ALL_ENTRIES`].
    pub const GID_INDEX: Field<Self, u16> = Field::new(0x70, 16);
}

impl QueryHcaVportGidOut {
    /// Number of GIDs in the output.
    pub const GIDS_NUM: Field<Self, u16> = Field::new(0x60, 16);
    /// The first.
    pub const GID: ByteField<Self, 16> = ByteField::new(0x80);
}

impl QueryHcaVportPkeyIn {
    /// Another function's port is meant.
    pub const OTHER_VPORT: Field<Self, bool> = Field::new(0x40, 1);
    /// The port, from 1; 0 means the first.
    pub const PORT_NUM: Field<Self, u8> = Field::new(0x4c, 4);
    /// Index into the table, or [`ALL_ENTRIES`].
    pub const PKEY_INDEX: Field<Self, u16> = Field::new(0x70, 16);
}

impl QueryHcaVportPkeyOut {
    /// The first.
    pub const PKEY: Field<Self, u16> = Field::new(0x90, 16);
}

/// Returns whether a port with this partition key is a limited member: packets of other limited
/// members, and its own, do not arrive (IBTA 10.9.3).
pub const fn is_limited(partition_key: u16) -> bool {
    partition_key & 0x8000 == 0
}

/// Returns the index of a partition in a port's table: of partition `wanted`, or else of any.
/// Limited members of a partition cannot talk to each other (IBTA 10.9.3), so an entry with full
/// membership is preferred. `None` if the table lacks it.
pub fn partition_index(table: &[u16], wanted: Option<u16>) -> Option<u16> {
    const FULL: u16 = 1 << 15;
    let is = |key: u16| key & !FULL != 0 && wanted.is_none_or(|wanted| (key ^ wanted) & !FULL == 0);
    let find = |least: u16| table.iter().position(|&key| is(key) && key >= least);
    find(FULL).or_else(|| find(0)).map(|index| index as u16)
}

impl QueryLagOut {
    /// Ports are bonded.
    pub const LAG_STATE: Field<Self, u8> = Field::new(0x5d, 3);
}

impl QueryAdapterOut {
    /// The names.
    pub const QUERY_ADAPTER_STRUCT: Nested<Self, QueryAdapterParamBlock> = Nested::new(0x80);
}

impl QueryAdapterParamBlock {
    /// The maker's number at the IEEE.
    pub const IEEE_VENDOR_ID: Field<Self> = Field::new(0xc8, 24);
    /// The maker of the following texts, a PCI vendor number.
    pub const VSD_VENDOR_ID: Field<Self, u16> = Field::new(0xf0, 16);
    /// The board's name, padded with zeros.
    pub const VSD_CONTD_PSID: ByteField<Self, 16> = ByteField::new(0x780);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prm::{Layout, ViewMut};

    #[test]
    fn full_members_of_partitions_are_preferred() {
        assert_eq!(partition_index(&[0x7fff, 0x8001, 0xffff], None), Some(1));
        assert_eq!(partition_index(&[0, 0x7fff], None), Some(1));
        assert_eq!(partition_index(&[0x0001, 0x8001], Some(1)), Some(1));
        assert_eq!(partition_index(&[0x0001, 0x8002], Some(0x8001)), Some(0));
        assert_eq!(partition_index(&[0xffff, 0x8000], Some(2)), None);
        assert_eq!(partition_index(&[0x8000, 0], None), None);
    }

    #[test]
    fn answers_byte_for_byte() {
        let mut bytes = [0; QueryVportStateOut::BYTES];
        let mut out = ViewMut::<QueryVportStateOut>::new(&mut bytes).unwrap();
        out.set(QueryVportStateOut::ADMIN_STATE, VportState::Up)
            .set(QueryVportStateOut::STATE, VportState::Up);
        assert_eq!(bytes[15], 0x11);

        let mut bytes = [0; NicVportContext::BYTES];
        let mut nic = ViewMut::<NicVportContext>::new(&mut bytes).unwrap();
        nic.set(NicVportContext::ROCE_EN, true).set(NicVportContext::MTU, 1500);
        nic.set_array(NicVportContext::PERMANENT_ADDRESS, [1, 2, 3, 4, 5, 6]);
        assert_eq!((bytes[3], &bytes[38..40]), (1, &[0x05, 0xdc][..]));
        // mac_address_layout at 0x7a0: two reserved bytes, then the address.
        assert_eq!(bytes[0x7a0 / 8..0x7a0 / 8 + 8], [0, 0, 1, 2, 3, 4, 5, 6]);

        let mut bytes = [0; HcaVportContext::BYTES];
        let mut hca = ViewMut::<HcaVportContext>::new(&mut bytes).unwrap();
        hca.set(HcaVportContext::PORT_PHYSICAL_STATE, PhysicalState::LinkUp)
            .set(HcaVportContext::PORT_STATE, PortState::Active)
            .set(HcaVportContext::VPORT_STATE, PortState::Active)
            .set(HcaVportContext::GRH_REQUIRED, true);
        assert_eq!(bytes[32..36], [0x10, 0, 0x50, 0x44]);
    }
}
