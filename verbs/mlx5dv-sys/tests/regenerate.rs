//! The bindings that are checked in are those that bindgen makes of rdma-core 44's header.
//!
//! `BLESS=1 cargo test -p barewire-mlx5dv-sys --features regenerate --test regenerate` writes them anew.

use std::fs;
use std::process::Command;

/// libibverbs of rdma-core 44, the oldest that is supported, by the version that pkg-config knows.
const LIBIBVERBS: &str = "1.14.44.0";
const BINDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bindings.rs");

/// What `barewire-verbs` calls. Inline functions of the header are none of the library's symbols.
const FUNCTIONS: &str = "mlx5dv_(is_supported|open_device|query_device|init_obj|create_cq|create_qp\
    |set_context_attr|get_clock_info|create_mkey|destroy_mkey|reserved_qpn_alloc|reserved_qpn_dealloc\
    |devx_(general_cmd|obj_(create|query|modify|destroy)|umem_(reg|reg_ex|dereg)|alloc_uar|free_uar|query_eqn\
    |create_event_channel|destroy_event_channel|subscribe_devx_event|subscribe_devx_event_fd|get_event))";

/// What the device reads and writes, for comparison with `barewire-layouts`; and the flags of the functions.
const TYPES: &str = "mlx5_(wqe_(ctrl|raddr|data|inl_data|atomic|datagram|umr_ctrl|mkey_context|srq_next)_seg|wqe_av\
    |wqe_umr_(klm|repeat_block|repeat_ent)_seg|cqe64|err_cqe|ib_uapi_uar_alloc_type|wqe_ctrl_seg_offset)\
    |mlx5dv_((context|cq|qp|mkey_init|devx|obj|srq|dc)_([a-z_]*_)?(mask|flags)|obj_type|dc_type|set_ctx_attr_type)";

/// Opcodes, flags and offsets that are enumerators of no named type.
const CONSTANTS: &str = "MLX5_.*";

/// What rdma-sys has, and what of the C library it refers to.
const OTHERS: &str = "_*(ibv|verbs)_([a-su-z]|t[a-l]).*|_*(compat|pthread|atomic)_.*|timespec|sockaddr.*";

/// The header, and where the fields of one structure lie: a 16-bit field at offset 9 of a structure of alignment 4 is what Rust cannot say,
/// so the structure is opaque.
const HEADER: &str = "
#include <infiniband/mlx5dv.h>
enum mlx5_wqe_ctrl_seg_offset {
    CTRL_SEG_OPMOD_IDX_OPCODE = __builtin_offsetof(struct mlx5_wqe_ctrl_seg, opmod_idx_opcode),
    CTRL_SEG_QPN_DS = __builtin_offsetof(struct mlx5_wqe_ctrl_seg, qpn_ds),
    CTRL_SEG_SIGNATURE = __builtin_offsetof(struct mlx5_wqe_ctrl_seg, signature),
    CTRL_SEG_DCI_STREAM_CHANNEL_ID = __builtin_offsetof(struct mlx5_wqe_ctrl_seg, dci_stream_channel_id),
    CTRL_SEG_FM_CE_SE = __builtin_offsetof(struct mlx5_wqe_ctrl_seg, fm_ce_se),
    CTRL_SEG_IMM = __builtin_offsetof(struct mlx5_wqe_ctrl_seg, imm),
};
";

#[test]
fn the_bindings_are_what_bindgen_makes() {
    let made = bindings();
    if std::env::var_os("BLESS").is_some() {
        fs::write(BINDINGS, made).unwrap();
        return;
    }
    let installed = version();
    if installed != LIBIBVERBS {
        println!("skipped: libibverbs {installed} is installed, the bindings are of {LIBIBVERBS}");
        return;
    }
    let there = fs::read_to_string(BINDINGS).unwrap();
    let different = there.lines().zip(made.lines()).position(|(there, made)| there != made);
    assert!(there == made, "{BINDINGS} is not what bindgen makes; first at line {different:?}, from 0");
}

fn bindings() -> String {
    bindgen::Builder::default()
        .header_contents("mlx5dv.h", HEADER)
        .allowlist_function(FUNCTIONS)
        .allowlist_type(TYPES)
        .allowlist_var(CONSTANTS)
        .blocklist_type(OTHERS)
        .opaque_type("mlx5_wqe_ctrl_seg")
        .dynamic_library_name("Functions")
        .dynamic_link_require_all(true)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .derive_default(true)
        .wrap_unsafe_ops(true)
        .rust_target(bindgen::RustTarget::stable(85, 0).expect("a version that bindgen knows"))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .generate()
        .expect("the header is there and libclang reads it")
        .to_string()
}

fn version() -> String {
    let asked = Command::new("pkg-config").args(["--modversion", "libibverbs"]).output().expect("pkg-config");
    String::from_utf8_lossy(&asked.stdout).trim().to_owned()
}
