//! The fuzz targets are tests: see `tests/targets/`, and CONTRIBUTING.md for longer runs.
