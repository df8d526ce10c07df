//! What published adapters report, beside the model's own limits. What a listing does not contain,
//! the adapter does not have here: a driver must do without it.

use std::fmt;
use std::str::FromStr;

use barewire_layouts::command::capability::HcaCap;
use barewire_layouts::prm::ViewMut;

use crate::limits;

/// An adapter whose limits and capabilities the device has. The default has all that the model can
/// do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adapter {
    /// All that the model can do.
    #[default]
    Model,
    /// ConnectX-5, Ethernet, firmware 16.31.1014 (`ibv_devinfo -v`, published in a blog).
    Cx5,
    /// ConnectX-6, InfiniBand, firmware 20.37.1700 (`ibv_devinfo -vv`, openucx/ucx#9908).
    Cx6,
    /// ConnectX-6 Dx, Ethernet (QUERY_HCA_CAP, saeedtx/mlx5ctl).
    Cx6Dx,
    /// ConnectX-7, firmware 28.41.1000. The listings of these are short: what they leave out is as
    /// of [`Self::Cx6Dx`].
    Cx7,
    /// A virtual function of a ConnectX-6 in a cloud, firmware 20.31.1014 (`ibv_devinfo`, and
    /// `ucx_info -d`, by which it has no memory on the device).
    Vf,
}

/// Values that commands check, and QUERY_HCA_CAP returns.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// `vendor_part_id`.
    pub part: u32,
    /// The version of the firmware.
    pub firmware: [u16; 3],
    /// log2 of one more than the entries of a list of tags; 0 without tag matching.
    pub(crate) log_tags: u8,
    /// log2 of the streams of an initiator of DC.
    pub(crate) log_streams: u8,
    /// It has memory for programs.
    pub(crate) device_memory: bool,
    /// The enhanced layout of compressed completions.
    pub(crate) enhanced_compression: bool,
    /// Enhancements of connections.
    pub(crate) ece: bool,
    /// Page faults name memory.
    pub(crate) memory_faults: bool,
}

impl Adapter {
    /// All, without the model's own limits.
    pub const PUBLISHED: [Self; 5] = [Self::Cx5, Self::Cx6, Self::Cx6Dx, Self::Cx7, Self::Vf];

    /// Returns its values.
    pub const fn facts(self) -> Facts {
        let model = Facts {
            part: 0x1021,
            firmware: [28, 43, 1000],
            log_tags: limits::LOG_TAGS,
            log_streams: limits::LOG_STREAMS,
            device_memory: true,
            enhanced_compression: true,
            ece: true,
            memory_faults: true,
        };
        // Their other limits are those of the model, or larger than what it can do (`max_qp` 2^18
        // and 2^17, `log_max_mrw_sz` 64). Streams of DC are in none of the listings.
        let dx = Facts {
            part: 4125,
            firmware: [22, 36, 1010],
            log_tags: 0,
            log_streams: 0,
            enhanced_compression: false,
            memory_faults: false,
            ..model
        };
        match self {
            Self::Model => model,
            Self::Cx5 => Facts { part: 4119, firmware: [16, 31, 1014], ece: false, ..dx },
            Self::Cx6 => Facts { part: 4123, firmware: [20, 37, 1700], log_tags: 7, ..dx },
            Self::Cx6Dx => dx,
            Self::Cx7 => {
                Facts { part: 4129, firmware: [28, 41, 1000], enhanced_compression: true, ..dx }
            }
            Self::Vf => Facts { part: 4124, firmware: [20, 31, 1014], device_memory: false, ..dx },
        }
    }

    /// Sets the capabilities in which it differs from the model.
    pub(crate) fn report(self, page: &mut ViewMut<'_, HcaCap>) {
        let facts = self.facts();
        page.set(HcaCap::LOG_MAX_DCI_STREAM_CHANNELS, facts.log_streams)
            .set(HcaCap::LOG_MAX_DCI_ERRORED_STREAMS, facts.log_streams)
            .set(HcaCap::DEVICE_MEMORY, facts.device_memory)
            .set(HcaCap::ENHANCED_CQE_COMPRESSION, facts.enhanced_compression);
    }
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Cx5 => "cx5",
            Self::Cx6 => "cx6",
            Self::Cx6Dx => "cx6dx",
            Self::Cx7 => "cx7",
            Self::Vf => "vf",
        })
    }
}

impl FromStr for Adapter {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let all = Self::PUBLISHED.into_iter().chain([Self::Model]);
        all.into_iter().find(|adapter| adapter.to_string() == text).ok_or(())
    }
}
