//! Sixteen bytes in a vector register.

use core::fmt;
use core::ptr::NonNull;

use barewire_layouts::tag::TagHeader;
use barewire_layouts::wqe::{DS, DataSegment, InlineHeader, RemoteAddressSegment};
use zerocopy::{FromBytes, Immutable, IntoBytes, transmute};

#[cfg(target_arch = "x86_64")]
type Vector = core::arch::x86_64::__m128i;
#[cfg(target_arch = "aarch64")]
type Vector = core::arch::aarch64::uint64x2_t;

/// One 16-byte unit of a WQE. SSE2 and NEON are part of x86-64 and aarch64, so this is one register
/// and one store.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Unit(Vector);

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unit")
    }
}

// The words of a unit are built with the first byte in memory as the lowest.
const _: () = assert!(cfg!(target_endian = "little"), "this driver runs on little-endian hosts");

impl Unit {
    /// From two words whose bytes are in memory order.
    #[inline(always)]
    pub(crate) fn from_words(low: u64, high: u64) -> Self {
        Self(transmute!([low, high]))
    }

    /// From the first 4 bytes, padded with zeros.
    #[inline(always)]
    pub(crate) fn from_low(low: u32) -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: SSE2 is part of x86-64.
            Self(unsafe { core::arch::x86_64::_mm_cvtsi32_si128(low.cast_signed()) })
        }
        #[cfg(target_arch = "aarch64")]
        Self::from_words(low.into(), 0)
    }

    /// From one number whose bytes are in memory order.
    #[inline(always)]
    pub(crate) fn from_number(number: u128) -> Self {
        Self::from_words(number as u64, (number >> 64) as u64)
    }

    /// From a segment of 16 bytes.
    #[inline(always)]
    pub(crate) fn segment<S: IntoBytes + Immutable>(segment: &S) -> Self {
        const { assert!(size_of::<S>() == DS) };
        // The lengths are equal, as just asserted, so this compiles to a load.
        Vector::read_from_bytes(segment.as_bytes()).map_or(Self::zero(), Self)
    }

    /// An inline header followed by 8 bytes.
    #[inline(always)]
    pub(crate) fn inline_8(header: InlineHeader, payload: [u8; 8]) -> Self {
        let header: u32 = transmute!(header);
        #[cfg(target_arch = "x86_64")]
        {
            use core::arch::x86_64::{
                _mm_cvtsi32_si128, _mm_cvtsi64_si128, _mm_or_si128, _mm_slli_si128,
            };
            // Shifted in the vector register: three instructions instead of seven for two words.
            // SAFETY: SSE2 is part of x86-64.
            Self(unsafe {
                let payload = _mm_slli_si128::<4>(_mm_cvtsi64_si128(i64::from_le_bytes(payload)));
                _mm_or_si128(payload, _mm_cvtsi32_si128(header.cast_signed()))
            })
        }
        #[cfg(target_arch = "aarch64")]
        {
            let payload = u64::from_le_bytes(payload);
            Self::from_words(u64::from(header) | payload << 32, payload >> 32)
        }
    }

    /// Splits a prefix that fills the unit of an inline header into its first 4 bytes and its other
    /// 8.
    #[inline(always)]
    pub(crate) fn split_prefix(prefix: [u8; 12]) -> (u32, u64) {
        let [a, b, c]: [[u8; 4]; 3] = transmute!(prefix);
        (
            u32::from_le_bytes(a),
            u64::from(u32::from_le_bytes(b)) | u64::from(u32::from_le_bytes(c)) << 32,
        )
    }

    /// An inline header followed by the prefix.
    #[inline(always)]
    pub(crate) fn inline_prefix(header: InlineHeader, prefix: [u8; 12]) -> Self {
        let header: u32 = transmute!(header);
        let (low, high) = Self::split_prefix(prefix);
        Self::from_words(u64::from(header) | u64::from(low) << 32, high)
    }

    /// An inline header followed by the first 12 bytes of a tag matching header, and its last 4.
    #[inline(always)]
    pub(crate) fn tagged(inline: InlineHeader, header: &TagHeader) -> (Self, u32) {
        let [kind, application, high, low]: [u32; 4] = transmute!(*header);
        let inline: u32 = transmute!(inline);
        let first = u64::from(inline) | u64::from(kind) << 32;
        (Self::from_words(first, u64::from(application) | u64::from(high) << 32), low)
    }

    /// A remote address segment.
    #[inline(always)]
    pub(crate) fn remote(remote: &RemoteAddressSegment) -> Self {
        let address: u64 = transmute!(remote.address);
        let rkey: u32 = transmute!(remote.rkey);
        Self::from_words(address, u64::from(rkey))
    }

    /// A data segment.
    #[inline(always)]
    pub(crate) fn local(local: &DataSegment) -> Self {
        let (count, lkey): (u32, u32) = (transmute!(local.byte_count), transmute!(local.lkey));
        Self::from_words(u64::from(count) | u64::from(lkey) << 32, transmute!(local.address))
    }

    /// Sixteen bytes of a payload.
    #[inline(always)]
    pub(crate) fn load(bytes: &[u8; DS]) -> Self {
        Self(transmute!(*bytes))
    }

    /// Zeros.
    #[inline(always)]
    pub(crate) fn zero() -> Self {
        Self::from_words(0, 0)
    }

    /// Stores the unit to a ring or to a register of the device by exactly one store. See
    /// [`crate::store`].
    ///
    /// # Safety
    /// `place` is valid for a write of 16 bytes and aligned to 16. Concurrent accesses within this
    /// process are atomic accesses of whole 8-byte words.
    #[inline(always)]
    pub(crate) unsafe fn store(self, place: NonNull<Self>) {
        #[cfg(not(any(miri, barewire_sanitize)))]
        // SAFETY: `place` is valid and aligned by the caller's contract.
        unsafe { volatile::VolatilePtr::new_restricted(volatile::access::WriteOnly, place) }
            .write(self);
        #[cfg(any(miri, barewire_sanitize))]
        // SAFETY: `place` satisfies the contract of `store::words` by the caller's contract.
        unsafe {
            crate::store::words(place, transmute!(self.0));
        }
    }

    /// The vector register.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn vector(self) -> Vector {
        self.0
    }

    /// Two words whose bytes are in memory order.
    #[inline(always)]
    pub(crate) fn words(self) -> (u64, u64) {
        let [low, high]: [u64; 2] = transmute!(self.0);
        (low, high)
    }

    /// The first 8 bytes.
    #[inline(always)]
    pub(crate) fn low(self) -> u64 {
        self.words().0
    }
}

impl core::ops::BitOr for Unit {
    type Output = Self;

    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        // As a vector, otherwise the compiler splits it into words.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 is part of x86-64.
        return Self(unsafe { core::arch::x86_64::_mm_or_si128(self.0, other.0) });
        #[cfg(target_arch = "aarch64")]
        // SAFETY: NEON is part of aarch64.
        return Self(unsafe { core::arch::aarch64::vorrq_u64(self.0, other.0) });
    }
}
