//! A device, a protection domain and a memory key: how a program with its own driver, or a test of
//! one, uses this crate.
//!
//! Run it with `cargo run -p barewire-hca --example commands`.

use std::ptr::NonNull;

use barewire_hca::{Config, Device, UmemAccess};
use barewire_layouts::command::mkey::{ANY_QPN, AccessMode, CreateMkeyIn, CreateMkeyOut, Mkc};
use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
use barewire_layouts::command::{CommandError, Request, answer, request};
use barewire_layouts::prm::{Layout, ViewMut};

/// Runs command `R`, and returns the bytes of its output.
fn run<R: Request>(
    device: &Device,
    fill: impl FnOnce(&mut ViewMut<'_, R>),
) -> Result<Vec<u8>, CommandError> {
    let (mut input, mut output) = (vec![0; R::BYTES], vec![0; <R::Answer as Layout>::BYTES]);
    fill(&mut request::<R>(&mut input).expect("sized by the layout"));
    // SAFETY: nobody else uses the device, and `main` relies on nothing that a command can break.
    unsafe { device.execute(&input, &mut output) };
    answer::<R>(&output)?;
    Ok(output)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Address, faults and capture file come from the environment; the rest is the default: a
    // thread, UDP on a free 127.x.y.z.
    let device = Device::open(Config::from_env()?)?;
    println!(
        "device at {}; it notices doorbells by {:?}",
        device.address(),
        device.doorbell_wake()
    );

    let pd = run::<AllocPdIn>(&device, |_| ())?;
    let pd = answer::<AllocPdIn>(&pd)?.get(AllocPdOut::PD);

    let mut memory = vec![0_u8; 4096];
    let start = NonNull::new(memory.as_mut_ptr()).expect("not null");
    // SAFETY: the memory outlives the registration, which ends below, and is not accessed otherwise
    // until then.
    let umem = unsafe { device.register_umem(start, memory.len(), UmemAccess::all()) }?;
    let created = run::<CreateMkeyIn>(&device, |create| {
        create.set(CreateMkeyIn::MKEY_UMEM_VALID, true).set(CreateMkeyIn::MKEY_UMEM_ID, umem);
        create
            .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
            .set(Mkc::ACCESS_MODE_1_0, AccessMode::Mtt as u8)
            .set(Mkc::LR, true)
            .set(Mkc::RR, true)
            .set(Mkc::QPN, ANY_QPN)
            .set(Mkc::PD, pd)
            .set(Mkc::START_ADDR, start.addr().get() as u64)
            .set(Mkc::LEN, 4096);
    })?;
    let index = answer::<CreateMkeyIn>(&created)?.get(CreateMkeyOut::MKEY_INDEX);
    println!(
        "memory key {index:#x} over {} bytes; the device holds {:?}",
        memory.len(),
        device.objects()
    );

    // An invalid command: the output says why.
    let refused = run::<CreateMkeyIn>(&device, |create| {
        create.set(CreateMkeyIn::MKEY_UMEM_ID, umem + 1);
    });
    println!("a key over memory that is not registered: {}", refused.expect_err("refused"));
    run::<barewire_layouts::command::mkey::DestroyMkeyIn>(&device, |destroy| {
        destroy.set(barewire_layouts::command::mkey::DestroyMkeyIn::MKEY_INDEX, index);
    })?;
    // SAFETY: registered above.
    unsafe { device.deregister_umem(umem) }?;
    Ok(())
}
