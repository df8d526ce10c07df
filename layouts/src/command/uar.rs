//! User access regions: ALLOC_UAR, DEALLOC_UAR (mlx5_ifc.h: `alloc_uar_*`, `dealloc_uar_*`).

use super::{StatusOut, requests};
use crate::prm::{Field, layouts};

layouts! {
    /// Queries a UAR page.
    AllocUarIn: 16, "alloc_uar_in";
    /// Names the UAR page.
    AllocUarOut: 16, "alloc_uar_out";
    /// Deallocates a UAR page.
    DeallocUarIn: 16, "dealloc_uar_in";
}

requests! {
    AllocUarIn => AllocUar, AllocUarOut;
    DeallocUarIn => DeallocUar, StatusOut;
}

impl AllocUarOut {
    /// The page's index, for the `uar_page` field of queue contexts.
    pub const UAR: Field<Self> = Field::new(0x48, 24);
}

impl DeallocUarIn {
    /// The page's index.
    pub const UAR: Field<Self> = Field::new(0x48, 24);
}
