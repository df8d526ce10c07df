//! The integration tests of this crate, in one program.

mod arguments;
#[allow(dead_code, reason = "the tests of wireup use the rest")]
#[path = "../../../wireup/tests/hosts/bench.rs"]
mod bench;
mod config;
mod demo;
mod doctor;
mod hca;
mod hca_explain;
mod hca_files;
mod hca_link;
mod hca_run;
mod hca_sanitizers;
mod hello;
mod hosts;
mod install;
mod kill;
mod launch;
mod launchers;
#[allow(dead_code, reason = "the tests of bootstrap use the rest")]
#[path = "../../../bootstrap/tests/it/support/mod.rs"]
mod launching;
#[cfg(feature = "verbs")]
mod mlx5_0;
mod perf;
mod perftest;
mod plan;
#[path = "../../../tests/support/port.rs"]
mod port;
mod ranks;
mod rdma_cm;
mod rdma_cm_own;
mod sockets;
mod strangers;
mod support;
mod terminal;
mod uct;
mod uct_client_server;
mod uct_newer;
mod uct_promises;
mod uct_run;
mod uct_versions;
mod verbs;
