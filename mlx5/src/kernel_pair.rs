//! A queue pair that the kernel sets up. What the kernel chooses for it shows what our own queue
//! pairs of the same port should have.

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::QueryQpOut;
use barewire_verbs::dv::Devx;
use barewire_verbs::{
    Access, Capacity, CompletionQueue, Context, Initialize, ProtectionDomain, QueuePair,
    QueuePairKind, QueuePairOptions, ReadyToReceive, ReadyToSend,
};

use crate::address::RcAddress;
use crate::backend::commands;
use crate::channel::Object;
use crate::error::{Error, system};
use crate::readback;
use crate::route;
use crate::sequence;
use crate::values::{Port, RcPath};

/// A queue pair in the init state.
#[derive(Debug)]
pub(crate) struct KernelPair {
    pair: QueuePair,
    devx: Devx,
}

impl KernelPair {
    pub(crate) fn new(
        context: &Context,
        domain: &ProtectionDomain,
        devx: &Devx,
        port: &Port,
    ) -> Result<Self, Error> {
        let failed = |error| system("creating a queue pair of the kernel", error);
        let queue = CompletionQueue::new(context, 1).map_err(failed)?;
        let options = QueuePairOptions {
            kind: QueuePairKind::ReliableConnection,
            send_queue: queue.reference(),
            receive_queue: queue.reference(),
            shared_receive: None,
            capacity: Capacity {
                sends: 1,
                receives: 1,
                send_elements: 1,
                receive_elements: 1,
                inline: 0,
            },
            signal_all: false,
        };
        let pair = QueuePair::by_list(domain, &options).map_err(failed)?;
        let values = Initialize {
            port: port.number,
            partition_index: port.partition_index,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            queue_key: 0,
        };
        pair.initialize(&values).map_err(failed)?;
        Ok(Self { pair, devx: devx.clone() })
    }

    /// Its address on `port`.
    pub(crate) fn address(&self, port: &Port) -> RcAddress {
        let psn = sequence::start();
        RcAddress { port: port.address, number: self.pair.number(), psn, mtu: port.mtu }
    }

    /// Connects the queue pair to itself, with those values of `path` that verbs take.
    pub(crate) fn connect(
        &self,
        (port, port_type): (&Port, PortType),
        path: &RcPath,
    ) -> Result<(), Error> {
        let failed = |error| system("connecting a queue pair of the kernel", error);
        let receive = ReadyToReceive {
            mtu: path.mtu.bytes().min(port.mtu.bytes()) as u32,
            peer: self.pair.number(),
            packet_sequence_number: path.receive_psn,
            responder_resources: 1 << path.log_max_reads,
            rnr_timer: path.min_rnr_nak,
            route: route::to(port, port_type, &path.remote),
        };
        let send = ReadyToSend {
            packet_sequence_number: path.send_psn.unwrap_or(path.receive_psn),
            timeout: path.ack_timeout,
            retries: path.retry_count,
            rnr_retries: path.rnr_retry,
            initiator_depth: 1 << path.log_max_reads,
        };
        self.pair
            .ready_to_receive(Some(&receive))
            .and_then(|()| self.pair.ready_to_send(&send))
            .map_err(failed)
    }

    /// Queries the queue pair's context, as
    /// [`RcQueuePair::read_back`](crate::RcQueuePair::read_back).
    pub(crate) fn read_back(&self) -> Result<Vec<(&'static str, u64)>, Error> {
        let answer = commands::query_pair(self, self.pair.number())?;
        Ok(readback::fields(answer.fields().nested(QueryQpOut::QPC)))
    }
}

impl Object for KernelPair {
    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        self.devx
            .query_pair(&self.pair, input, output)
            .map_err(|source| Error::System { operation: "querying a queue pair", source })
    }

    fn destroy(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}
