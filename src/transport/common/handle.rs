//! Handles: endpoints, of which several name one state, and the last one to go closes it; interfaces, and their handlers.

/// What is the same for every `Endpoint` that is a handle to an `Rc<State>`: why it failed, requests that wait, cloning, dropping and showing it.
/// `State` has `gate`, `pending`, `handles`, `error` and `may_wait`; its `shared` has `arbiter`, `call_attention` and `close_endpoint`. `own` is the
/// field that is shown.
#[cfg(feature = "verbs")]
macro_rules! endpoint_handle {
    ($name:expr, $own:ident) => {
        impl Endpoint {
            fn handle(state: std::rc::Rc<State>) -> Self {
                state.handles.set(state.handles.get() + 1);
                Self(state)
            }

            /// Why the endpoint failed, if it did.
            pub fn error(&self) -> Option<$crate::EndpointError> {
                self.0.error()
            }

            /// What this endpoint did so far.
            pub fn counters(&self) -> $crate::Counters {
                self.0.counters()
            }

            /// Queues a request that progress runs, in order, when resources come back.
            ///
            /// # Errors
            /// [`Busy`](crate::Busy) if a post would not answer [`PostError::NoResource`](crate::PostError::NoResource) now.
            pub fn pending_add(
                &self,
                request: impl FnMut(&Self) -> $crate::PendingResult + 'static,
            ) -> Result<(), $crate::Busy> {
                if !self.0.may_wait() {
                    return Err($crate::Busy);
                }
                self.0.shared.arbiter.add(self.clone(), Box::new(request));
                self.0.shared.call_attention();
                Ok(())
            }

            /// Drops every waiting request, calling `purged` once for each, in order.
            pub fn pending_purge(&self, purged: impl FnMut()) {
                $crate::transport::common::pending::HasPending::purge(self, purged);
            }
        }

        impl $crate::transport::common::pending::HasPending for Endpoint {
            fn pending(&self) -> &$crate::transport::common::pending::PendingQueue<Self> {
                &self.0.pending
            }

            fn gate(&self) -> &$crate::transport::common::gate::Gate {
                &self.0.gate
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

/// The handlers of an `Interface` that is a handle to an `Rc<Shared>` with `handlers` and `call_attention`.
macro_rules! interface_handlers {
    () => {
        impl Interface {
            /// Sets the handler of active messages `id`, replacing an older one with the next progress. It runs inside progress and may post.
            ///
            /// # Errors
            /// [`HandlerError::UnknownHandlerId`](crate::HandlerError::UnknownHandlerId) if `id` is 32 or more,
            /// [`HandlerError::Closed`](crate::HandlerError::Closed).
            pub fn set_handler(
                &self,
                id: u8,
                handler: impl FnMut($crate::Message<'_>) + 'static,
            ) -> Result<(), $crate::HandlerError> {
                self.0.handlers.set(id, Box::new(handler))?;
                self.0.call_attention();
                Ok(())
            }

            /// Sets the handler that is called once for each endpoint that fails, and over `shm` for each sender that breaks the rules.
            pub fn set_error_handler(&self, handler: impl FnMut(&$crate::EndpointError) + 'static) {
                self.0.handlers.set_error(Box::new(handler));
            }

            /// Messages that came for an id without handler, or that are none of this transport's, and were dropped.
            pub fn unhandled(&self) -> u64 {
                self.0.handlers.unhandled()
            }
        }
    };
}
pub(crate) use interface_handlers;
