//! Scatter to CQE: small results are written to the completion instead of the WQE's buffers.

use barewire_layouts::cqe::CqeFormat;

/// The maximum bytes scattered to the completion, 0 for none (mlx5_ifc.h: `MLX5_QPC_CS_REQ_*`,
/// `MLX5_QPC_CS_RES_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scatter {
    /// Results of signalled reads and atomics.
    pub(crate) requester: usize,
    /// Received messages.
    pub(crate) responder: usize,
}

impl Scatter {
    /// Decodes the modes of a queue pair's context; `None` for unknown ones.
    pub(crate) fn new(requester: u8, responder: u8) -> Option<Self> {
        let requester = match requester {
            0x00 => 0,
            0x11 => Inline::SMALL,
            0x22 => Inline::LARGE,
            _ => return None,
        };
        let responder = match responder {
            0 => 0,
            1 => Inline::SMALL,
            2 => Inline::LARGE,
            _ => return None,
        };
        Some(Self { requester, responder })
    }

    /// Returns the modes, without that of received messages if the device ignores it.
    pub(crate) fn restricted(self, ignores_responder: bool) -> Self {
        Self { responder: if ignores_responder { 0 } else { self.responder }, ..self }
    }

    /// Returns the modes in the format of the context.
    pub(crate) fn modes(self) -> (u8, u8) {
        let mode = |bytes: usize| match bytes {
            0 => 0,
            Inline::SMALL => 1,
            _ => 2,
        };
        (mode(self.requester) * 0x11, mode(self.responder))
    }
}

/// Data for a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inline {
    bytes: [u8; Self::LARGE],
    length: usize,
    /// The data is in the first half of a 128-byte entry, even if it fits into the second.
    wide: bool,
}

impl Inline {
    /// Capacity of the completion itself.
    pub(crate) const SMALL: usize = 32;
    /// Capacity of the first half of a 128-byte entry.
    pub(crate) const LARGE: usize = 64;

    /// Creates the data from `bytes`, if there are any and at most `most`, which is at most
    /// [`Inline::LARGE`].
    pub(crate) fn new(bytes: &[u8], most: usize) -> Option<Self> {
        let mut inline = Self { bytes: [0; Self::LARGE], length: bytes.len(), wide: false };
        if bytes.is_empty() || bytes.len() > most {
            return None;
        }
        inline.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(inline)
    }

    /// Returns the data, to be put into the first half of a 128-byte entry.
    pub(crate) fn widened(self) -> Self {
        Self { wide: true, ..self }
    }

    /// Returns the data.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns where the data is in the entry.
    pub(crate) fn format(&self) -> CqeFormat {
        if self.length <= Self::SMALL && !self.wide {
            CqeFormat::Inline32
        } else {
            CqeFormat::Inline64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_the_headers_own() {
        for (modes, bytes) in [((0, 0), (0, 0)), ((0x11, 1), (32, 32)), ((0x22, 2), (64, 64))] {
            let scatter = Scatter::new(modes.0, modes.1).unwrap();
            assert_eq!((scatter.requester, scatter.responder), bytes);
            assert_eq!(scatter.modes(), modes);
        }
        assert_eq!((Scatter::new(0x12, 0), Scatter::new(0, 3)), (None, None));
    }

    #[test]
    fn data_lies_where_it_fits() {
        assert!(Inline::new(&[], 32).is_none() && Inline::new(&[1; 33], 32).is_none());
        assert!(Inline::new(&[1; 65], 100).is_none());
        assert_eq!(Inline::new(&[1; 32], 64).unwrap().format(), CqeFormat::Inline32);
        let large = Inline::new(&[2; 33], 64).unwrap();
        assert_eq!((large.format(), large.bytes()), (CqeFormat::Inline64, &[2; 33][..]));
    }
}
