//! Commands to the device through libmlx5 and the kernel's ABI.

mod support;

use std::io;
use std::thread;

use barewire_layouts::command;
use barewire_layouts::command::cq::{Cqc, CreateCqIn};
use barewire_layouts::command::pd::AllocPdIn;
use barewire_layouts::prm::Layout;
use barewire_verbs::dv::{Devx, Object, UarKind};
use barewire_verbs::{Access, Context, OpenError};
use support::{Pages, device};

fn devx() -> Devx {
    Context::open_devx(&device()).unwrap().devx().unwrap()
}

/// Sends a command that makes no object. Each test opens a context to itself, and so has all objects in it.
fn general(devx: &Devx, input: &[u8], output: &mut [u8]) -> io::Result<()> {
    // SAFETY: nobody else has objects in the context.
    unsafe { devx.general(input, output) }
}

/// Sends a command that makes an object.
fn create(devx: &Devx, input: &[u8], output: &mut [u8]) -> io::Result<Option<Object>> {
    // SAFETY: as in `general`.
    unsafe { devx.create(input, output) }
}

#[test]
#[ignore = "needs a device"]
fn only_a_context_that_was_opened_for_it_has_devx() {
    assert!(Context::open(&device()).unwrap().devx().is_none());
    assert!(Context::open_devx(&device()).unwrap().devx().is_some());
    let error = Context::open_devx("no-such-device").unwrap_err();
    assert!(matches!(error, OpenError::NotFound { .. }), "{error}");
}

#[test]
#[ignore = "needs a device"]
fn a_general_command_is_answered() {
    let mut answer = [0xff; 16 + 4096];
    let mut query = [0; 16];
    query[0] = 1; // QUERY_HCA_CAP
    query[7] = 1; // general, current
    general(&devx(), &query, &mut answer).unwrap();
    assert_eq!(answer[0], 0, "status");
    assert!(answer[16..].iter().any(|&byte| byte != 0), "there are capabilities");
}

#[test]
#[ignore = "needs a device"]
fn a_refusal_is_an_answer_and_silence_is_an_error() {
    let devx = devx();
    let mut answer = [0xff; 16];
    // No command has this number: the device says so, or the kernel does not let it through.
    let unknown = [0xff, 0xf0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    match general(&devx, &unknown, &mut answer) {
        Ok(()) => assert_ne!(answer[0], 0, "an unknown command has a status"),
        Err(_) => assert_eq!(answer, [0; 16], "what did not reach the device has no answer"),
    }
    // The kernel lets no object be made by a general command.
    let mut allocate = [0; 16];
    command::request::<AllocPdIn>(&mut allocate).unwrap();
    let error = general(&devx, &allocate, &mut answer).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    assert_eq!(answer, [0; 16]);
    // Too short to be a command, or to hold an answer.
    general(&devx, &[], &mut answer).unwrap_err();
    general(&devx, &allocate, &mut []).unwrap_err();
}

#[test]
#[ignore = "needs a device"]
fn objects_are_made_and_destroyed() {
    let devx = devx();
    let mut request = [0; 16];
    command::request::<AllocPdIn>(&mut request).unwrap();
    let mut answer = [0; 16];
    let mut made = Vec::new();
    for _ in 0..3 {
        let object = create(&devx, &request, &mut answer).unwrap().expect("the device has room");
        command::answer::<AllocPdIn>(&answer).unwrap();
        made.push((answer[8..12].to_vec(), object));
    }
    assert_ne!(made[0].0, made[1].0, "two domains have two numbers");
    drop(made);
    create(&devx, &request, &mut answer).unwrap().expect("there is room again");
}

#[test]
#[ignore = "needs a device"]
fn the_device_says_why_it_makes_no_object() {
    let devx = devx();
    // A completion queue without memory.
    let mut request = [0; CreateCqIn::BYTES];
    let mut fields = command::request::<CreateCqIn>(&mut request).unwrap();
    fields.nested(CreateCqIn::CQ_CONTEXT).set(Cqc::C_EQN, devx.event_queue(0).unwrap());
    let mut answer = [0; 16];
    let made = create(&devx, &request, &mut answer).unwrap();
    assert!(made.is_none());
    let error = command::answer::<CreateCqIn>(&answer).unwrap_err();
    assert!(error.status.is_ok(), "a status that is known: {error}");
}

#[test]
#[ignore = "needs a device"]
fn memory_is_registered_and_taken_back() {
    let devx = devx();
    let pages = Pages::new(3 * 4096);
    // SAFETY: nobody looks at the memory, and it is deregistered before it is freed.
    let mut umem = unsafe { devx.register_umem(pages.start(), 3 * 4096, Access::LOCAL_WRITE) }.unwrap();
    assert_ne!(umem.id(), 0);
    umem.deregister().unwrap();
    umem.deregister().expect("it is gone, and that is what is asked for");
    let nowhere = std::ptr::NonNull::<u8>::dangling();
    // SAFETY: there is no memory.
    let refused = unsafe { devx.register_umem(nowhere, 4096, Access::LOCAL_WRITE) };
    assert!(refused.is_err());
}

#[test]
#[ignore = "needs a device"]
fn pages_of_registers_are_mapped() {
    let devx = devx();
    let first = devx.allocate_uar(UarKind::BlueFlame).unwrap();
    let second = devx.allocate_uar(UarKind::BlueFlame).unwrap();
    let shared = devx.allocate_uar(UarKind::NonCached).unwrap();
    for uar in [&first, &second, &shared] {
        assert_eq!(uar.base().as_ptr().align_offset(4096), 0, "{uar:?}");
    }
    assert_ne!((first.page(), first.register()), (second.page(), second.register()));
    let offset = first.register().as_ptr() as usize - first.base().as_ptr() as usize;
    assert!((0x800..0x1000).contains(&offset), "{offset:#x}");
    assert_eq!(first.kind(), UarKind::BlueFlame);
    devx.event_queue(0).unwrap();
    assert!(devx.event_queue(u32::MAX).is_err());
}

#[test]
#[ignore = "needs a device"]
fn handles_outlive_what_they_come_from_on_any_thread() {
    let devx = devx();
    let pages = Pages::new(4096);
    // SAFETY: as above; the thread keeps the memory until it has deregistered it.
    let mut umem = unsafe { devx.register_umem(pages.start(), 4096, Access::LOCAL_WRITE) }.unwrap();
    let uar = devx.allocate_uar(UarKind::BlueFlame).unwrap();
    drop(devx);
    // The context was dropped long ago; the last handle closes it.
    thread::spawn(move || {
        umem.deregister().unwrap();
        drop((umem, uar, pages));
    })
    .join()
    .unwrap();
}
