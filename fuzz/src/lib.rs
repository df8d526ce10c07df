//! The fuzz targets are tests: see `tests/targets/`, and CONTRIBUTING.md for longer runs. Those of
//! the connection manager are in `hca/uverbs/src/rdma_cm/fuzz.rs`, because other crates cannot call
//! it.
