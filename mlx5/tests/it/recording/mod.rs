//! A command channel that records its commands.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::channel::{CommandChannel, Object, Uar, Umem};
use barewire_mlx5::layouts::command::{InHeader, Request};
use barewire_mlx5::layouts::prm::View;
use barewire_mlx5::{Error, hca};

/// The commands in the order of sending, and the bytes of each registration of memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands(Arc<Mutex<Vec<Vec<u8>>>>, Arc<Mutex<Vec<usize>>>);

impl Commands {
    /// The last command of layout `R`.
    pub(crate) fn last<R: Request>(&self) -> Vec<u8> {
        let commands = self.0.lock().unwrap();
        let is_wanted = |bytes: &&Vec<u8>| {
            View::<InHeader>::new(bytes)
                .is_some_and(|header| header.get(InHeader::OPCODE) == Ok(R::OPCODE))
        };
        commands.iter().rfind(is_wanted).cloned().expect("such a command was sent")
    }

    /// The number of commands.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// The bytes of each registration of memory.
    pub(crate) fn registrations(&self) -> Vec<usize> {
        self.1.lock().unwrap().clone()
    }

    fn keep(&self, input: &[u8]) {
        self.0.lock().unwrap().push(input.to_vec());
    }
}

/// The channel to a software HCA, recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    soft: Soft,
    commands: Commands,
}

impl Recording {
    pub(crate) fn new() -> (Self, Commands) {
        Self::over(hca::Device::open(hca::Config::default()).unwrap())
    }

    pub(crate) fn over(device: hca::Device) -> (Self, Commands) {
        let commands = Commands::default();
        (Self { soft: Soft::new(device), commands: commands.clone() }, commands)
    }
}

#[derive(Debug)]
struct Recorded {
    object: Box<dyn Object>,
    commands: Commands,
}

impl Object for Recorded {
    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        self.commands.keep(input);
        // SAFETY: this function has the contract of the inner `execute`.
        unsafe { self.object.execute(input, output) }
    }

    fn destroy(self: Box<Self>) -> Result<(), Error> {
        self.object.destroy()
    }
}

// SAFETY: every method forwards to a channel that satisfies the contract.
unsafe impl CommandChannel for Recording {
    fn maps_write_combining(&self) -> bool {
        self.soft.maps_write_combining()
    }

    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        self.commands.keep(input);
        // SAFETY: this function has the contract of the inner `execute`.
        unsafe { self.soft.execute(input, output) }
    }

    unsafe fn create(&self, input: &[u8], output: &mut [u8]) -> Result<Box<dyn Object>, Error> {
        self.commands.keep(input);
        // SAFETY: this function has the contract of the inner `create`.
        let object = unsafe { self.soft.create(input, output) }?;
        Ok(Box::new(Recorded { object, commands: self.commands.clone() }))
    }

    fn allocate_uar(&self) -> Result<Box<dyn Uar>, Error> {
        self.soft.allocate_uar()
    }

    fn check_pin(&self, start: NonNull<u8>, length: usize) -> Result<(), Error> {
        self.soft.check_pin(start, length)
    }

    unsafe fn register_umem(
        &self,
        start: NonNull<u8>,
        length: usize,
    ) -> Result<Box<dyn Umem>, Error> {
        self.commands.1.lock().unwrap().push(length);
        // SAFETY: this function has the contract of the inner `register_umem`.
        unsafe { self.soft.register_umem(start, length) }
    }
}
