//! Parsing and formatting of setting values.

use std::time::Duration;

/// A type of setting values.
pub(crate) trait Value: Sized {
    /// The accepted form, with examples.
    const FORM: &str;

    fn text(&self) -> String;

    /// Parses a value. `None` if `text` is not a valid one.
    fn parse(text: &str) -> Option<Self>;
}

/// Whether to use an optional feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Choice {
    /// If it is available and useful.
    #[default]
    Auto,
    /// Always: opening fails if it is not available.
    Yes,
    /// Never.
    No,
}

impl Choice {
    /// The first word of each choice is the one that is written.
    const WORDS: [(Self, &str); 5] = [
        (Self::Auto, "auto"),
        (Self::Yes, "yes"),
        (Self::No, "no"),
        (Self::Yes, "on"),
        (Self::No, "off"),
    ];
}

impl Value for Choice {
    const FORM: &str = "auto, yes or no";

    fn text(&self) -> String {
        Self::WORDS
            .iter()
            .find(|(choice, _)| choice == self)
            .map_or("", |(_, word)| word)
            .to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        Self::WORDS
            .iter()
            .find(|(_, word)| word.eq_ignore_ascii_case(text))
            .map(|(choice, _)| *choice)
    }
}

impl Value for bool {
    const FORM: &str = "yes or no";

    fn text(&self) -> String {
        if *self { Choice::Yes } else { Choice::No }.text()
    }

    fn parse(text: &str) -> Option<Self> {
        match Choice::parse(text)? {
            Choice::Yes => Some(true),
            Choice::No => Some(false),
            Choice::Auto => None,
        }
    }
}

/// How endpoints take initiators: see [`InterfaceConfig::dci_policy`](super::InterfaceConfig).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DciPolicy {
    /// The one used last.
    Lifo,
    /// The one that is idle for longest.
    Lru,
    /// The one used last, for a number of operations while others wait.
    #[default]
    Quota,
    /// Always the same one.
    Hash,
}

impl DciPolicy {
    const WORDS: [(Self, &str); 4] =
        [(Self::Lifo, "lifo"), (Self::Lru, "lru"), (Self::Quota, "quota"), (Self::Hash, "hash")];
}

impl Value for DciPolicy {
    const FORM: &str = "lifo, lru, quota or hash";

    fn text(&self) -> String {
        let word = Self::WORDS.iter().find(|(policy, _)| policy == self);
        word.map_or("", |(_, word)| word).to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let word = Self::WORDS.iter().find(|(_, word)| word.eq_ignore_ascii_case(text));
        word.map(|(policy, _)| *policy)
    }
}

/// Parses a whole number, with K, M or G for powers of 1024.
fn number(text: &str) -> Option<u64> {
    let unit = |(unit, shift)| Some((text.strip_suffix(unit)?, shift));
    let (digits, shift) = [('K', 10), ('k', 10), ('M', 20), ('m', 20), ('G', 30)]
        .into_iter()
        .find_map(unit)
        .unwrap_or((text, 0));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

macro_rules! whole {
    ($($type:ty),+) => {
        $(impl Value for $type {
            const FORM: &str = "a whole number, such as 64 or 4K";

            fn text(&self) -> String {
                self.to_string()
            }

            fn parse(text: &str) -> Option<Self> {
                number(text)?.try_into().ok()
            }
        })+
    };
}

whole!(u8, u32);

/// A number, decimal or hexadecimal, or `auto` for none.
macro_rules! optional {
    ($($type:ty),+) => {
        $(impl Value for Option<$type> {
            const FORM: &str = "auto, or a number such as 3 or 0x8001";

            fn text(&self) -> String {
                self.map_or_else(|| "auto".to_owned(), |value| value.to_string())
            }

            fn parse(text: &str) -> Option<Self> {
                if text.eq_ignore_ascii_case("auto") {
                    return Some(None);
                }
                let value = match text.strip_prefix("0x") {
                    Some(digits) => <$type>::from_str_radix(digits, 16),
                    None => text.parse(),
                };
                value.ok().map(Some)
            }
        })+
    };
}

optional!(u8, u16);

const UNITS: [(&str, f64); 5] =
    [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("min", 60.0), ("s", 1.0)];

impl Value for Duration {
    const FORM: &str = "a time with its unit, such as 500us, 20ms, 10s or 2min";

    fn text(&self) -> String {
        // For example 1.5s or 20ms.
        format!("{self:?}")
    }

    fn parse(text: &str) -> Option<Self> {
        let (digits, unit) =
            UNITS.iter().find_map(|&(unit, size)| Some((text.strip_suffix(unit)?, size)))?;
        Duration::try_from_secs_f64(digits.trim_end().parse::<f64>().ok()? * unit).ok()
    }
}

/// A time, or `off` for none.
impl Value for Option<Duration> {
    const FORM: &str = "off, or a time with its unit, such as 500ms, 10s or 2min";

    fn text(&self) -> String {
        self.map_or_else(|| "off".to_owned(), |time| time.text())
    }

    fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("off") { Some(None) } else { Duration::parse(text).map(Some) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn optional_numbers_may_be_hexadecimal() {
        let cases = [("auto", Some(None)), ("0x8001", Some(Some(0x8001))), ("3", Some(Some(3)))];
        for (text, value) in cases.into_iter().chain([("0x10000", None), ("", None), ("x", None)]) {
            assert_eq!(Option::<u16>::parse(text), value, "{text}");
        }
        assert_eq!((Some(3_u8).text(), None::<u8>.text()), ("3".to_owned(), "auto".to_owned()));
    }

    #[test]
    fn numbers_have_units() {
        let cases =
            [("64", Some(64)), ("4K", Some(4096)), ("2k", Some(2048)), ("1m", Some(1 << 20))];
        for (text, value) in cases.into_iter().chain([
            ("", None),
            ("K", None),
            ("4G", None),
            ("-1", None),
            ("1x", None),
        ]) {
            assert_eq!(u32::parse(text), value, "{text}");
        }
        assert_eq!(u8::parse("256"), None);
    }

    #[test]
    fn times_have_units() {
        let cases = [
            ("10s", Some(10_000)),
            ("20 ms", Some(20)),
            ("1.5s", Some(1500)),
            ("2min", Some(120_000)),
        ];
        for (text, value) in cases.into_iter().chain([
            ("10", None),
            ("s", None),
            ("-1s", None),
            ("nans", None),
            ("1e400s", None),
        ]) {
            assert_eq!(Duration::parse(text), value.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn choices_are_words() {
        for choice in [Choice::Auto, Choice::Yes, Choice::No] {
            assert_eq!(Choice::parse(&choice.text()), Some(choice));
        }
        assert_eq!((Choice::parse("YES"), Choice::parse("1")), (Some(Choice::Yes), None));
    }

    #[test]
    fn times_may_be_off() {
        let cases = [("off", Some(None)), ("2s", Some(Some(Duration::from_secs(2)))), ("2", None)];
        for (text, value) in cases {
            assert_eq!(Option::<Duration>::parse(text), value, "{text}");
        }
        assert_eq!(None::<Duration>.text(), "off");
    }

    proptest! {
        #[test]
        fn texts_are_read_back(number: u32, milliseconds: u32) {
            prop_assert_eq!(u32::parse(&number.text()), Some(number));
            let time = Duration::from_millis(milliseconds.into());
            prop_assert_eq!(Duration::parse(&time.text()), Some(time));
        }

        #[test]
        fn any_text_is_a_value_or_none(text in ".{0,12}") {
            let _ = (u32::parse(&text), u8::parse(&text), Duration::parse(&text));
        }
    }
}
