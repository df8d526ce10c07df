//! Strings of C.

use std::ffi::{CStr, c_char};

/// Returns a string of the caller; `None` for a null pointer or bytes that are not UTF-8.
///
/// # Safety
/// `text` is null, or points to a string that ends with a zero and lives for `'a`.
pub(crate) unsafe fn read<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: contract of this function.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Returns the text in a field of fixed size, cut if it is too long, and filled up with zeros.
pub(crate) fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (place, byte) in field.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *place = byte as c_char;
    }
    field
}

/// Returns whether a text fits into a field of `N` bytes with the zero at its end.
pub(crate) fn fits<const N: usize>(text: &str) -> bool {
    text.len() < N
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_end_with_a_zero() {
        let field: [c_char; 4] = field("abcdef");
        assert_eq!(field.map(|byte| byte as u8), *b"abc\0");
        assert!(fits::<4>("abc") && !fits::<4>("abcd"));
        // SAFETY: the field ends with a zero.
        assert_eq!(unsafe { read(field.as_ptr()) }, Some("abc"));
        // SAFETY: a null pointer is allowed.
        assert_eq!(unsafe { read(std::ptr::null()) }, None);
    }
}
