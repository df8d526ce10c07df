//! The transport API, the same for each transport.
#![allow(clippy::trivially_copy_pass_by_ref, reason = "as the API takes keys")]

macro_rules! operations {
    ($transport:ident) => {
        pub(crate) mod $transport {
            use std::hint::black_box;
            use std::slice::from_ref;

            use barewire::capability::Flush as _;
            use barewire::transport::$transport::{Domain, Endpoint, Interface, Memory, Progress, RemoteKey};
            use barewire::{Access, Completion, InterfaceConfig, OpenError, Slice};

            use crate::{BATCH, ID, Outcome, wait};

            /// Calls `operation` so many times, between two domains.
            pub(crate) fn run(
                open: impl Fn() -> Result<Domain, OpenError>,
                operation: &str,
                count: u32,
            ) -> Outcome {
                Api::new(open)?.run(operation, count)
            }

            /// Two interfaces of the transport API.
            struct Api {
                client: Side,
                server: Side,
                memory: Memory,
                target: Memory,
                key: RemoteKey,
                completion: Completion,
            }

            struct Side {
                domain: Domain,
                interface: Interface,
                endpoint: Endpoint,
                progress: Progress,
            }

            impl Side {
                fn open(domain: Domain) -> Result<Self, OpenError> {
                    let config = InterfaceConfig { ack_timeout: 0, ..InterfaceConfig::default() };
                    let (interface, progress) = Interface::open(&domain, &config)?;
                    let endpoint = Endpoint::new(&interface)?;
                    Ok(Self { domain, interface, endpoint, progress })
                }

                fn connect(&self, peer: &Self) -> Result<(), barewire::ConnectError> {
                    self.endpoint.connect(&peer.interface.device_address(), &peer.endpoint.address())
                }
            }

            #[inline(never)]
            fn measured_put_short_8(endpoint: &Endpoint, payload: u64, remote: u64, key: &RemoteKey) -> bool {
                endpoint.put_short(&payload.to_ne_bytes(), remote, key).is_ok()
            }

            #[inline(never)]
            fn measured_put_zcopy(
                endpoint: &Endpoint,
                slice: &Slice<'_>,
                remote: u64,
                key: &RemoteKey,
                completion: &Completion,
            ) -> bool {
                endpoint.put_zcopy(from_ref(slice), remote, key, Some(completion)).is_ok()
            }

            #[inline(never)]
            fn measured_am_short_8(endpoint: &Endpoint, id: u8, header: u64, payload: u64) -> bool {
                endpoint.am_short(id, header, &payload.to_ne_bytes()).is_ok()
            }

            #[inline(never)]
            fn measured_progress(progress: &mut Progress) -> usize {
                progress.progress()
            }

            impl Api {
                fn new(
                    open: impl Fn() -> Result<Domain, OpenError>,
                ) -> Result<Self, Box<dyn std::error::Error>> {
                    let (client, server) = (Side::open(open()?)?, Side::open(open()?)?);
                    client.connect(&server)?;
                    server.connect(&client)?;
                    server.interface.set_handler(ID, |_| ())?;
                    let memory = client.domain.allocate(4096, Access::all())?;
                    let target = server.domain.allocate(4096, Access::all())?;
                    let key = client.domain.unpack_key(&target.pack_key())?;
                    // Never counted down to nothing.
                    Ok(Self { client, server, memory, target, key, completion: Completion::counter(1 << 30) })
                }

                fn run(mut self, operation: &str, count: u32) -> Outcome {
                    self.settle()?;
                    let slice = self.memory.slice(0, 4096)?;
                    for round in 0..u64::from(count) {
                        let endpoint = &self.client.endpoint;
                        let posted = match operation {
                            "put_short_8" => {
                                measured_put_short_8(endpoint, round, self.target.address(), &self.key)
                            }
                            "put_zcopy" => measured_put_zcopy(
                                endpoint,
                                &slice,
                                self.target.address(),
                                &self.key,
                                &self.completion,
                            ),
                            "am_short_8" => measured_am_short_8(endpoint, black_box(ID), round, 5),
                            "progress" => measured_progress(&mut self.client.progress) == 0,
                            _ => return Err(format!("no operation {operation}").into()),
                        };
                        if !posted {
                            return Err("refused".into());
                        }
                        if operation != "progress" && (round + 1).is_multiple_of(BATCH.into()) {
                            let (client, server) = (&mut self.client.progress, &mut self.server.progress);
                            let flushed = || {
                                let events = client.progress() + server.progress();
                                let flush = endpoint.flush(barewire::FlushMode::Local, None);
                                events == 0 && flush == Ok(barewire::Posted::Done)
                            };
                            wait("posts", flushed)?;
                        }
                    }
                    if let Some(error) = self.client.endpoint.error() {
                        return Err(error.into());
                    }
                    Ok(())
                }

                /// Nothing is left to be done for either side.
                fn settle(&mut self) -> Outcome {
                    wait("settling", || {
                        self.client.progress.progress() + self.server.progress.progress() == 0
                    })
                }
            }
        }
    };
}

operations!(rc_mlx5);
operations!(rc_verbs);
