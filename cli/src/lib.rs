//! The control connection of the program `barewire`, for the program, its tests and its fuzz targets.
//! It is no interface for other programs.

pub mod channel;
pub mod keyed;
