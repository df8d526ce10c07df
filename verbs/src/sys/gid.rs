//! GID tables. rdma-sys lacks the functions: their names begin with an underscore.

use std::io;

use rdma_sys::{ibv_context, ibv_gid, ibv_gid_entry};

use super::{OpenContext, Plain};

unsafe extern "C" {
    /// verbs.h: what `ibv_query_gid_table` calls. The number of entries, or a negative errno.
    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
}

// SAFETY: integers only.
unsafe impl Plain for ibv_gid_entry {}

impl OpenContext {
    /// The entries in use of all ports, of which there are at most `most`.
    pub(crate) fn gid_table(&self, most: usize) -> io::Result<Vec<ibv_gid_entry>> {
        let mut entries: Vec<ibv_gid_entry> = (0..most).map(|_| ibv_gid_entry::zeroed()).collect();
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the context is open, and there is room for `most` entries of that size.
        let count = unsafe { _ibv_query_gid_table(self.raw(), entries.as_mut_ptr(), most, 0, size) };
        let count = usize::try_from(count).map_err(|_| {
            i32::try_from(-count).map_or_else(|_| io::Error::last_os_error(), io::Error::from_raw_os_error)
        })?;
        entries.truncate(count);
        Ok(entries)
    }
}

/// The bytes of a GID.
pub(crate) fn bytes(gid: &ibv_gid) -> [u8; 16] {
    // SAFETY: either member is 16 bytes of integers.
    unsafe { gid.raw }
}
