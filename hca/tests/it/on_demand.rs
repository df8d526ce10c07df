//! Memory that is paged in on demand, and may be unmapped.

use std::ptr::NonNull;

use crate::support::Rights;
use crate::support::{self, Connection, Node, Pair, Qp, Wqe, command, pattern};
use barewire_hca::{CommandSyndrome as Why, Fabric, Faults, UmemAccess};
use barewire_layouts::command::cq::{Cqc, CreateCqIn};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::wqe::Opcode;

const PAGE: usize = 4096;

/// Pages of the kernel's, the third of which is taken away.
struct Pages {
    start: NonNull<u8>,
    umem: u32,
    key: u32,
}

/// Returns the registration of such pages, and their address and key.
pub(crate) fn with_hole(node: &Node) -> (u32, (u64, u32)) {
    let pages = Pages::new(node);
    (pages.umem, (pages.address(0), pages.key))
}

impl Pages {
    fn new(node: &Node) -> Self {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory without another user.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), 4 * PAGE, protection, flags, -1, 0) };
        let start = NonNull::new(start.cast::<u8>())
            .filter(|start| start.as_ptr().cast() != libc::MAP_FAILED);
        let start = start.expect("memory");
        // SAFETY: mapped memory is accessed by raw copies only; no atomic operation accesses
        // unmapped memory.
        let umem = unsafe {
            node.device.register_umem_on_demand(start, 4 * PAGE, UmemAccess::LOCAL_WRITE)
        };
        let umem = umem.expect("a registration");
        let key = node.key_over((umem, 0), start.addr().get() as u64, 4 * PAGE, Rights::ALL);
        // SAFETY: one of the pages.
        assert_eq!(unsafe { libc::munmap(start.as_ptr().add(2 * PAGE).cast(), PAGE) }, 0);
        Self { start, umem, key }
    }

    fn address(&self, offset: usize) -> u64 {
        (self.start.addr().get() + offset) as u64
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // SAFETY: tests read what is there.
        unsafe {
            self.start.as_ptr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), length);
        };
        bytes
    }
}

fn pair() -> Pair {
    let fabric = Fabric::new();
    let (a, b) =
        (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
    let qps = (Qp::new(&a), Qp::new(&b));
    Pair::of(a, b, qps, &Connection::default())
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn what_is_there_is_brought_in() {
    let mut test = pair();
    let (local, pages) = (test.a.region(2 * PAGE), Pages::new(&test.b));
    let data = pattern(PAGE + 100, 4);
    local.memory.write(0, &data);
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(pages.address(100), pages.key);
    test.qa.post(&wqe.data(local.address(), data.len(), local.key));
    let wqe = Wqe::new(Opcode::RdmaRead).remote(pages.address(3 * PAGE), pages.key);
    test.qa.post(&wqe.data(local.address(), 64, local.key));
    let wqe = Wqe::new(Opcode::AtomicFetchAdd)
        .remote(pages.address(3 * PAGE + 8), pages.key)
        .atomic(5, 0);
    test.qa.post(&wqe.data(local.address() + 64, 8, local.key));
    test.settle();
    assert_eq!(
        test.qa.send_cq.drain().iter().map(|one| one.syndrome).collect::<Vec<_>>(),
        [None; 3]
    );
    assert_eq!(pages.read(100, data.len()), data);
    assert_eq!(local.memory.read(0, 72), [0; 72]);
    assert_eq!(pages.read(3 * PAGE + 8, 8), 5_u64.to_ne_bytes());
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn what_is_gone_is_an_error() {
    let mut test = pair();
    let (local, pages) = (test.a.region(2 * PAGE), Pages::new(&test.b));
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(pages.address(2 * PAGE - 8), pages.key);
    test.qa.post(&wqe.data(local.address(), 16, local.key));
    test.settle();
    let syndromes =
        |cq: &mut support::Cq| cq.drain().iter().map(|one| one.syndrome).collect::<Vec<_>>();
    assert_eq!(syndromes(&mut test.qa.send_cq), [Some(Syndrome::RemoteAccess)]);
    assert_eq!(pages.read(2 * PAGE - 8, 8), [0; 8]);

    let mut test = pair();
    let (pages, remote) = (Pages::new(&test.a), test.b.region(64));
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key);
    test.qa.post(&wqe.data(pages.address(2 * PAGE), 16, pages.key));
    test.settle();
    assert_eq!(syndromes(&mut test.qa.send_cq), [Some(Syndrome::LocalProtection)]);
}

#[test]
fn no_queue_lies_there() {
    let node = Node::stepped(&Fabric::new(), Faults::default());
    let memory = Box::leak(Box::new([0_u8; 2 * PAGE]));
    // SAFETY: leaked memory without another user from here on.
    let umem = unsafe {
        node.device.register_umem_on_demand(
            NonNull::from(memory).cast(),
            2 * PAGE,
            UmemAccess::LOCAL_WRITE,
        )
    };
    let refused = command::<CreateCqIn>(&node.device, |create| {
        create
            .set(CreateCqIn::CQ_UMEM_VALID, true)
            .set(CreateCqIn::CQ_UMEM_ID, umem.expect("a registration"))
            .nested(CreateCqIn::CQ_CONTEXT)
            .set(Cqc::LOG_CQ_SIZE, 4);
    });
    assert_eq!(refused.unwrap_err().syndrome, Why::RingOnDemand as u32);
}
