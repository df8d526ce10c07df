//! Memory on the device: allocation in the BAR, and memory keys to it.

use crate::support::rig::{Refusal, Rig};
use crate::support::{Connection, Pair, Wqe, command, pattern};
use barewire_hca::CommandSyndrome as Why;
use barewire_layouts::command::answer;
use barewire_layouts::command::capability::{
    CapabilityMode, CapabilityPage, DeviceMemCap, HcaCap, QueryHcaCapIn, QueryHcaCapOut, op_mod,
};
use barewire_layouts::command::memic::{AllocMemicIn, AllocMemicOut, DeallocMemicIn};
use barewire_layouts::command::mkey::{
    ANY_QPN, AccessMode, CreateMkeyIn, CreateMkeyOut, Mkc, QueryMkeyIn, QueryMkeyOut, key,
};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::prm::ViewMut;
use barewire_layouts::wqe::Opcode;

const VARIANT: u8 = 0x33;

fn refused<T>(why: Why) -> Result<T, Refusal> {
    Err((why.status(), why))
}

/// The address and the size of the device's memory in the BAR.
fn bar(rig: &Rig) -> (u64, u32) {
    let page = |page| op_mod(page, CapabilityMode::Current);
    let exists = rig.run::<QueryHcaCapIn, _>(
        |request| _ = request.set(QueryHcaCapIn::OP_MOD, page(CapabilityPage::General)),
        |answer| answer.nested(QueryHcaCapOut::GENERAL).get(HcaCap::DEVICE_MEMORY),
    );
    assert_eq!(exists, Ok(true));
    let whole = rig.run::<QueryHcaCapIn, _>(
        |request| _ = request.set(QueryHcaCapIn::OP_MOD, page(CapabilityPage::DeviceMemory)),
        |answer| {
            let page = answer.nested(QueryHcaCapOut::DEVICE_MEM);
            assert!(page.get(DeviceMemCap::MEMIC));
            assert_eq!(page.get(DeviceMemCap::LOG_MIN_MEMIC_ALLOC_SIZE), 6);
            (page.get(DeviceMemCap::MEMIC_BAR_START_ADDR), page.get(DeviceMemCap::MEMIC_BAR_SIZE))
        },
    );
    whole.unwrap()
}

fn alloc(rig: &Rig, length: u32, log_alignment: u8) -> Result<u64, Refusal> {
    let (start, range) = bar(rig);
    rig.run::<AllocMemicIn, _>(
        |request| {
            request
                .set(AllocMemicIn::LOG_MEMIC_ADDR_ALIGNMENT, log_alignment)
                .set(AllocMemicIn::RANGE_START_ADDR, start)
                .set(AllocMemicIn::RANGE_SIZE, range)
                .set(AllocMemicIn::MEMIC_SIZE, length);
        },
        |answer| answer.get(AllocMemicOut::MEMIC_START_ADDR),
    )
}

fn free(rig: &Rig, address: u64, length: u32) -> Result<(), Refusal> {
    rig.run::<DeallocMemicIn, _>(
        |request| {
            request
                .set(DeallocMemicIn::MEMIC_START_ADDR, address)
                .set(DeallocMemicIn::MEMIC_SIZE, length);
        },
        |_| (),
    )
}

/// Describes a key of `length` bytes at `address` on the device.
fn describe(create: &mut ViewMut<'_, CreateMkeyIn>, address: u64, length: u64, pd: u32) {
    create
        .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
        .set(Mkc::ACCESS_MODE_4_2, AccessMode::Memic as u8 >> 2)
        .set(Mkc::ACCESS_MODE_1_0, AccessMode::Memic as u8 & 3)
        .set(Mkc::LR, true)
        .set(Mkc::LW, true)
        .set(Mkc::RR, true)
        .set(Mkc::RW, true)
        .set(Mkc::QPN, ANY_QPN)
        .set(Mkc::MKEY_7_0, VARIANT)
        .set(Mkc::PD, pd)
        .set(Mkc::START_ADDR, address)
        .set(Mkc::LEN, length);
}

fn create(rig: &Rig, address: u64, length: u64) -> Result<u32, Refusal> {
    rig.run::<CreateMkeyIn, _>(
        |request| describe(request, address, length, rig.pd),
        |answer| answer.get(CreateMkeyOut::MKEY_INDEX),
    )
}

#[test]
fn memory_on_the_device_comes_and_goes() {
    let rig = Rig::new();
    let (start, range) = bar(&rig);
    assert_eq!(free(&rig, start, 64), refused(Why::UnknownMemic));
    for length in [0, 1, 100] {
        assert_eq!(alloc(&rig, length, 0), refused(Why::MemicSize));
    }
    assert_eq!(alloc(&rig, 64, 7), refused(Why::MemicAlignment));
    assert_eq!(alloc(&rig, range + 64, 0), refused(Why::NoMemic));
    let first = alloc(&rig, 64, 0).unwrap();
    let second = alloc(&rig, 128, 6).unwrap();
    assert_eq!((first, second), (start, start + 4096), "a page is the largest alignment");
    assert_eq!(alloc(&rig, range - 4096, 0), refused(Why::NoMemic));
    assert_eq!(free(&rig, second, 64), refused(Why::UnknownMemic));
    assert_eq!(free(&rig, second, 128), Ok(()));
    assert_eq!(free(&rig, second, 128), refused(Why::UnknownMemic));
    assert!(alloc(&rig, range - 4096, 0).is_ok());
}

#[test]
fn keys_cover_what_was_allocated() {
    let rig = Rig::new();
    let address = alloc(&rig, 128, 0).unwrap();
    for (at, length) in [(address, 129), (address + 128, 1), (address - 1, 1), (0, 1)] {
        assert_eq!(create(&rig, at, length), refused(Why::MkeyDeviceMemory));
    }
    let index = create(&rig, address + 64, 64).unwrap();
    let seen = rig.run::<QueryMkeyIn, _>(
        |request| _ = request.set(QueryMkeyIn::MKEY_INDEX, index),
        |answer| {
            let context = answer.nested(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY);
            let mode = context.get(Mkc::ACCESS_MODE_4_2) << 2 | context.get(Mkc::ACCESS_MODE_1_0);
            (mode, context.get(Mkc::START_ADDR), context.get(Mkc::LEN))
        },
    );
    assert_eq!(seen, Ok((AccessMode::Memic as u8, address + 64, 64)));
    // Its registration is the device's own.
    assert_eq!(rig.device.objects().umems, 1);
    assert_eq!(rig.destroy_mkey(index), Ok(()));
    assert_eq!(free(&rig, address, 128), Ok(()));
    assert_eq!(create(&rig, address, 64), refused(Why::MkeyDeviceMemory));
}

/// Peers name bytes by their offsets, and reach what the program maps.
#[test]
fn peers_write_to_the_device() {
    let mut pair = Pair::new(&Connection::default());
    let device = pair.b.device.clone();
    assert!(device.device_memory().is_none(), "nothing was allocated");
    let output = command::<AllocMemicIn>(&device, |request| {
        request
            .set(AllocMemicIn::RANGE_START_ADDR, 1 << 25)
            .set(AllocMemicIn::RANGE_SIZE, 4096)
            .set(AllocMemicIn::MEMIC_SIZE, 256);
    });
    let address =
        answer::<AllocMemicIn>(&output.unwrap()).unwrap().get(AllocMemicOut::MEMIC_START_ADDR);
    let output = command::<CreateMkeyIn>(&device, |create| {
        describe(create, address + 128, 128, pair.b.pd);
    });
    let index = answer::<CreateMkeyIn>(&output.unwrap()).unwrap().get(CreateMkeyOut::MKEY_INDEX);
    let rkey = key(index, VARIANT);
    let source = pair.a.region(128);
    let data = pattern(128, 1);
    source.memory.write(0, &data);
    let mut write = |to: u64, length: usize| {
        let wqe = Wqe::new(Opcode::RdmaWrite).remote(to, rkey);
        pair.qa.post(&wqe.data(source.address(), length, source.key));
        pair.settle();
        pair.qa.send_cq.poll().expect("a completion").syndrome
    };
    assert_eq!(write(16, 112), None);
    let memory = device.device_memory().unwrap();
    assert!(memory.at(address, 1 << 20).is_none(), "longer than the memory");
    let start = memory.at(address, 256).unwrap();
    let mut seen = vec![0; 256];
    for (at, word) in seen.chunks_exact_mut(8).enumerate() {
        // SAFETY: an aligned word of the memory, which `memory` keeps; the device is idle.
        let value = unsafe { start.cast::<u64>().add(at).as_ptr().read_volatile() };
        word.copy_from_slice(&value.to_ne_bytes());
    }
    assert_eq!(seen[..144], [0; 144]);
    assert_eq!(seen[144..], data[..112]);
    assert_eq!(write(17, 112), Some(Syndrome::RemoteAccess), "one byte too far");
}
