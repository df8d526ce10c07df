//! Commands to the device through libmlx5 and the kernel's interface.

use crate::support;

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

/// Executes a command that does not create an object. Each test opens its own context, so that all
/// objects in it are the test's.
fn general(devx: &Devx, input: &[u8], output: &mut [u8]) -> io::Result<()> {
    // SAFETY: all objects of the context belong to this test, so no command can affect another
    // user's memory.
    unsafe { devx.general(input, output) }
}

/// Executes a command that creates an object.
fn create(devx: &Devx, input: &[u8], output: &mut [u8]) -> io::Result<Option<Object>> {
    // SAFETY: all objects of the context belong to this test, so no command can affect another
    // user's memory.
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
    let mut output = [0xff; 16 + 4096];
    let mut query = [0; 16];
    query[0] = 1; // QUERY_HCA_CAP
    query[7] = 1; // general, current
    general(&devx(), &query, &mut output).unwrap();
    assert_eq!(output[0], 0, "status");
    assert!(output[16..].iter().any(|&byte| byte != 0), "no capabilities were returned");
}

#[test]
#[ignore = "needs a device"]
fn a_refusal_is_an_answer_and_silence_is_an_error() {
    let devx = devx();
    let mut output = [0xff; 16];
    // An unknown opcode: either the device reports an error, or the kernel rejects the command.
    let unknown = [0xff, 0xf0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    match general(&devx, &unknown, &mut output) {
        Ok(()) => assert_ne!(output[0], 0, "an unknown command must have a bad status"),
        Err(_) => {
            assert_eq!(
                output, [0; 16],
                "a command that did not reach the device must have no response"
            );
        }
    }
    // The kernel rejects general commands that create objects.
    let mut allocate = [0; 16];
    command::request::<AllocPdIn>(&mut allocate).unwrap();
    let error = general(&devx, &allocate, &mut output).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    assert_eq!(output, [0; 16]);
    // Buffers that are too short for a command or a response.
    general(&devx, &[], &mut output).unwrap_err();
    general(&devx, &allocate, &mut []).unwrap_err();
}

#[test]
#[ignore = "needs a device"]
fn objects_are_made_and_destroyed() {
    let devx = devx();
    let mut request = [0; 16];
    command::request::<AllocPdIn>(&mut request).unwrap();
    let mut output = [0; 16];
    let mut made = Vec::new();
    for _ in 0..3 {
        let object =
            create(&devx, &request, &mut output).unwrap().expect("the device refused the object");
        command::answer::<AllocPdIn>(&output).unwrap();
        made.push((output[8..12].to_vec(), object));
    }
    assert_ne!(made[0].0, made[1].0, "the domains must have different numbers");
    drop(made);
    create(&devx, &request, &mut output)
        .unwrap()
        .expect("the device refused the object after one was destroyed");
}

#[test]
#[ignore = "needs a device"]
fn the_device_says_why_it_makes_no_object() {
    let devx = devx();
    // A completion queue without memory.
    let mut request = [0; CreateCqIn::BYTES];
    let mut fields = command::request::<CreateCqIn>(&mut request).unwrap();
    fields.nested(CreateCqIn::CQ_CONTEXT).set(Cqc::C_EQN, devx.event_queue(0).unwrap());
    let mut output = [0; 16];
    let made = create(&devx, &request, &mut output).unwrap();
    assert!(made.is_none());
    let error = command::answer::<CreateCqIn>(&output).unwrap_err();
    assert!(error.status.is_ok(), "the status must be a known one: {error}");
}

#[test]
#[ignore = "needs a device"]
fn memory_is_registered_and_taken_back() {
    let devx = devx();
    let pages = Pages::new(3 * 4096);
    // SAFETY: this process does not access the memory, which is deregistered before it is freed.
    let mut umem =
        unsafe { devx.register_umem(pages.start(), 3 * 4096, Access::LOCAL_WRITE) }.unwrap();
    assert_ne!(umem.id(), 0);
    umem.deregister().unwrap();
    umem.deregister().expect("deregistering again must succeed");
    let nowhere = std::ptr::NonNull::<u8>::dangling();
    // SAFETY: the page is not mapped, so there is nothing to access; the registration fails.
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
    // SAFETY: this process does not access the memory, which the thread owns until it has
    // deregistered it.
    let mut umem = unsafe { devx.register_umem(pages.start(), 4096, Access::LOCAL_WRITE) }.unwrap();
    let uar = devx.allocate_uar(UarKind::BlueFlame).unwrap();
    drop(devx);
    // All other handles to the context were dropped; the last one closes it.
    thread::spawn(move || {
        umem.deregister().unwrap();
        drop((umem, uar, pages));
    })
    .join()
    .unwrap();
}
