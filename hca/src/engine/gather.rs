//! The local side of a WQE: scatter/gather elements and inline data.

use std::convert::Infallible;

use crate::memory::{AbsentPages, Access, Memory, Part, Span, TranslationError, User};

/// One range of local bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    /// Registered memory.
    Memory { address: u64, length: u32, lkey: u32 },
    /// Bytes `start..start + length` of the WQE's inline data.
    Inline { start: u32, length: u32 },
}

impl Element {
    fn length(self) -> u32 {
        match self {
            Self::Memory { length, .. } | Self::Inline { length, .. } => length,
        }
    }
}

/// Accepts an access to absent pages, which are brought in when it is executed.
pub(super) fn allow_absent(
    access: Result<Span<'_>, TranslationError>,
) -> Result<(), TranslationError> {
    access.map(drop).or_else(|error| match error {
        TranslationError::Absent { .. } => Ok(()),
        _ => Err(error),
    })
}

/// The local bytes of one WQE, in order. Clearing it keeps its allocations.
#[derive(Debug, Default)]
pub(super) struct Gather {
    elements: Vec<Element>,
    inline: Vec<u8>,
    length: u64,
}

impl Gather {
    /// Bytes in all.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn clear(&mut self) {
        self.elements.clear();
        self.inline.clear();
        self.length = 0;
    }

    /// Ends after `length` bytes, if there are more.
    pub(super) fn cut(&mut self, length: u64) {
        let mut left = length;
        self.elements.retain_mut(|element| {
            let (Element::Memory { length, .. } | Element::Inline { length, .. }) = element;
            // At most the element's length.
            *length = u64::from(*length).min(left) as u32;
            left -= u64::from(*length);
            *length > 0
        });
        self.length = length - left;
    }

    /// Appends registered memory.
    pub(super) fn push(&mut self, address: u64, length: u32, lkey: u32) {
        self.elements.push(Element::Memory { address, length, lkey });
        self.length += u64::from(length);
    }

    /// Appends bytes from the WQE itself.
    pub(super) fn push_inline(&mut self, bytes: &[u8]) {
        let (start, length) = (self.inline.len() as u32, bytes.len() as u32);
        self.inline.extend_from_slice(bytes);
        self.elements.push(Element::Inline { start, length });
        self.length += u64::from(length);
    }

    /// Returns the absent pages of the elements from byte `offset` on.
    pub(super) fn absent(
        &self,
        memory: &mut Memory,
        user: User,
        offset: u64,
        need: Access,
    ) -> Vec<AbsentPages> {
        let mut ranges = Vec::new();
        let Ok(()) = self.walk(offset, self.length.saturating_sub(offset), |element| {
            if let Element::Memory { address, length, lkey } = element {
                ranges.push(Part { key: lkey, address, length: length.into() });
            }
            Ok::<_, Infallible>(())
        });
        memory.absent(user, &ranges, need)
    }

    /// Checks that `user` may use the key of every element for `need`.
    pub(super) fn admit(
        &self,
        memory: &Memory,
        user: User,
        need: Access,
    ) -> Result<(), TranslationError> {
        self.elements.iter().try_for_each(|element| match *element {
            Element::Memory { lkey, .. } => memory.admit(lkey, user, need),
            Element::Inline { .. } => Ok(()),
        })
    }

    /// Checks that `user` may use every element for `need`. Pages may be absent.
    pub(super) fn check(
        &self,
        memory: &Memory,
        user: User,
        need: Access,
    ) -> Result<(), TranslationError> {
        for element in &self.elements {
            if let Element::Memory { address, length, lkey } = *element {
                allow_absent(memory.translate(lkey, user, address, u64::from(length), need))?;
            }
        }
        Ok(())
    }

    /// Calls `each` with the parts of the elements that make up bytes `offset..offset + length`.
    fn walk<E>(
        &self,
        mut offset: u64,
        mut length: u64,
        mut each: impl FnMut(Element) -> Result<(), E>,
    ) -> Result<(), E> {
        for element in &self.elements {
            let whole = u64::from(element.length());
            if offset >= whole {
                offset -= whole;
                continue;
            }
            // Both fit 32 bits: they are bounded by the element's length.
            let part = length.min(whole - offset) as u32;
            let skip = offset as u32;
            if part == 0 {
                break;
            }
            each(match *element {
                Element::Memory { address, lkey, .. } => {
                    Element::Memory { address: address.wrapping_add(offset), length: part, lkey }
                }
                Element::Inline { start, .. } => {
                    Element::Inline { start: start + skip, length: part }
                }
            })?;
            offset = 0;
            length -= u64::from(part);
        }
        Ok(())
    }

    /// Copies bytes from `offset` on into `out`, which must not extend beyond the last element.
    pub(super) fn copy_to(
        &self,
        memory: &Memory,
        user: User,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), TranslationError> {
        let mut done = 0;
        self.walk(offset, out.len() as u64, |element| {
            let part = &mut out[done..done + element.length() as usize];
            done += part.len();
            match element {
                Element::Memory { address, length, lkey } => {
                    memory
                        .translate(lkey, user, address, u64::from(length), Access::LOCAL_READ)?
                        .copy_to(part);
                }
                Element::Inline { start, length } => {
                    part.copy_from_slice(&self.inline[start as usize..(start + length) as usize]);
                }
            }
            Ok(())
        })
    }

    /// Copies `bytes` into the elements from `offset` on; they must fit.
    pub(super) fn copy_from(
        &self,
        memory: &Memory,
        user: User,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), TranslationError> {
        let mut done = 0;
        self.walk(offset, bytes.len() as u64, |element| {
            let part = &bytes[done..done + element.length() as usize];
            done += part.len();
            // Inline data is for sending only; the fetch refuses it in elements that are written
            // to.
            if let Element::Memory { address, length, lkey } = element {
                memory
                    .translate(lkey, user, address, u64::from(length), Access::LOCAL_WRITE)?
                    .copy_from(part);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts that a walk visits.
    fn parts(gather: &Gather, offset: u64, length: u64) -> Vec<Element> {
        let mut parts = Vec::new();
        let walked = gather.walk(offset, length, |element| {
            parts.push(element);
            Ok::<_, ()>(())
        });
        assert_eq!(walked, Ok(()));
        parts
    }

    #[test]
    fn a_walk_visits_just_the_bytes_asked_for() {
        let mut gather = Gather::default();
        gather.push(100, 10, 1);
        gather.push(0, 0, 2);
        gather.push_inline(b"abcde");
        gather.push(200, 10, 3);
        assert_eq!(gather.length(), 25);
        let want = [
            Element::Memory { address: 108, length: 2, lkey: 1 },
            Element::Inline { start: 0, length: 5 },
            Element::Memory { address: 200, length: 2, lkey: 3 },
        ];
        assert_eq!(parts(&gather, 8, 9), want);
        assert_eq!(parts(&gather, 12, 2), [Element::Inline { start: 2, length: 2 }]);
        assert_eq!(parts(&gather, 25, 0), []);
    }
}
