//! Generates the bindings of libmlx5 from rdma-core 44's header, and compares them with the file that
//! is checked in. With `--write`, it writes the file.
//!
//! This package is not a member of the workspace, whose builds would otherwise compile bindgen.

use std::fs;
use std::process::{Command, ExitCode};

/// The pkg-config version of libibverbs in rdma-core 44, the oldest supported release.
const LIBIBVERBS: &str = "1.14.44.0";
const BINDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/bindings.rs");

/// The functions that `barewire-verbs` calls.
const FUNCTIONS: &str = "mlx5dv_(is_supported|open_device|init_obj|create_cq|create_qp\
    |devx_(general_cmd|obj_(create|query|modify|destroy)|umem_(reg|dereg)|alloc_uar|free_uar|query_eqn|qp_query\
    |create_event_channel|destroy_event_channel|subscribe_devx_event|get_event))";

/// What `tests/layouts.rs` compares with `barewire-layouts`, and the enumerations of the functions'
/// flags.
const TYPES: &str = "mlx5_(wqe_(ctrl|raddr|data|inl_data|atomic|datagram|umr_ctrl|mkey_context|srq_next)_seg\
    |wqe_av|wqe_umr_repeat_(block|ent)_seg|cqe64|err_cqe|ib_uapi_uar_alloc_type|wqe_ctrl_seg_offset)\
    |mlx5dv_(context_attr_flags|cq_init_attr_mask|qp_(init_attr_mask|create_flags|comp_mask)\
    |srq_comp_mask|obj_type)";

/// One enumerator of each anonymous enumeration that is used; bindgen generates the others with it.
const CONSTANTS: &str = "MLX5_(RCV_DBR|OPCODE_NOP|INLINE_SCATTER_32|CQE_SYNDROME_LOCAL_LENGTH_ERR\
    |CQE_OWNER_MASK|CQE_REQ|CQ_DOORBELL|CQ_DB_REQ_NOT|INVALID_LKEY|EXTENDED_UD_AV|WQE_CTRL_FENCE\
    |SEND_WQE_BB|INLINE_SEG|WQE_UMR_CTRL_FLAG_INLINE|WQE_UMR_CTRL_MKEY_MASK_LEN)";

/// The types that rdma-sys has, and the C library's types that they contain.
const OTHERS: &str =
    "_*(ibv|verbs)_([a-su-z]|t[a-l]).*|_*(compat|pthread|atomic)_.*|timespec|sockaddr.*";

/// The header, and the field offsets of `mlx5_wqe_ctrl_seg`. Rust cannot express a 16-bit field at
/// offset 9 of a structure of alignment 4, so the structure is opaque.
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

fn main() -> ExitCode {
    let write = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--write") => true,
        Some(other) => {
            eprintln!("unknown argument '{other}'; --write writes {BINDINGS}");
            return ExitCode::from(2);
        }
    };
    let installed = version();
    if installed != LIBIBVERBS {
        println!("left out: libibverbs {installed} is installed, the bindings are for {LIBIBVERBS}");
        return ExitCode::SUCCESS;
    }
    let generated = bindings();
    if write {
        fs::write(BINDINGS, generated).expect("the source folder is writable");
        return ExitCode::SUCCESS;
    }
    let checked_in = fs::read_to_string(BINDINGS).expect("the bindings are checked in");
    if checked_in == generated {
        println!("{BINDINGS} is what bindgen generates");
        return ExitCode::SUCCESS;
    }
    let mut lines = checked_in.lines().zip(generated.lines());
    let different = lines.position(|(one, other)| one != other);
    let line = different.map_or("the end of one of them".to_owned(), |at| format!("line {}", at + 1));
    eprintln!("{BINDINGS} is not what bindgen generates; they differ at {line}");
    ExitCode::FAILURE
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
        .rust_target(bindgen::RustTarget::stable(85, 0).expect("a version that bindgen supports"))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .generate()
        .expect("the header and libclang are installed")
        .to_string()
}

fn version() -> String {
    let output = Command::new("pkg-config")
        .args(["--modversion", "libibverbs"])
        .output()
        .expect("pkg-config");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
