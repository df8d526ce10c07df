//! The kernel's part in page faults.

use barewire_hca::{AbsentPages, Config, Fabric, Faults, Mode, ReservedBits, Strict, WireKind};
use barewire_layouts::command::CommandError;
use barewire_layouts::command::page_fault::PageFaultResumeIn;
use barewire_layouts::eqe::EventType;
use barewire_layouts::page_fault::{FaultKind, PageFault};

use super::events::Eq;
use super::{Connection, Memory, Node, Pair, Region, command};

/// An event queue that receives page faults.
pub struct Kernel {
    node: Node,
    queue: Eq,
}

impl Kernel {
    pub fn new(node: &Node) -> Self {
        Self { node: node.clone(), queue: Eq::new(node, 6, EventType::PageFault.mask()) }
    }

    /// The faults since the last call.
    pub fn faults(&mut self) -> Vec<PageFault> {
        let events: Vec<_> = std::iter::from_fn(|| self.queue.poll()).collect();
        if !events.is_empty() {
            self.queue.arm();
        }
        events.iter().map(|event| event.fault().expect("a page fault")).collect()
    }

    /// The only fault since the last call.
    pub fn fault(&mut self) -> PageFault {
        let faults = self.faults();
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults[0]
    }

    /// Brings in what is missing, and answers.
    pub fn serve(&self, fault: &PageFault) {
        for pages in self.node.device.absent_pages(fault) {
            self.node.device.page_in(pages).unwrap();
        }
        self.resume(fault, false).unwrap();
    }

    pub fn resume(&self, fault: &PageFault, failed: bool) -> Result<(), CommandError> {
        self.answer(fault.resumed_by(), failed)
    }

    pub fn answer(&self, fault: (FaultKind, u32, u32), failed: bool) -> Result<(), CommandError> {
        command::<PageFaultResumeIn>(&self.node.device, |resume| {
            PageFaultResumeIn::answer(resume, fault, failed);
        })
        .map(drop)
    }
}

/// A stepped device that reports page faults.
pub fn node(fabric: &Fabric, faults: Faults) -> Node {
    Node::open(
        Config::default()
            .mode(Mode::Stepped)
            .wire(WireKind::Fabric(fabric.clone()))
            .faults(faults)
            .strict(Strict::Panic)
            .reserved_bits(ReservedBits::Refuse)
            .requirements("page-faults".parse().unwrap()),
    )
}

/// Two of them with a connection, and their kernels.
pub fn pair(connection: &Connection) -> (Pair, [Kernel; 2]) {
    let fabric = Fabric::new();
    let pair =
        Pair::over(node(&fabric, Faults::default()), node(&fabric, Faults::default()), connection);
    let kernels = [Kernel::new(&pair.a), Kernel::new(&pair.b)];
    (pair, kernels)
}

/// Steps until nothing happens, while the kernels serve faults. Returns those.
pub fn settle(nodes: [&Node; 2], kernels: &mut [Kernel; 2]) -> Vec<PageFault> {
    let mut served = Vec::new();
    for _ in 0..1_000_000 {
        let busy = nodes.map(|node| node.device.step());
        let faults = kernels.each_mut().map(Kernel::faults);
        for (kernel, faults) in kernels.iter().zip(&faults) {
            for fault in faults {
                kernel.serve(fault);
            }
            served.extend(faults);
        }
        if busy == [false; 2] && faults.iter().all(Vec::is_empty) {
            return served;
        }
    }
    panic!("the devices stay busy: {:?}", nodes.map(|node| node.device.counters()));
}

/// Part of a region.
pub fn part(region: &Region, offset: usize, length: usize, write: bool) -> AbsentPages {
    let (offset, length) = (offset as u64, length as u64);
    AbsentPages { umem: region.memory.umem(), offset, length, write }
}

/// Memory that is paged in on demand, with a key that has all rights.
pub fn region(node: &Node, length: usize) -> Region {
    let memory = Memory::register_on_demand(&node.device, length);
    let key = node.key(&memory, 0, length, super::Rights::ALL);
    Region { memory, key }
}
