//! The argument of RDMA_VERBS_IOCTL: a header that names object and method, and a list of
//! attributes (rdma_user_ioctl_cmds.h: `ib_uverbs_ioctl_hdr`, `ib_uverbs_attr`).

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::errno::Errno;
use crate::user_memory;

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
pub(crate) const RDMA_VERBS_IOCTL: u64 =
    3 << 30 | (size_of::<Header>() as u64) << 16 | 0x1b << 8 | 1;
/// `RDMA_DRIVER_MLX5`.
const MLX5: u32 = 1;
/// Limit on the attributes of one call; no method has more.
const MOST: usize = 64;
/// Values of up to this many bytes are stored in the attribute itself.
const INLINE: usize = 8;
/// `UVERBS_ATTR_F_MANDATORY`: a kernel that does not support the attribute must refuse the call.
const MANDATORY: u16 = 1 << 0;
/// `UVERBS_ATTR_F_VALID_OUTPUT`.
const VALID_OUTPUT: u16 = 1 << 1;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    length: u16,
    object: u16,
    method: u16,
    count: u16,
    reserved_1: u64,
    driver: u32,
    reserved_2: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Attribute {
    id: u16,
    length: u16,
    flags: u16,
    reserved: u16,
    data: u64,
}

/// A call's object, method and attributes. They are copied once, so that later changes to the
/// program's copy have no effect.
#[derive(Debug)]
pub(crate) struct Attributes {
    pub(crate) object: u16,
    pub(crate) method: u16,
    list: Vec<Attribute>,
    /// Address of the program's own list, for attributes that are written back.
    origin: u64,
}

impl Attributes {
    /// Reads the header at `argument` and the attributes that follow it.
    ///
    /// # Safety
    /// As for the ioctl: `argument` is the address of a header followed by as many attributes as it
    /// says, and each attribute longer than 8 bytes, or for output, holds the address of as many
    /// bytes. No Rust reference covers this memory, and until the value is dropped no one else
    /// writes to the memory for output. A wrong address is an error, see [`crate::user_memory`].
    pub(crate) unsafe fn read(argument: u64) -> Result<Self, Errno> {
        let mut header = Header::new_zeroed();
        // SAFETY: the caller's contract is the same.
        unsafe { user_memory::read(argument, header.as_mut_bytes()) }?;
        let count = usize::from(header.count);
        if usize::from(header.length) != size_of::<Header>() + count * size_of::<Attribute>()
            || count > MOST
            || (header.reserved_1, header.reserved_2) != (0, 0)
        {
            return Err(Errno::INVALID);
        }
        if header.driver != MLX5 {
            return Err(Errno::INVALID);
        }
        let origin = argument.wrapping_add(size_of::<Header>() as u64);
        let mut list = vec![Attribute::new_zeroed(); count];
        // SAFETY: the caller's contract is the same.
        unsafe { user_memory::read(origin, list.as_mut_bytes()) }?;
        for (at, attribute) in list.iter().enumerate() {
            let twice = list[..at].iter().any(|other| other.id == attribute.id);
            if twice || attribute.flags & !MANDATORY != 0 {
                return Err(Errno::INVALID);
            }
        }
        Ok(Self { object: header.object, method: header.method, list, origin })
    }

    /// Refuses mandatory attributes that are not among `known`.
    pub(crate) fn only(&self, known: &[u16]) -> Result<(), Errno> {
        let strange = |attribute: &&Attribute| {
            attribute.flags & MANDATORY != 0 && !known.contains(&attribute.id)
        };
        if self.list.iter().any(|attribute| strange(&attribute)) {
            Err(Errno::UNKNOWN)
        } else {
            Ok(())
        }
    }

    fn find(&self, id: u16) -> Option<(usize, &Attribute)> {
        self.list.iter().enumerate().find(|(_, attribute)| attribute.id == id)
    }

    /// Returns whether the call has this attribute.
    pub(crate) fn has(&self, id: u16) -> bool {
        self.find(id).is_some()
    }

    /// Returns a number of at most 8 bytes.
    pub(crate) fn number(&self, id: u16) -> Result<u64, Errno> {
        self.optional_number(id)?.ok_or(Errno::INVALID)
    }

    /// Returns a number of at most 8 bytes, or `None` if the call does not have the attribute.
    pub(crate) fn optional_number(&self, id: u16) -> Result<Option<u64>, Errno> {
        let Some((_, attribute)) = self.find(id) else { return Ok(None) };
        let length = usize::from(attribute.length);
        if length == 0 || length > INLINE {
            return Err(Errno::INVALID);
        }
        let mut bytes = [0; INLINE];
        bytes[..length].copy_from_slice(&attribute.data.to_ne_bytes()[..length]);
        Ok(Some(u64::from_ne_bytes(bytes)))
    }

    /// Returns a 32-bit number.
    pub(crate) fn word(&self, id: u16) -> Result<u32, Errno> {
        u32::try_from(self.number(id)?).map_err(|_| Errno::INVALID)
    }

    /// Returns the handle of an object, or `None` if the call does not have the attribute.
    pub(crate) fn optional_handle(&self, id: u16) -> Result<Option<u32>, Errno> {
        let Some((_, attribute)) = self.find(id) else { return Ok(None) };
        if attribute.length != 0 {
            return Err(Errno::INVALID);
        }
        u32::try_from(attribute.data).map(Some).map_err(|_| Errno::INVALID)
    }

    /// Returns the handle of an object.
    pub(crate) fn handle(&self, id: u16) -> Result<u32, Errno> {
        self.optional_handle(id)?.ok_or(Errno::INVALID)
    }

    /// Returns a file descriptor, or `None` if the call does not have the attribute.
    pub(crate) fn optional_descriptor(&self, id: u16) -> Result<Option<i32>, Errno> {
        let Some((_, attribute)) = self.find(id) else { return Ok(None) };
        if attribute.length != 0 {
            return Err(Errno::INVALID);
        }
        i32::try_from(attribute.data as i64).map(Some).map_err(|_| Errno::BAD_DESCRIPTOR)
    }

    /// Returns bytes of any length.
    pub(crate) fn bytes(&self, id: u16) -> Result<Vec<u8>, Errno> {
        let (_, attribute) = self.find(id).ok_or(Errno::INVALID)?;
        let length = usize::from(attribute.length);
        if length <= INLINE {
            return Ok(attribute.data.to_ne_bytes()[..length].to_vec());
        }
        let mut bytes = vec![0; length];
        // SAFETY: by the contract of `read`, the address is valid or refused by the kernel.
        unsafe { user_memory::read(attribute.data, &mut bytes) }?;
        Ok(bytes)
    }

    /// Returns a structure. A shorter one is padded with zeros; in a longer one the excess must be
    /// zero.
    pub(crate) fn structure<T: FromZeros + IntoBytes + FromBytes>(
        &self,
        id: u16,
    ) -> Result<T, Errno> {
        let given = self.bytes(id)?;
        let mut structure = T::new_zeroed();
        let bytes = structure.as_mut_bytes();
        let common = given.len().min(bytes.len());
        bytes[..common].copy_from_slice(&given[..common]);
        if given[common..].iter().any(|&byte| byte != 0) {
            Err(Errno(libc::E2BIG))
        } else {
            Ok(structure)
        }
    }

    /// Returns the room for output in bytes, 0 if there is no such attribute.
    pub(crate) fn room(&self, id: u16) -> usize {
        self.find(id).map_or(0, |(_, attribute)| attribute.length.into())
    }

    /// Writes output: as much as the caller has room for, padded with zeros. Does nothing if the
    /// call does not have the attribute.
    pub(crate) fn put(&self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        let Some((at, attribute)) = self.find(id) else { return Ok(()) };
        let mut answer = bytes.to_vec();
        answer.resize(attribute.length.into(), 0);
        // SAFETY: by the contract of `read`, the address is valid or refused by the kernel.
        unsafe { user_memory::write(attribute.data, &answer) }?;
        self.mark(at)
    }

    /// Writes a number to an output attribute.
    pub(crate) fn put_word(&self, id: u16, number: u32) -> Result<(), Errno> {
        self.put(id, &number.to_ne_bytes())
    }

    /// Writes a handle or a descriptor to an output attribute.
    pub(crate) fn put_handle(&self, id: u16, handle: u32) -> Result<(), Errno> {
        let (at, _) = self.find(id).ok_or(Errno::INVALID)?;
        self.give_back(
            at,
            std::mem::offset_of!(Attribute, data),
            &u64::from(handle).to_ne_bytes(),
        )?;
        self.mark(at)
    }

    fn mark(&self, at: usize) -> Result<(), Errno> {
        let flags = self.list.get(at).map_or(0, |attribute| attribute.flags) | VALID_OUTPUT;
        self.give_back(at, std::mem::offset_of!(Attribute, flags), &flags.to_ne_bytes())
    }

    /// Writes a field of attribute `at` in the program's list.
    fn give_back(&self, at: usize, offset: usize, bytes: &[u8]) -> Result<(), Errno> {
        let address = self.origin.wrapping_add((at * size_of::<Attribute>() + offset) as u64);
        // SAFETY: by the contract of `read`, the address is valid or refused by the kernel.
        unsafe { user_memory::write(address, bytes) }
    }
}

const _: () = assert!(size_of::<Header>() == 24 && size_of::<Attribute>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    struct Call {
        words: Vec<u64>,
    }

    impl Call {
        fn new(object: u16, method: u16, list: &[(u16, u16, u64)]) -> Self {
            let length = (24 + 16 * list.len()) as u64;
            let first = length
                | u64::from(object) << 16
                | u64::from(method) << 32
                | (list.len() as u64) << 48;
            let mut words = vec![first, 0, 1];
            for &(id, length, data) in list {
                words.extend([u64::from(id) | u64::from(length) << 16 | 1 << 32, data]);
            }
            Self { words }
        }

        fn read(&mut self) -> Result<Attributes, Errno> {
            // SAFETY: the words are what they say, unless a test cuts the count, which is checked
            // before use.
            unsafe { Attributes::read(self.words.as_mut_ptr() as u64) }
        }
    }

    #[test]
    fn the_request_is_the_headers_own() {
        assert_eq!(RDMA_VERBS_IOCTL, 0xc018_1b01);
    }

    #[test]
    fn numbers_handles_and_bytes() {
        let bytes = [7_u8; 12];
        let mut room = [0xff_u8; 12];
        let list = [
            (0, 8, 0x1234),
            (1, 2, 0xffff_0005),
            (2, 0, 9),
            (3, 12, bytes.as_ptr() as u64),
            (4, 12, room.as_mut_ptr() as u64),
            (5, 0, u64::from(u32::MAX)),
        ];
        let mut call = Call::new(3, 1, &list);
        let attributes = call.read().unwrap();
        assert_eq!((attributes.object, attributes.method), (3, 1));
        assert_eq!((attributes.number(0), attributes.number(1)), (Ok(0x1234), Ok(5)));
        assert_eq!((attributes.handle(2), attributes.handle(0)), (Ok(9), Err(Errno::INVALID)));
        assert_eq!(attributes.bytes(3), Ok(bytes.to_vec()));
        assert_eq!(
            (attributes.number(3), attributes.number(77)),
            (Err(Errno::INVALID), Err(Errno::INVALID))
        );
        attributes.put(4, &[1, 2]).unwrap();
        attributes.put_handle(2, 0x55).unwrap();
        assert_eq!(attributes.only(&[0, 1, 2, 3]), Err(Errno::UNKNOWN));
        assert_eq!(attributes.only(&[0, 1, 2, 3, 4, 5]), Ok(()));
        assert_eq!(room, [1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((call.words[3 + 4], call.words[3 + 5]), (2 | 3 << 32, 0x55));
    }

    #[test]
    fn a_bad_header_is_refused() {
        for (word, value) in [(0, 25), (1, 1), (2, 2), (2, 1 | 1 << 32)] {
            let mut call = Call::new(0, 0, &[]);
            call.words[word] = call.words[word] & !0xff | value;
            assert_eq!(call.read().unwrap_err(), Errno::INVALID, "{word} {value}");
        }
        let mut twice = Call::new(0, 0, &[(1, 0, 0), (1, 0, 0)]);
        assert_eq!(twice.read().unwrap_err(), Errno::INVALID);
        // SAFETY: the kernel refuses the address.
        assert_eq!(unsafe { Attributes::read(0) }.unwrap_err(), Errno::FAULT);
    }
}
