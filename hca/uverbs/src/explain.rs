//! A line on standard error for each call and connection that is refused: the function, the reason
//! that the code which refused it has, and the error number.

use std::cell::RefCell;
use std::fmt;
use std::io::Write as _;
use std::sync::OnceLock;

use crate::abi::command;
use crate::attributes::Attributes;
use crate::errno::Errno;
use crate::process;

/// Whether refused calls are explained: `yes`.
pub(crate) const EXPLAIN_VARIABLE: &str = "BAREWIRE_HCA_EXPLAIN";

thread_local! {
    /// Why the call that this thread executes is refused.
    static REASON: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Returns whether calls are explained.
pub(crate) fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var(EXPLAIN_VARIABLE).is_ok_and(|text| text == "yes"))
}

impl Errno {
    /// Notes the argument and the reason why the call is refused with this error. The first reason
    /// of a call counts.
    pub(crate) fn because(self, reason: impl fmt::Display) -> Self {
        if is_on() {
            // A thread that ends has no place for it.
            let _ = REASON.try_with(|noted| {
                noted.borrow_mut().get_or_insert_with(|| reason.to_string());
            });
        }
        self
    }
}

/// Prints that a call was refused, and why.
pub(crate) fn tell(refusal: fmt::Arguments<'_>) {
    // A program may have closed standard error, and opened a file of these libraries in its place.
    if is_on() && !process::is_ours(2) {
        let _ = writeln!(std::io::stderr(), "barewire-hca: {refusal}");
    }
}

/// Prints a line, unless standard error is a pipe that has no room: threads that others wait for,
/// such as the one that serves all connections, must not wait for the pipe's reader.
pub(crate) fn tell_now(line: &str) {
    let mut polled = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    // SAFETY: the structure is live.
    if unsafe { libc::poll(&raw mut polled, 1, 0) } == 1 && polled.revents & libc::POLLOUT != 0 {
        tell(format_args!("{line}"));
    }
}

/// Executes a call of `function`, and explains its refusal.
pub(crate) fn explained<T>(
    function: &impl fmt::Display,
    is_probe: impl FnOnce(Errno) -> bool,
    execute: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    if !is_on() {
        return execute();
    }
    let take = || REASON.try_with(|noted| noted.borrow_mut().take()).ok().flatten();
    take();
    let result = execute();
    if let Err(error) = result
        && !is_probe(error)
    {
        let reason = take().map_or_else(String::new, |reason| format!("{reason}: "));
        let cause = std::io::Error::from_raw_os_error(error.0);
        tell(format_args!("{function} is refused: {reason}{cause}"));
    }
    result
}

/// The function of libibverbs that makes a call.
pub(crate) struct Verb<'a>(pub(crate) &'a Attributes);

impl Verb<'_> {
    /// Returns whether a refusal is the usual result of a question: whether a method exists, or an
    /// entry of a table.
    pub(crate) fn is_probe(&self, error: Errno) -> bool {
        // libibverbs then sends the older command, or reads sysfs.
        let has_older = matches!(
            (self.0.object, self.0.method),
            (0, 1..=6) | (1 | 6 | 8 | 9 | 10 | 16, 0) | (3..=5 | 11 | 12, 0 | 1) | (7, 1)
        );
        // Programs read the table of GIDs up to its end.
        let is_empty_entry =
            (self.0.object, self.0.method) == (0, 6) && error == Errno(libc::ENODATA);
        error == Errno::NO_SPACE || is_empty_entry || error == Errno::UNKNOWN && has_older
    }
}

impl fmt::Display for Verb<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attributes { object, method, .. } = *self.0;
        let name = match (object, method) {
            (0, 0) => {
                let number = self.0.word(crate::method::COMMAND).unwrap_or_default();
                match legacy(number) {
                    Some(name) => name,
                    None => return write!(f, "command {number:#x}"),
                }
            }
            (0, 2) => "ibv_query_port",
            (0, 5) => "ibv_query_gid_table",
            (0, 6) => "ibv_query_gid",
            (0, 1 | 3 | 4) => "ibv_open_device or a query of it",
            (1, 0) => "ibv_dealloc_pd",
            (3, 0) => "ibv_create_cq",
            (3, 1) => "ibv_destroy_cq",
            (4, 0) => "ibv_create_qp",
            (4, 1) => "ibv_destroy_qp",
            (5, 0) => "ibv_create_srq",
            (5, 1) => "ibv_destroy_srq",
            (6, 0) => "ibv_destroy_ah",
            (7, 0) => "ibv_reg_dm_mr",
            (7, 1) => "ibv_dereg_mr",
            (7, 2) => "ibv_advise_mr",
            (7, 3) => "ibv_import_mr",
            (7, 4) => "ibv_reg_dmabuf_mr",
            (7, 5) => "ibv_reg_mr_ex",
            (8, 0) => "ibv_dealloc_mw",
            (9, 0) => "ibv_destroy_flow",
            (10, 0) => "ibv_close_xrcd",
            (13, _) => "a call for an action of steering (ibv_create_flow_action_esp)",
            (15, _) => "a call for counters (ibv_create_counters)",
            (14, 0) => "ibv_alloc_dm",
            (14, 1) => "ibv_free_dm",
            (1, 0x1000) => "ibv_import_pd",
            (14, 0x1000) => "mlx5dv_dm_map_op_addr",
            (14, 0x1001) => "ibv_import_dm",
            (16, 0) => "ibv_open_device",
            (0x1000, 0x1000) => "mlx5dv_devx_general_cmd",
            (0x1000, 0x1001) => "a query of a UAR page by mlx5dv",
            (0x1000, 0x1002) => "mlx5dv_devx_query_eqn",
            (0x1000, 0x1003) => "mlx5dv_devx_subscribe_devx_event",
            (0x1001, 0x1000) => "mlx5dv_devx_obj_create",
            (0x1001, 0x1001) => "mlx5dv_devx_obj_destroy",
            (0x1001, 0x1002) => "mlx5dv_devx_obj_modify",
            (0x1001, 0x1003) => "mlx5dv_devx_obj_query",
            (0x1001, 0x1004) => "mlx5dv_devx_obj_query_async",
            (0x1002, 0x1000) => "mlx5dv_devx_umem_reg",
            (0x1002, 0x1001) => "mlx5dv_devx_umem_dereg",
            (0x1003, _) => "mlx5dv_create_flow_matcher",
            (0x1004, 0x1000) => "mlx5dv_devx_create_cmd_comp",
            (0x1005, 0x1000) => "mlx5dv_devx_create_event_channel",
            (0x1006, 0x1000) => "mlx5dv_alloc_var",
            (0x1007, 0x1000) => "mlx5dv_pp_alloc",
            (0x1008, 0x1000) => "mlx5dv_devx_alloc_uar",
            (0x1008, 0x1001) => "mlx5dv_devx_free_uar",
            _ => return write!(f, "method {method:#x} of object {object:#x}"),
        };
        f.write_str(name)
    }
}

/// The function that sends a command of the older write() ABI.
fn legacy(number: u32) -> Option<&'static str> {
    Some(match number {
        command::QUERY_DEVICE => "ibv_query_device",
        command::QUERY_DEVICE_EX => "ibv_query_device_ex",
        command::ALLOC_PD => "ibv_alloc_pd",
        command::CREATE_AH => "ibv_create_ah",
        command::REG_MR => "ibv_reg_mr",
        command::REREG_MR => "ibv_rereg_mr",
        command::CREATE_COMP_CHANNEL => "ibv_create_comp_channel",
        command::RESIZE_CQ => "ibv_resize_cq",
        command::MODIFY_CQ_EX => "ibv_modify_cq",
        command::QUERY_QP => "ibv_query_qp",
        command::OPEN_QP => "ibv_open_qp",
        command::OPEN_XRCD => "ibv_open_xrcd",
        command::ALLOC_MW => "ibv_alloc_mw",
        command::MODIFY_QP | command::MODIFY_QP_EX => "ibv_modify_qp",
        command::MODIFY_SRQ => "ibv_modify_srq",
        command::QUERY_SRQ => "ibv_query_srq",
        command::ATTACH_MCAST => "ibv_attach_mcast",
        command::DETACH_MCAST => "ibv_detach_mcast",
        command::CREATE_FLOW_EX => "ibv_create_flow",
        command::DESTROY_FLOW_EX => "ibv_destroy_flow",
        command::CREATE_WQ_EX => "ibv_create_wq",
        command::MODIFY_WQ_EX => "ibv_modify_wq",
        command::DESTROY_WQ_EX => "ibv_destroy_wq",
        command::CREATE_RWQ_IND_TBL_EX => "ibv_create_rwq_ind_table",
        command::DESTROY_RWQ_IND_TBL_EX => "ibv_destroy_rwq_ind_table",
        _ => return None,
    })
}
