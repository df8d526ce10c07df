//! How to use this library, topic by topic. The examples are tests.

#[doc = include_str!("../docs/guide/transports.md")]
pub mod transports {}

#[doc = include_str!("../docs/guide/memory.md")]
pub mod memory {}

#[doc = include_str!("../docs/guide/completions.md")]
pub mod completions {}

#[doc = include_str!("../docs/guide/threads.md")]
pub mod threads {}

#[doc = include_str!("../docs/guide/errors.md")]
pub mod errors {}

#[doc = include_str!("../docs/guide/tuning.md")]
pub mod tuning {}

#[doc = include_str!("../docs/guide/counting.md")]
pub mod counting {}

#[cfg(feature = "mlx5")]
#[doc = include_str!("../docs/guide/scale.md")]
pub mod scale {}

#[doc = include_str!("../docs/guide/tags.md")]
pub mod tags {}

#[doc = include_str!("../docs/guide/channels.md")]
pub mod channels {}

#[doc = include_str!("../docs/guide/security.md")]
pub mod security {}

#[doc = include_str!("../docs/guide/hardware.md")]
pub mod hardware {}
