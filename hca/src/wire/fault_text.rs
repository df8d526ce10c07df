//! Text format of faults, for the environment.

use std::str::FromStr;

use thiserror::Error;

use super::fault::{Faults, LONGEST_US};

/// The text does not describe [`Faults`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FaultsError {
    /// An item without `=`.
    #[error("'{0}' is not of the form name=value")]
    Form(String),
    /// An unknown name.
    #[error("'{0}' is no fault: use {names}", names = Faults::NAMES)]
    Name(String),
    /// The probability is not valid.
    #[error("{name}={value}: a probability is a number from 0 to 1")]
    Probability {
        /// The item's name.
        name: String,
        /// The given text.
        value: String,
    },
    /// The seed or number of completions is not an integer.
    #[error("{name}={value}: it is an integer from 0 to 2^64-1")]
    Number {
        /// The item's name.
        name: String,
        /// The given text.
        value: String,
    },
    /// The time is not an integer, or longer than a minute.
    #[error("{name}={value}: a time is an integer from 0 to 60000000, in microseconds")]
    Time {
        /// The item's name.
        name: String,
        /// The given text.
        value: String,
    },
}

impl Faults {
    /// The names that the text may have.
    pub const NAMES: &str = "drop, duplicate, reorder, corrupt, delay, flap (probabilities), \
        delay_us, flap_us, slow_dma_us (microseconds), cq_overrun_after, fatal_after (completions) \
        or seed";
}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) =
                item.split_once('=').ok_or_else(|| FaultsError::Form(item.to_owned()))?;
            let field = match name {
                "drop" => &mut faults.drop,
                "duplicate" => &mut faults.duplicate,
                "reorder" => &mut faults.reorder,
                "corrupt" => &mut faults.corrupt,
                "delay" => &mut faults.delay,
                "flap" => &mut faults.flap,
                "delay_us" | "flap_us" | "slow_dma_us" => {
                    let time =
                        value.parse().ok().filter(|&time| time <= LONGEST_US).ok_or_else(|| {
                            FaultsError::Time { name: name.to_owned(), value: value.to_owned() }
                        })?;
                    match name {
                        "delay_us" => faults.delay_us = time,
                        "flap_us" => faults.flap_us = time,
                        _ => faults.slow_dma_us = time,
                    }
                    continue;
                }
                "seed" | "cq_overrun_after" | "fatal_after" => {
                    let number = value.parse().map_err(|_| FaultsError::Number {
                        name: name.to_owned(),
                        value: value.to_owned(),
                    })?;
                    match name {
                        "seed" => faults.seed = number,
                        "fatal_after" => faults.fatal_after = number,
                        _ => faults.cq_overrun_after = number,
                    }
                    continue;
                }
                _ => return Err(FaultsError::Name(name.to_owned())),
            };
            *field = value
                .parse()
                .ok()
                .filter(|probability| (0.0..=1.0).contains(probability))
                .ok_or_else(|| FaultsError::Probability {
                    name: name.to_owned(),
                    value: value.to_owned(),
                })?;
        }
        Ok(faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gives_faults() {
        let faults: Faults = "drop=0.01, reorder=1,seed=7".parse().unwrap();
        assert_eq!(faults, Faults::default().drop(0.01).reorder(1.0).seed(7));
        assert!("".parse::<Faults>().unwrap().is_none());
        assert_eq!("drop".parse::<Faults>(), Err(FaultsError::Form("drop".into())));
        assert_eq!("lose=1".parse::<Faults>(), Err(FaultsError::Name("lose".into())));
        for name in ["seed", "cq_overrun_after", "fatal_after"] {
            let error = format!("{name}=-1").parse::<Faults>().unwrap_err();
            assert_eq!(error, FaultsError::Number { name: name.into(), value: "-1".into() });
        }
        let faults: Faults = "cq_overrun_after=3,fatal_after=9".parse().unwrap();
        assert_eq!((faults.cq_overrun_after, faults.fatal_after, faults.is_none()), (3, 9, true));
        for value in ["1.5", "-0.1", "NaN", "x"] {
            let error = format!("drop={value}").parse::<Faults>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("drop={value}: a probability is a number from 0 to 1")
            );
        }
    }

    #[test]
    fn times_are_read_and_limited() {
        let faults: Faults =
            "delay=0.5,delay_us=20,flap=0.1,flap_us=60000000,slow_dma_us=3".parse().unwrap();
        assert_eq!((faults.delay, faults.delay_us, faults.flap_us), (0.5, 20, 60_000_000));
        assert_eq!((faults.flap, faults.slow_dma_us), (0.1, 3));
        for time in ["60000001", "-1", "1ms"] {
            let error = format!("delay_us={time}").parse::<Faults>().unwrap_err();
            assert!(
                error.to_string().starts_with(&format!("delay_us={time}: a time is")),
                "{error}"
            );
        }
    }
}
