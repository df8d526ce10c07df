//! The ports on which listeners without a fixed port listen.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;

use crate::key::variable;

/// Holds a range of ports, as in `47000-47999`, or one port.
pub const PORTS_VARIABLE: &str = "BAREWIRE_TCP_PORTS";

/// Returns the ports of [`PORTS_VARIABLE`], or port 0, for which the kernel chooses.
pub(crate) fn candidates() -> io::Result<impl Iterator<Item = u16>> {
    let range = variable(PORTS_VARIABLE).map(|text| parse(&text)).transpose()?.unwrap_or(0..=0);
    // Processes of a host begin at different ports, so that they seldom try the same.
    let count = u32::from(range.end().saturating_sub(*range.start())).saturating_add(1);
    let skip = std::process::id().wrapping_mul(61).checked_rem(count).unwrap_or(0) as usize;
    Ok(range.clone().skip(skip).chain(range.take(skip)))
}

fn parse(text: &OsStr) -> io::Result<RangeInclusive<u16>> {
    let range = text.to_str().and_then(|text| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let [first, last] = [first, last].map(|port| port.trim().parse::<u16>().ok());
        first.zip(last).filter(|(first, last)| *first > 0 && first <= last)
    });
    let (first, last) = range.ok_or_else(|| {
        let text = text.to_string_lossy();
        let error =
            format!("{PORTS_VARIABLE}='{text}' is not a range of ports, such as 47000-47999");
        io::Error::new(ErrorKind::InvalidInput, error)
    })?;
    Ok(first..=last)
}

/// The error of a listener that found none of the ports free.
pub(crate) fn all_in_use(error: io::Error) -> io::Error {
    let Some(range) = variable(PORTS_VARIABLE) else { return error };
    let range = range.to_string_lossy();
    let text = format!("{error}; all of {PORTS_VARIABLE}={range} are in use: give a longer range");
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_and_mistakes_are_named() {
        assert_eq!(parse(OsStr::new("47000-47999")).unwrap(), 47000..=47999);
        assert_eq!(parse(OsStr::new(" 1 - 65535 ")).unwrap(), 1..=65535);
        assert_eq!(parse(OsStr::new("5")).unwrap(), 5..=5);
        for wrong in ["", "0-9", "9-8", "1-65536", "a-b", "1-2-3", "-"] {
            let error = parse(OsStr::new(wrong)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("BAREWIRE_TCP_PORTS='{wrong}' is")), "{error}");
        }
    }
}
