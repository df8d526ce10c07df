//! Puts and gets straight from and into registered memory, which differ in their direction only.

use crate::base::capability::{GetZcopy, Lists, PutZcopy, RemoteMemory};
use crate::base::completion::Completion;
use crate::base::error::{Operation, PostError};
use crate::base::memory::{Access, Slice, Transfer};
use crate::base::status::{Post, Posted};

/// Puts if `PUT`, and gets otherwise.
pub(crate) trait Rma: RemoteMemory {
    /// See [`PutZcopy::put_zcopy`].
    fn transfer<const PUT: bool>(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &Self::Key,
        completion: Option<&Completion>,
    ) -> Post;

    /// See [`Lists::put_list`]. Without a method of its own, an endpoint completes each transfer in
    /// its post.
    fn transfer_list<const PUT: bool>(
        &self,
        transfers: &[Transfer<'_, Self::Key>],
        _completion: Option<&Completion>,
    ) -> Post {
        for &Transfer { local, remote, key } in transfers {
            let _ = self.transfer::<PUT>(&[local], remote, key, None)?;
        }
        Ok(Posted::Done)
    }
}

impl<E: Rma> PutZcopy for E {
    #[inline(always)]
    fn put_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &Self::Key,
        completion: Option<&Completion>,
    ) -> Post {
        self.transfer::<true>(slices, remote, key, completion)
    }
}

impl<E: Rma> GetZcopy for E {
    #[inline(always)]
    fn get_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &Self::Key,
        completion: Option<&Completion>,
    ) -> Post {
        self.transfer::<false>(slices, remote, key, completion)
    }
}

impl<E: Rma> Lists for E {
    fn put_list(
        &self,
        transfers: &[Transfer<'_, Self::Key>],
        completion: Option<&Completion>,
    ) -> Post {
        self.transfer_list::<true>(transfers, completion)
    }

    fn get_list(
        &self,
        transfers: &[Transfer<'_, Self::Key>],
        completion: Option<&Completion>,
    ) -> Post {
        self.transfer_list::<false>(transfers, completion)
    }
}

/// Returns the right that a put needs, or a get.
#[inline(always)]
pub(crate) const fn right(put: bool) -> Access {
    if put { Access::REMOTE_WRITE } else { Access::REMOTE_READ }
}

/// Returns the operation as errors name it.
#[inline(always)]
pub(crate) const fn operation(put: bool) -> Operation {
    if put { Operation::Put } else { Operation::Get }
}

/// Returns the total length of the slices, if there are at most `limit`, and each is of the domain
/// with this tag and can be the source (if `put`) or the target of a copy. For transports without
/// device keys, whose slices carry access rights instead.
#[inline]
pub(crate) fn total(
    slices: &[Slice<'_>],
    tag: u32,
    limit: usize,
    put: bool,
) -> Result<usize, PostError> {
    if slices.len() > limit {
        return Err(PostError::TooManySlices { limit: limit as u32 });
    }
    let need = if put { Access::empty() } else { Access::LOCAL_WRITE };
    let mut total = 0usize;
    for slice in slices {
        if slice.domain != tag {
            return Err(PostError::ForeignMemory);
        }
        if !Access::from_bits_truncate(slice.key).contains(need) {
            return Err(PostError::AccessDenied);
        }
        total = total.saturating_add(slice.length);
    }
    Ok(total)
}

/// Copies the slices, one after the other, to the front of `buffer`, which is long enough, and
/// returns the rest of it.
#[inline]
pub(crate) fn gather<'b>(slices: &[Slice<'_>], mut buffer: &'b mut [u8]) -> &'b mut [u8] {
    for slice in slices {
        let (place, rest) = buffer.split_at_mut(slice.length);
        let from = (slice.address - slice.memory.address()) as usize;
        // SAFETY: the slice borrows its memory, and its range was checked on creation.
        unsafe { slice.memory.read(from, place) };
        buffer = rest;
    }
    buffer
}
