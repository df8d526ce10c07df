//! Macros for endpoints, which are handles to a shared state.

/// Implements the pending requests of an `Endpoint` that wraps an `Rc<State>`. `State` has
/// `posting`, `pending` and `may_wait`; its `shared` has `arbiter` and `call_attention`.
macro_rules! endpoint_state {
    () => {
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
