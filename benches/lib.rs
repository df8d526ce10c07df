//! Counts of instructions and times of barewire: see RESULTS.md. This library is empty; each folder
//! is a bench.
