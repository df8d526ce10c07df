//! Commands for a device with objects of every kind.

use barewire_hca::CommandSyndrome;
use barewire_layouts::command::cq::{Cqc, CreateCqIn};
use barewire_layouts::command::qp::{CreateQpIn, Qpc, ReceiveQueueType};
use barewire_layouts::command::{CommandStatus, OutHeader};
use barewire_layouts::doorbell::{
    BLUEFLAME_OFFSET, CQ_DOORBELL_OFFSET, EQ_ARM_OFFSET, EQ_CONSUMER_OFFSET,
};
use barewire_layouts::prm::View;
use bolero::check;

use crate::allocation;
use crate::script::{Script, bytes_to};
use crate::support::rig::{MEMORY, Rig};

const LONGEST: usize = 512;
/// Limit for one command: its object, and tables that grow by half.
const SHARE: usize = 1 << 20;

/// Creates a rig with connected queue pairs on shared receive and completion queues. Returns it
/// with the requests that created it.
fn furnished() -> (Rig, Vec<Vec<u8>>) {
    let rig = Rig::new();
    let (eqn, rmpn) = (rig.create_eq().expect("valid"), rig.create_rmp().expect("valid"));
    let cqn =
        rig.create_cq(|create| _ = create.nested(CreateCqIn::CQ_CONTEXT).set(Cqc::C_EQN, eqn));
    let cqn = cqn.expect("valid");
    let sharing = rig.create_qp(cqn, |create| {
        let mut context = create.nested(CreateQpIn::QPC);
        context.set(Qpc::RQ_TYPE, ReceiveQueueType::Shared).set(Qpc::SRQN_RMPN_XRQN, rmpn);
    });
    let qpns = [rig.create_qp(cqn, |_| ()).expect("valid"), sharing.expect("valid")];
    let address = rig.device.address();
    rig.connect(qpns[0], (address, qpns[1])).expect("valid");
    rig.connect(qpns[1], (address, qpns[0])).expect("valid");
    let mkey = rig.create_mkey(0, MEMORY as u64, |_| ()).expect("valid");
    let _ = rig.query_qp(qpns[0], |_| ());
    // These fail, since their objects are in use, and succeed once a script has destroyed the
    // users.
    let _ = (rig.destroy_cq(cqn), rig.dealloc_pd(rig.pd), rig.dealloc_uar(rig.uar));
    let doomed = rig.create_qp(cqn, |_| ()).expect("valid");
    let _ = (rig.to_err(doomed), rig.to_rst(doomed), rig.destroy_qp(doomed));
    let spare = rig.create_mkey(0, MEMORY as u64, |_| ()).expect("valid");
    rig.destroy_mkey(spare).expect("valid");
    assert_ne!(mkey, spare);
    let requests = rig.requests.take();
    (rig, requests)
}

fn execute(rig: &Rig, request: &[u8], answer: usize) {
    let before = rig.device.objects();
    let mut output = vec![0xff; answer];
    let most = allocation::peak(|| rig.execute(request, &mut output));
    assert!(most < SHARE, "{most} bytes for one command");
    match View::<OutHeader>::new(&output) {
        Some(header) => {
            let status = header.get(OutHeader::STATUS).expect("a status that is named");
            if status != CommandStatus::Ok {
                let syndrome = CommandSyndrome::from_bits(header.get(OutHeader::SYNDROME));
                assert_eq!(syndrome.map(CommandSyndrome::status), Some(status));
                assert_eq!(rig.device.objects(), before);
            }
        }
        None => assert_eq!(rig.device.objects(), before),
    }
}

/// Stores to the registers of the rig's page.
fn ring(rig: &Rig, doorbell: u64) {
    if let Some(page) = rig.device.uar_page(rig.uar) {
        for offset in [CQ_DOORBELL_OFFSET, EQ_ARM_OFFSET, EQ_CONSUMER_OFFSET, BLUEFLAME_OFFSET] {
            // SAFETY: the address lies in the page and is aligned.
            unsafe { page.as_ptr().add(offset).cast::<u64>().write_volatile(doorbell) };
        }
    }
}

#[test]
fn any_commands() {
    check!().with_generator(bytes_to(1024)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let (rig, requests) = furnished();
        while !script.is_over() {
            let which = usize::from(script.byte());
            match requests.get(which) {
                Some(request) => {
                    let mut request = request.clone();
                    script.mutate(&mut request);
                    execute(&rig, &request, LONGEST);
                }
                None if which == 0xff => ring(&rig, u64::from_ne_bytes(script.array())),
                None => {
                    let (length, answer) = (usize::from(script.number()) % LONGEST, script.byte());
                    execute(&rig, script.bytes(length), answer.into());
                }
            }
            rig.device.step();
        }
        for _ in 0..8 {
            rig.device.step();
        }
        assert!(rig.guards_intact());
    });
}
