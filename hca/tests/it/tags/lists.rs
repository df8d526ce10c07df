//! Operations on the list, and its context.

use super::{ALL, LOG_ENTRIES, Tags, eager};
use crate::support::tags::{append, change};
use crate::support::{Cq, LOG_CQ, Node, Wqe, command};
use barewire_hca::{Fabric, Faults, Finding};
use barewire_layouts::command::rmp::{Wq, WqType};
use barewire_layouts::command::srq::{ArmRqIn, ArmRqKind};
use barewire_layouts::command::xrq::{
    ArmXrqIn, CreateXrqIn, QueryXrqIn, QueryXrqOut, TagMatchingContext, XrqOffload, XrqTopology,
    Xrqc,
};
use barewire_layouts::command::{CommandStatus, answer};
use barewire_layouts::cqe::{Syndrome, TagEvent, TagListResult};
use barewire_layouts::wqe::{ControlFlags, INVALID_LKEY, Opcode, TagFlags, TagSegment};
use zerocopy::IntoBytes;

#[test]
fn entries_wait_until_software_has_seen_the_unexpected_messages() {
    let mut test = Tags::new();
    test.send(eager(5), b"first");
    assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0)]);
    test.append(1, 5, 4096);
    let appended = test.xrq.poll().unwrap();
    assert_eq!(appended.result.hardware_count.get(), 1);
    assert_eq!(appended.result.success.get(), TagListResult::SUCCESS);
    test.send(eager(5), b"second");
    assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0)]);
    test.change(&TagSegment::nop(TagFlags::COMPLETION).with_software_count(2));
    assert_eq!(test.xrq.drain(), [(TagEvent::Nop, 0)]);
    test.send(eager(5), b"third");
    assert_eq!(test.xrq.drain(), [(TagEvent::ConsumedMessage, 0)]);
    assert_eq!(test.matched.memory.read(0, 5), b"third");
}

#[test]
fn a_removed_entry_matches_nothing() {
    let mut test = Tags::new();
    test.append(1, 5, 4096);
    test.xrq.drain();
    test.change(&TagSegment::remove(0, TagFlags::COMPLETION));
    let removed = test.xrq.poll().unwrap();
    assert_eq!(removed.kind, Some(TagEvent::Remove));
    assert_eq!(removed.result.success.get(), TagListResult::SUCCESS);
    test.send(eager(5), b"late");
    assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0)]);
    // It is not in the list any more, and others never were.
    for index in [0, 1, u16::MAX] {
        test.change(&TagSegment::remove(index, TagFlags::COMPLETION));
        assert_eq!(test.xrq.poll().unwrap().result.success.get(), 0);
    }
}

#[test]
fn operations_are_executed_in_order() {
    // Behind more packets than may be unacknowledged, and behind a fence.
    let cases =
        [(Opcode::RdmaWrite, 2, ControlFlags::empty()), (Opcode::RdmaRead, 1, ControlFlags::FENCE)];
    for (opcode, count, fence) in cases {
        let mut test = Tags::new();
        let refused = Wqe::new(opcode).remote(test.source.address(), 0x00ab_cd00).data(
            test.matched.address(),
            8192,
            test.matched.key,
        );
        for _ in 0..count {
            test.list.post(&refused);
        }
        test.list.post(&append(1, (5, ALL), &test.matched, 64).flags(fence));
        test.pair.settle();
        let failed = test.list.send_cq.drain();
        let mut wanted = vec![Some(Syndrome::WorkRequestFlushed); count + 1];
        wanted[0] = Some(Syndrome::RemoteAccess);
        assert_eq!(failed.iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), wanted);
        assert_eq!(test.xrq.poll(), None);
    }
}

#[test]
fn invalid_operations_are_reported() {
    let append = |next| {
        change(&TagSegment::append(next, 1, ALL, TagFlags::empty()))
            .raw(barewire_layouts::wqe::DataSegment::END.as_bytes())
    };
    let short = change(&TagSegment::append(1, 1, ALL, TagFlags::empty()));
    let unknown = change(&TagSegment { operation: 0x30, ..TagSegment::default() });
    let beyond = append(1 << LOG_ENTRIES);
    for wqe in [short, unknown, beyond] {
        let mut test = Tags::new();
        test.list.post(&wqe);
        test.pair.settle();
        let failed = test.list.send_cq.poll().expect("an error");
        assert_eq!(failed.syndrome, Some(Syndrome::LocalQpOperation));
        assert_eq!(test.pair.b.device.take_reports().len(), 1);
    }
    let mut test = Tags::new();
    test.list.post(&append(0));
    test.list.post(&append(0));
    test.pair.settle();
    let reports = test.pair.b.device.take_reports();
    assert_eq!(reports[0].finding, Finding::TagEntryTaken { entry: 0 });
    // The sender's queue pair has no list.
    test.pair.qa.post(&change(&TagSegment::nop(TagFlags::COMPLETION)));
    test.pair.settle();
    let reports = test.pair.a.device.take_reports();
    assert_eq!(reports[0].finding, Finding::NoTagList);
    assert_eq!(INVALID_LKEY, barewire_layouts::wqe::DataSegment::END.lkey.get());
}

#[test]
fn a_list_is_queried_and_armed() {
    let mut test = Tags::new();
    test.append(3, 5, 4096);
    test.send(eager(7), b"unexpected");
    let device = &test.pair.b.device;
    let output =
        command::<QueryXrqIn>(device, |query| _ = query.set(QueryXrqIn::XRQN, test.xrq.number))
            .unwrap();
    let context = answer::<QueryXrqIn>(&output).unwrap().nested(QueryXrqOut::XRQ_CONTEXT);
    assert_eq!(context.get(Xrqc::TOPOLOGY), Ok(XrqTopology::TagMatching));
    assert_eq!(context.get(Xrqc::OFFLOAD), Ok(XrqOffload::Rendezvous));
    assert_eq!(context.get(Xrqc::CQN), test.xrq.cq.number);
    let list = context.nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT);
    assert_eq!(list.get(TagMatchingContext::LOG_MATCHING_LIST_SZ), LOG_ENTRIES);
    assert_eq!(list.get(TagMatchingContext::APPEND_NEXT_INDEX), 3);
    assert_eq!(list.get(TagMatchingContext::SW_PHASE_CNT), 0);
    assert_eq!(list.get(TagMatchingContext::HW_PHASE_CNT), 1);
    assert_eq!(context.nested(Xrqc::WQ).get(Wq::HW_COUNTER), 1);
    command::<ArmXrqIn>(device, |arm| _ = arm.set(ArmXrqIn::XRQN, test.xrq.number)).unwrap();
    command::<ArmRqIn>(device, |arm| {
        arm.set(ArmRqIn::OP_MOD, ArmRqKind::Xrq)
            .set(ArmRqIn::SRQ_NUMBER, test.xrq.number)
            .set(ArmRqIn::LWM, 1);
    })
    .unwrap();
}

#[test]
fn invalid_contexts_are_refused() {
    let node = Node::stepped(&Fabric::new(), Faults::default());
    let cq = Cq::new(&node, LOG_CQ);
    let create = |change: &dyn Fn(&mut barewire_layouts::prm::ViewMut<'_, Xrqc>)| {
        let made = command::<CreateXrqIn>(&node.device, |create| {
            let mut context = create.nested(CreateXrqIn::XRQ_CONTEXT);
            context.set(Xrqc::TOPOLOGY, XrqTopology::TagMatching).set(Xrqc::CQN, cq.number);
            change(&mut context);
        });
        made.unwrap_err().status
    };
    assert_eq!(
        create(&|context| _ = context.set(Xrqc::TOPOLOGY, XrqTopology::None)),
        Ok(CommandStatus::BadParameter)
    );
    let oversize = |context: &mut barewire_layouts::prm::ViewMut<'_, Xrqc>| {
        context
            .nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT)
            .set(TagMatchingContext::LOG_MATCHING_LIST_SZ, 15);
    };
    assert_eq!(create(&oversize), Ok(CommandStatus::LimitExceeded));
    let striding = |context: &mut barewire_layouts::prm::ViewMut<'_, Xrqc>| {
        context.nested(Xrqc::WQ).set(Wq::WQ_TYPE, WqType::CyclicStriding);
    };
    assert_eq!(create(&striding), Ok(CommandStatus::BadParameter));
    assert_eq!(
        create(&|context| _ = context.set(Xrqc::CQN, 0x12_3456)),
        Ok(CommandStatus::BadResource)
    );
}
