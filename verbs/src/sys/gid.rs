//! GID tables. The bindings in rdma-sys lack these functions, whose names begin with an underscore.

use std::ffi::c_int;
use std::io;

use rdma_sys::{ibv_context, ibv_gid, ibv_gid_entry};

use super::{OpenContext, Plain};

unsafe extern "C" {
    /// The function behind `ibv_query_gid_table` of verbs.h. Returns the number of entries, or a
    /// negative errno value.
    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;

    /// `ibv_query_pkey` of verbs.h; the key is big-endian.
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, key: *mut u16) -> c_int;
}

// SAFETY: all fields are integers, for which zero is valid.
unsafe impl Plain for ibv_gid_entry {}

impl OpenContext {
    /// Returns an entry of a port's partition table.
    pub(crate) fn partition_key(&self, port: u8, index: u16) -> io::Result<u16> {
        let mut key = 0;
        // SAFETY: the context is open, and `key` is writable.
        match unsafe { ibv_query_pkey(self.raw(), port, index.into(), &raw mut key) } {
            0 => Ok(u16::from_be(key)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the used entries of all ports, at most `most`.
    pub(crate) fn gid_table(&self, most: usize) -> io::Result<Vec<ibv_gid_entry>> {
        let mut entries: Vec<ibv_gid_entry> = (0..most).map(|_| ibv_gid_entry::zeroed()).collect();
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the context is open, and the vector has room for `most` entries of the size that
        // is passed.
        let count =
            unsafe { _ibv_query_gid_table(self.raw(), entries.as_mut_ptr(), most, 0, size) };
        let count = usize::try_from(count).map_err(|_| {
            i32::try_from(-count)
                .map_or_else(|_| io::Error::last_os_error(), io::Error::from_raw_os_error)
        })?;
        entries.truncate(count);
        Ok(entries)
    }
}

/// The bytes of a GID.
pub(crate) fn bytes(gid: &ibv_gid) -> [u8; 16] {
    // SAFETY: both members of the union are 16 bytes of integers, so each is always initialised and
    // valid.
    unsafe { gid.raw }
}
