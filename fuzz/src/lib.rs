//! Fuzz targets are tests: see `tests/targets/`, and CONTRIBUTING.md for how to run them longer.
