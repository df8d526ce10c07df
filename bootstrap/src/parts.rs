//! Lists of byte strings: each as its length, a little-endian `u32`, and its bytes.

/// Appends a byte string.
pub(crate) fn push(list: &mut Vec<u8>, part: &[u8]) {
    // Values are limited to `MAX_VALUE`, and a table to what memory holds of them.
    list.extend_from_slice(&(part.len() as u32).to_le_bytes());
    list.extend_from_slice(part);
}

pub(crate) fn push_number(list: &mut Vec<u8>, number: u32) {
    push(list, &number.to_le_bytes());
}

/// Reads a list from its front.
#[derive(Debug)]
pub(crate) struct Parts<'a>(pub(crate) &'a [u8]);

impl<'a> Parts<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte string; `None` if the list is cut short.
    pub(crate) fn part(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk()?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.0 = rest;
        Some(part)
    }

    pub(crate) fn number(&mut self) -> Option<u32> {
        self.part()?.try_into().ok().map(u32::from_le_bytes)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.part()?.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_list_comes_back(parts: Vec<Vec<u8>>) {
            let mut list = Vec::new();
            for part in &parts {
                push(&mut list, part);
            }
            let mut read = Parts(&list);
            for part in &parts {
                prop_assert_eq!(read.part(), Some(&part[..]));
            }
            prop_assert!(read.is_empty() && read.part().is_none());
            if !list.is_empty() {
                let cut = &list[..list.len() - 1];
                let mut read = Parts(cut);
                let mut found = 0;
                while read.part().is_some() {
                    found += 1;
                }
                prop_assert!(found < parts.len());
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let mut read = Parts(&bytes);
            while read.part().is_some() {}
        }
    }
}
