//! The integration tests of this crate, in one program.

#[cfg(feature = "soft")]
mod commands;
mod completion;
#[cfg(feature = "soft")]
mod compression;
mod datagrams;
#[cfg(feature = "soft")]
mod device;
#[cfg(feature = "soft")]
mod device_events;
mod doorbells;
#[cfg(feature = "soft")]
mod dynamic;
#[cfg(feature = "soft")]
mod examples;
mod families;
#[cfg(feature = "soft")]
mod file_mappings;
mod golden;
mod key_changes;
mod machine;
mod mistakes;
mod overrun;
mod plain;
mod properties;
mod receive;
#[cfg(feature = "soft")]
mod reconnect;
mod recording;
mod replay;
mod requirements;
#[cfg(feature = "soft")]
mod shared_completions;
#[cfg(feature = "soft")]
mod striding;
mod tags;
mod windows;
mod xrc;
