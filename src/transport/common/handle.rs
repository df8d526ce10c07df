//! Macros for endpoints and interfaces, which are handles to a shared state.

/// Implements what every `Endpoint` that wraps an `Rc<State>` has in common: its error, counters
/// and pending requests. `State` has `posting`, `pending`, `error`, `counters` and `may_wait`; its
/// `shared` has `arbiter` and `call_attention`.
macro_rules! endpoint_state {
    () => {
        impl Endpoint {
            /// Returns why the endpoint failed, if it did.
            pub fn error(&self) -> Option<$crate::EndpointError> {
                self.0.error()
            }

            /// Returns the counters of this endpoint.
            pub fn counters(&self) -> $crate::Counters {
                self.0.counters()
            }
        }

        impl $crate::transport::common::pending::HasPending for Endpoint {
            fn pending(&self) -> &$crate::transport::common::pending::PendingQueue<Self> {
                &self.0.pending
            }

            fn post_state(&self) -> &$crate::transport::common::post_state::PostState {
                &self.0.posting
            }

            fn may_wait(&self) -> bool {
                self.0.may_wait()
            }

            fn wait(&self, request: $crate::transport::common::pending::Request<Self>) {
                self.0.shared.arbiter.add(self.clone(), request);
                self.0.shared.call_attention();
            }
        }
    };
}
pub(crate) use endpoint_state;

/// As [`endpoint_state`], for an `Endpoint` whose last handle closes it. `State` has `handles`, and
/// its `shared` has `close_endpoint`. `own` is the field that `Debug` shows.
#[cfg(feature = "verbs")]
macro_rules! endpoint_handle {
    ($name:expr, $own:ident) => {
        $crate::transport::common::handle::endpoint_state!();

        impl Endpoint {
            pub(super) fn handle(state: std::rc::Rc<State>) -> Self {
                state.handles.set(state.handles.get() + 1);
                Self(state)
            }
        }

        impl Clone for Endpoint {
            fn clone(&self) -> Self {
                Self::handle(std::rc::Rc::clone(&self.0))
            }
        }

        impl Drop for Endpoint {
            fn drop(&mut self) {
                let handles = self.0.handles.get() - 1;
                self.0.handles.set(handles);
                if handles == 0 {
                    self.0.shared.close_endpoint(&self.0);
                }
            }
        }

        impl std::fmt::Debug for Endpoint {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("Endpoint")
                    .field("transport", &$name)
                    .field(stringify!($own), &self.0.$own)
                    .finish_non_exhaustive()
            }
        }
    };
}
#[cfg(feature = "verbs")]
pub(crate) use endpoint_handle;

/// Implements the handlers of an `Interface` that wraps an `Rc<Shared>` with `handlers` and
/// `call_attention`.
macro_rules! interface_handlers {
    () => {
        impl Interface {
            /// Sets the handler of active messages with `id`, from the next progress on. It runs
            /// inside progress (of `self`, inside the send) and may post.
            ///
            /// # Errors
            /// [`HandlerError::UnknownHandlerId`](crate::HandlerError::UnknownHandlerId) if `id` is
            /// 32 or more, [`HandlerError::Closed`](crate::HandlerError::Closed).
            pub fn set_handler(
                &self,
                id: u8,
                handler: impl FnMut($crate::Message<'_>) + 'static,
            ) -> Result<(), $crate::HandlerError> {
                self.0.handlers.set(id, Box::new(handler))?;
                self.0.call_attention();
                Ok(())
            }

            /// Sets the handler that is called once for each endpoint that fails, and over `shm`
            /// for each sender that violates the protocol.
            pub fn set_error_handler(&self, handler: impl FnMut(&$crate::EndpointError) + 'static) {
                self.0.handlers.set_error(Box::new(handler));
            }

            /// Returns the number of messages that were dropped because their id has no handler or
            /// they are of another protocol.
            pub fn unhandled(&self) -> u64 {
                self.0.handlers.unhandled()
            }
        }
    };
}
pub(crate) use interface_handlers;
