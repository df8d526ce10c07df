//! Decoders that need no device: headers, entries, command outputs.

use barewire_layouts::command::capability::QueryHcaCapIn;
use barewire_layouts::command::cq::CreateCqIn;
use barewire_layouts::command::gid::{QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress};
use barewire_layouts::command::qp::{Qpc, QueryQpIn, QueryQpOut};
use barewire_layouts::command::{Request, answer};
use barewire_layouts::cqe::compressed::{MAX_ENHANCED, MiniCqe, MiniFormat};
use barewire_layouts::cqe::{Cqe64, CqeFormat, CqeOpcode, ErrorCqe, FORMAT, Syndrome};
use barewire_layouts::doorbell::CqArm;
use barewire_layouts::eqe::{Eqe, EventType};
use barewire_layouts::icrc::{icrc_ipv4, icrc_ipv6, identification_ipv4};
use barewire_layouts::roce::{Aeth, AethSyndrome, Bth};
use bolero::check;
use zerocopy::{FromBytes, IntoBytes};

use crate::script::{Script, bytes_to};

#[test]
fn any_completion_entries() {
    check!().with_generator(bytes_to(200)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let title = Cqe64::read_from_bytes(&script.array::<64>()).expect("its size");
        let array = Cqe64::read_from_bytes(&script.array::<64>()).expect("its size");
        assert_eq!(CqeFormat::from_op_own(title.op_own).bits(), title.op_own & FORMAT);
        if let Some(opcode) = CqeOpcode::from_bits(title.opcode()) {
            assert_eq!(opcode as u8, title.opcode());
        }
        let packet = title.packet();
        assert!(packet.source_qpn() <= 0xff_ffff && packet.service_level() < 16);
        let error = ErrorCqe::read_from_bytes(title.as_bytes()).expect("its size");
        assert_eq!(
            (error.qpn(), error.send_opcode(), error.user_index()),
            (title.qpn(), title.send_opcode(), title.user_index())
        );
        if let Some(syndrome) = Syndrome::from_bits(error.syndrome) {
            assert_eq!(syndrome as u8, error.syndrome);
        }
        let (counter, owner) = (script.number(), script.byte());
        for mini in array.mini_array() {
            for format in [MiniFormat::Hash, MiniFormat::Checksum, MiniFormat::ChecksumStride] {
                let cqe = MiniCqe::expand(mini, &title, format, counter, owner);
                // Fields that a mini CQE lacks are those of the title.
                assert_eq!(
                    (cqe.opcode(), cqe.qpn(), cqe.byte_count),
                    (title.opcode(), title.qpn(), mini.byte_count)
                );
                assert_eq!(cqe.op_own & 1, owner & 1);
            }
        }
        assert!(array.basic_count() >= 1 && (1..=MAX_ENHANCED).contains(&array.enhanced_count()));
    });
}

#[test]
fn any_event_entries() {
    check!().with_generator(bytes_to(64)).for_each(|bytes| {
        let mut bytes: [u8; 64] = Script::new(bytes).array();
        if bytes[0] & 1 == 1 {
            // Page faults are rare among random types.
            (bytes[1], bytes[3]) = (EventType::PageFault as u8, bytes[3] % 3);
        }
        let entry = Eqe::read_from_bytes(&bytes).expect("its size");
        assert_eq!(entry.to_bytes(), bytes);
        assert!(
            entry.number() <= 0xff_ffff
                && entry.failed_cqn() <= 0xff_ffff
                && entry.port_number() < 16
        );
        if let Some(event) = EventType::from_bits(entry.event_type) {
            assert_eq!(event as u8, entry.event_type);
        }
        if let Some(fault) = entry.fault() {
            assert_eq!(entry.event_type, EventType::PageFault as u8);
            // The same fault can be written again, and its numbers fit the command that resumes
            // the work.
            assert_eq!(Eqe::page_fault(fault).fault(), Some(fault));
            let (_, queue, token) = fault.resumed_by();
            assert!(queue <= 0xff_ffff && token <= 0xff_ffff);
        }
        let arm = CqArm::from_bits(u32::from_be_bytes(*bytes.first_chunk().expect("of 64")));
        assert_eq!(CqArm::from_bits(arm.bits()), arm);
    });
}

#[test]
fn any_headers() {
    check!().with_generator(bytes_to(256)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let (source, destination, port): ([u8; 16], [u8; 16], u16) =
            (script.array(), script.array(), script.number());
        let icrc: [u8; 4] = script.array();
        let header: [u8; 12] = script.array();
        let bth = Bth::read_from_bytes(&header).expect("its size");
        assert!(
            bth.pad() < 4
                && bth.version() < 16
                && bth.destination() <= 0xff_ffff
                && bth.psn() <= 0xff_ffff
        );
        if let (Ok(transport), Ok(operation)) = (bth.transport(), bth.operation()) {
            assert_eq!((transport as u8) << 5 | operation as u8, header[0]);
            assert!(operation.headers_in(transport).is_none_or(|headers| headers.bytes() <= 64));
        }
        let aeth = Aeth::read_from_bytes(&script.array::<4>()).expect("its size");
        if let Some(syndrome) = aeth.syndrome() {
            assert_eq!(AethSyndrome::from_bits(syndrome.bits()), Some(syndrome));
        }
        let transport = [&header[..], script.bytes(256)].concat();
        let [v4_source, v4_destination] =
            [source, destination].map(|address| *address.first_chunk().expect("of 16"));
        let found = identification_ipv4(v4_source, v4_destination, port, 4791, &transport, icrc);
        let plain = icrc_ipv4(v4_source, v4_destination, port, 4791, &transport);
        assert_eq!(found == Some(0), plain == icrc);
        let _ = icrc_ipv6(source, destination, port, 4791, &transport);
    });
}

/// Parses `bytes` as the output of `R`.
fn read<R: Request>(bytes: &[u8]) -> bool {
    match answer::<R>(bytes) {
        Ok(view) => !view.bytes().is_empty(),
        Err(refused) => !refused.to_string().is_empty(),
    }
}

#[test]
fn any_answers() {
    check!().with_generator(bytes_to(600)).for_each(|bytes| {
        assert!(read::<CreateCqIn>(bytes) && read::<QueryHcaCapIn>(bytes));
        if let Ok(view) = answer::<QueryQpIn>(bytes) {
            let context = view.nested(QueryQpOut::QPC);
            if let Err(unknown) = context.get(Qpc::STATE) {
                assert!(!unknown.to_string().is_empty());
            }
            assert!(context.get(Qpc::REMOTE_QPN) <= 0xff_ffff);
        }
        if let Ok(view) = answer::<QueryRoceAddressIn>(bytes) {
            let entry = view.nested(QueryRoceAddressOut::ROCE_ADDRESS);
            let _: [u8; 16] = entry.array(RoceAddress::SOURCE_L3_ADDRESS);
        }
    });
}
