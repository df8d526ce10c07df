//! The control connection of the program `barewire`, for the program, its tests and its fuzz
//! targets. It is not an interface for other programs.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod channel;
pub mod keyed;
