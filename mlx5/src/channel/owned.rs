//! An object of the device, and the memory that it uses.

use core::mem::ManuallyDrop;

use super::Object;

/// An object and its memory. Memory of an object that the device does not destroy is never used
/// again, since the device could still access it.
#[derive(Debug)]
pub(crate) struct Owned<M> {
    object: ManuallyDrop<Box<dyn Object>>,
    memory: ManuallyDrop<M>,
}

impl<M> Owned<M> {
    pub(crate) fn new(object: Box<dyn Object>, memory: M) -> Self {
        Self { object: ManuallyDrop::new(object), memory: ManuallyDrop::new(memory) }
    }

    pub(crate) fn object(&self) -> &dyn Object {
        &**self.object
    }
}

impl<M> Drop for Owned<M> {
    fn drop(&mut self) {
        // SAFETY: this is the only place that takes the object, and `drop` runs once.
        let object = unsafe { ManuallyDrop::take(&mut self.object) };
        if object.destroy().is_ok() {
            // SAFETY: this is the only place that drops the memory, and `drop` runs once.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
