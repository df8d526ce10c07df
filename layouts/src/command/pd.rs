//! Protection domains: ALLOC_PD, DEALLOC_PD (mlx5_ifc.h: `alloc_pd_*`, `dealloc_pd_*`).

use super::{StatusOut, requests};
use crate::prm::{Field, layouts};

layouts! {
    /// Queries a protection domain.
    AllocPdIn: 16, "alloc_pd_in";
    /// Names the new protection domain.
    AllocPdOut: 16, "alloc_pd_out";
    /// Deallocates a protection domain.
    DeallocPdIn: 16, "dealloc_pd_in";
}

requests! {
    AllocPdIn => AllocPd, AllocPdOut;
    DeallocPdIn => DeallocPd, StatusOut;
}

impl AllocPdOut {
    /// The new protection domain's number.
    pub const PD: Field<Self> = Field::new(0x48, 24);
}

impl DeallocPdIn {
    /// The protection domain.
    pub const PD: Field<Self> = Field::new(0x48, 24);
}
