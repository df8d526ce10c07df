//! What `main` returns.

use std::error::Error;
use std::fmt;

/// An error that a program ends with, of any type. `main` prints what it returns as
/// [`Debug`](fmt::Debug), and this prints the error's text and that of its sources.
///
/// ```
/// use barewire::Domain;
///
/// fn main() -> Result<(), barewire::Report> {
///     let domain = Domain::open(&"tcp/lo".parse()?)?;
///     println!("opened {domain:?}");
///     Ok(())
/// }
/// ```
///
/// It is no [`Error`] itself, so that `?` makes it of every error.
pub struct Report(Box<dyn Error>);

impl<E: Error + 'static> From<E> for Report {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl Report {
    /// An error that is only a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into().into())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        f.write_str(&text)?;
        let mut next = self.0.source();
        while let Some(source) = next {
            // Many errors have the text of their source in their own.
            let cause = source.to_string();
            if !text.contains(&cause) {
                write!(f, ": {cause}")?;
                text = cause;
            }
            next = source.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceId;
    use thiserror::Error;

    #[derive(Debug, Error)]
    #[error("the disk is full")]
    struct Full;

    #[derive(Debug, Error)]
    #[error("the log cannot be written")]
    struct Log(#[source] Full);

    #[test]
    fn main_prints_the_texts_of_an_error_and_its_sources() {
        let report = Report::from(Log(Full));
        assert_eq!(format!("{report:?}"), "the log cannot be written: the disk is full");
        let wrong = "tcp".parse::<DeviceId>().unwrap_err();
        let text = wrong.to_string();
        assert_eq!(format!("{:?}", Report::from(wrong)), text);
        assert_eq!(format!("{:?}", Report::new("no peer")), "no peer");
    }
}
