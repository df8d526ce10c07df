//! Memory that a device refuses to release.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use barewire::cache::{CacheLimits, RegistrationCache};
use barewire::{Access, Domain, InterfaceConfig, MemoryError, Worker};
use barewire_hca::{Config, Device, Fabric, Mode, Strict, WireKind};
use barewire_layouts::command::mkey::{
    ANY_QPN, AccessMode, CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, Mkc,
};
use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
use barewire_layouts::command::{CommandError, Request, answer, request};
use barewire_layouts::doorbell::BLUEFLAME_OFFSET;
use barewire_layouts::prm::{Layout, ViewMut};

use crate::support::Side;

const BYTES: usize = 4096;

fn stepped() -> Device {
    let wire = WireKind::Fabric(Fabric::new());
    Device::open(Config::default().mode(Mode::Stepped).wire(wire).strict(Strict::Panic)).unwrap()
}

fn command<R: Request>(
    device: &Device,
    fill: impl FnOnce(&mut ViewMut<'_, R>),
) -> Result<Vec<u8>, CommandError> {
    let (mut input, mut output) = (vec![0; R::BYTES], vec![0; R::Answer::BYTES]);
    fill(&mut request::<R>(&mut input).unwrap());
    // SAFETY: the keys created here to memory of others are never used; they only keep it in use.
    unsafe { device.execute(&input, &mut output) };
    answer::<R>(&output)?;
    Ok(output)
}

/// Creates another key for every registration of the device, so that none can be withdrawn. Returns
/// the keys.
fn keep_busy(device: &Device) -> Vec<u32> {
    let pd = command::<AllocPdIn>(device, |_| ()).unwrap();
    let pd = answer::<AllocPdIn>(&pd).unwrap().get(AllocPdOut::PD);
    let key = |umem| {
        let made = command::<CreateMkeyIn>(device, |create| {
            create.set(CreateMkeyIn::MKEY_UMEM_VALID, true).set(CreateMkeyIn::MKEY_UMEM_ID, umem);
            create
                .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
                .set(Mkc::ACCESS_MODE_1_0, AccessMode::Mtt as u8)
                .set(Mkc::LR, true)
                .set(Mkc::QPN, ANY_QPN)
                .set(Mkc::PD, pd)
                .set(Mkc::LEN, 1)
                .set(Mkc::LOG_PAGE_SIZE, 12);
        });
        Some(answer::<CreateMkeyIn>(&made.ok()?).unwrap().get(CreateMkeyOut::MKEY_INDEX))
    };
    (0..4096).filter_map(key).collect()
}

fn let_go(device: &Device, keys: Vec<u32>) {
    for key in keys {
        let destroy = |destroy: &mut ViewMut<'_, DestroyMkeyIn>| {
            _ = destroy.set(DestroyMkeyIn::MKEY_INDEX, key);
        };
        command::<DestroyMkeyIn>(device, destroy).unwrap();
    }
}

/// Memory that may stay registered forever.
fn foreign() -> NonNull<u8> {
    NonNull::from(Box::leak(vec![0_u64; BYTES / 8].into_boxed_slice())).cast()
}

#[test]
fn a_busy_registration_is_an_error() {
    let device = stepped();
    let domain = Domain::open_soft(device.clone()).unwrap();
    let register = || {
        // SAFETY: the memory is leaked, and nothing accesses it.
        unsafe { domain.register(foreign(), BYTES, Access::all()) }.unwrap()
    };
    let memory = register();
    let keys = keep_busy(&device);
    let error = memory.deregister().unwrap_err();
    assert!(matches!(error, MemoryError::Deregister { length: BYTES, .. }), "{error}");
    assert!(error.to_string().contains("for the life of the process"), "{error}");
    let_go(&device, keys);
    register().deregister().unwrap();
}

#[test]
fn memory_of_the_library_that_is_busy_is_leaked() {
    let device = stepped();
    let domain = Domain::open_soft(device.clone()).unwrap();
    for explicit in [true, false] {
        let memory = domain.allocate(BYTES, Access::all()).unwrap();
        let address = memory.address();
        let keys = keep_busy(&device);
        if explicit {
            let error = memory.deregister().unwrap_err();
            assert!(matches!(error, MemoryError::Deregister { length: BYTES, .. }), "{error}");
        } else {
            drop(memory);
        }
        // New allocations have other addresses.
        let own = Domain::open(&"self/memory".parse().unwrap()).unwrap();
        let others: Vec<_> =
            (0..64).map(|_| own.allocate(BYTES, Access::empty()).unwrap()).collect();
        assert!(others.iter().all(|other| other.address() != address));
        let_go(&device, keys);
    }
    domain.allocate(BYTES, Access::all()).unwrap().deregister().unwrap();
}

#[test]
fn a_device_that_stopped_gives_nothing_up() {
    let device = stepped();
    let domain = Domain::open_soft(device.clone()).unwrap();
    let mut worker = Worker::new();
    let side = Side::open(&mut worker, &domain, &InterfaceConfig::default());
    // SAFETY: the memory is leaked, and nothing accesses it.
    let memory = unsafe { domain.register(foreign(), BYTES, Access::all()) }.unwrap();
    let owned = domain.allocate(BYTES, Access::all()).unwrap();
    // A doorbell for a queue pair that does not exist: with `Strict::Panic` the device panics.
    for page in (0..4096).filter_map(|index| device.uar_page(index)) {
        // SAFETY: the address lies in the page and is aligned; no queue pair has this number.
        unsafe { page.as_ptr().add(BLUEFLAME_OFFSET).cast::<u64>().write_volatile(u64::MAX) };
    }
    catch_unwind(AssertUnwindSafe(|| while device.step() {})).unwrap_err();
    for memory in [memory, owned] {
        let error = memory.deregister().unwrap_err();
        assert!(matches!(error, MemoryError::Deregister { length: BYTES, .. }), "{error}");
    }
    drop(side);
}

#[test]
fn a_cache_counts_what_is_busy_for_ever() {
    let device = stepped();
    let domain = Domain::open_soft(device.clone()).unwrap();
    let mut cache = RegistrationCache::new(&domain, CacheLimits::default());
    let (start, other) = (foreign(), foreign());
    // SAFETY: the memory is leaked, and nothing accesses it.
    let cached = unsafe { cache.get(start, BYTES, Access::all()) }.unwrap();
    let keys = keep_busy(&device);
    drop(cached);
    assert_eq!(cache.invalidate(start, BYTES), 1);
    let_go(&device, keys);
    assert_eq!((cache.invalidate(start, BYTES), cache.invalidate(other, BYTES)), (1, 0));
}
