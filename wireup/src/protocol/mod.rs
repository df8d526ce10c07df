//! The state machine that connects and closes the links of a node.
//!
//! [`Links`] holds no socket, no clock and no endpoint. Messages, results and the time go in;
//! [actions](Action) come out. A run therefore depends on its inputs only and can be repeated.
//!
//! # Driving it
//!
//! The owner of a node calls [`receive`](Links::receive) with each control message,
//! [`tick`](Links::tick) at [`next_timer`](Links::next_timer), and, after these and after its own
//! calls, takes actions from [`poll`](Links::poll) until there is none, and, as far as it has time,
//! from [`poll_stranger`](Links::poll_stranger):
//!
//! | action | what the owner does |
//! |---|---|
//! | [`Send`](Action::Send) | sends the bytes to the peer; may drop them |
//! | [`Vouch`](Action::Vouch) | sends [`Links::pass`] to the address; may drop it |
//! | [`Prepare`](Action::Prepare) | plans lanes, creates endpoints, calls [`Links::offer`] |
//! | [`Answer`](Action::Answer) | creates and connects endpoints, calls [`Links::answer`] |
//! | [`Complete`](Action::Complete) | connects its endpoints, calls [`Links::completed`] |
//! | [`Discard`](Action::Discard) | destroys the link's endpoints |
//! | [`Connected`](Action::Connected) | replaces stubs by the lanes |
//! | [`Drain`](Action::Drain) | receives that many messages, then calls [`Links::drained`] |
//! | [`Ended`](Action::Ended) | destroys what it holds for the link |
//!
//! Instead of a result, [`refuse`](Links::refuse) rejects the peer's offer, and
//! [`fail`](Links::fail) ends a link at any time. Results may be reported at once or later. A
//! result for an earlier [`Turn`] is rejected with [`CallError::Superseded`]; the owner then
//! destroys the endpoints that it made for it.
//!
//! ```
//! use barewire_wireup::protocol::{Action, Answer, Config, Lane, Links, Offer};
//! use std::time::Duration;
//!
//! let node = |uuid| Links::new(Config::new(uuid, b"address".to_vec()));
//! let mut nodes = [[1; 16], [2; 16]].map(node);
//! let link = nodes[0].open([2; 16]).unwrap();
//! nodes[0].connect(link, None, Duration::ZERO)?;
//!
//! let (mut now, mut connected) = (Duration::ZERO, 0);
//! while connected < 2 {
//!     for (here, there) in [(0, 1), (1, 0)] {
//!         while let Some(action) = nodes[here].poll().or_else(|| nodes[here].poll_stranger()) {
//!             match action {
//!                 Action::Send { message, .. } => drop(nodes[there].receive(&message, now)?),
//!                 Action::Vouch { peer, name, .. } => {
//!                     let pass = nodes[here].pass(peer, name, 0);
//!                     nodes[there].receive(&pass, now)?;
//!                 }
//!                 Action::Prepare { link, turn, .. } => {
//!                     let lane = Lane { kind: 1, endpoint: b"mine".to_vec(), ..Lane::default() };
//!                     let offer = Offer { lanes: vec![lane], ..Offer::default() };
//!                     nodes[here].offer(link, turn, &offer, now)?;
//!                 }
//!                 Action::Answer { link, turn, offer, .. } => {
//!                     let lanes = offer.lanes.iter().map(|_| Ok(b"yours".to_vec())).collect();
//!                     let answer = Answer { lanes, private: Vec::new() };
//!                     nodes[here].answer(link, turn, &answer, now)?;
//!                 }
//!                 Action::Complete { link, turn, .. } => nodes[here].completed(link, turn, now)?,
//!                 Action::Connected { .. } => connected += 1,
//!                 other => unreachable!("{other:?}"),
//!             }
//!         }
//!     }
//!     now += Duration::from_millis(1);
//!     nodes.iter_mut().for_each(|node| node.tick(now));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Connecting
//!
//! ```text
//! offering side                      answering side
//! open, connect -> Prepare
//! offer                  -- OFFER -->  Vouch
//!                         <-- PASS --  pass
//!                        -- OFFER -->  Answer
//! Complete              <-- ANSWER --  answer
//! completed: Connected   -- DONE -->   Connected
//! ```
//!
//! - An OFFER of a node that has no pass yet is not read any further: the node gets its pass, at
//!   the address in the OFFER, and repeats the OFFER with it. Later links of the two nodes use the
//!   same pass.
//! - OFFER and ANSWER are sent again after 1, 2, 4 .. 64 and then every 100 ms, with up to one half
//!   more as jitter, until the next message arrives or the link's deadline has passed. A duplicate
//!   has no effect but to repeat the response. A message that is longer than one control message is
//!   split.
//! - A link is named by the peer's uuid and a number: the n-th link that one side opens is the n-th
//!   that the other opens. If only the peer has opened it, it exists without a user until
//!   [`open`](Links::open) returns it. If all links with a peer are closed, both sides count from
//!   the beginning again.
//! - If both sides offer at once, the offer of the smaller uuid stands, and the other link answers
//!   it. In a process that connects to itself, the links 2n and 2n + 1 are the two ends, and the
//!   offer of 2n stands.
//! - If the peer refuses some lanes, `Prepare` names them and the offer is made again without them,
//!   until the owner finds no lane for messages and calls `fail`.
//! - At most [`Config::half_open`] links are half-open; others wait in order. Links that only peers
//!   requested are limited by [`Config::requests`] and [`Config::request_bytes`]; further ones are
//!   refused as [`Reason::Busy`], and so are those in line too long. A link that is refused as busy
//!   is offered again until its deadline. The limits are shared fairly between the ways on which
//!   peers are reached.
//!
//! # Closing
//!
//! CLOSE carries the number of messages that its sender sent. The peer reports
//! [`Drain`](Action::Drain), and sends CLOSED once it has received them all, so
//! [`Closed`](State::Closed) means that everything arrived. An owner that knows from the lane that
//! CLOSE has arrived calls [`delivered`](Links::delivered) and does not wait for a peer that makes
//! no progress. Both sides may close at once. CLOSED is repeated until the peer's DONE or GONE, so
//! a slot can remain for a while after [`Ended`](Action::Ended).
//!
//! # Failure
//!
//! Every phase ends at its deadline. With [`Config::liveness`], a connected link whose peer is
//! silent for one interval sends PING, again after half an interval, and fails half an interval
//! later. A message for a link that does not exist is responded to with GONE, which fails the
//! sender's link as [`Cause::Reset`]; every link has another name, so a late message never reaches
//! a later link. A process that was restarted has another uuid and is another peer.
//!
//! # Trust
//!
//! Nothing in a message is believed about its sender, and bytes are checked before they have an
//! effect.
//!
//! - Each side names a link by a random number, which it sends to the other side only. A message
//!   about a link has to state the receiver's name of it.
//! - An OFFER has to state the pass that its receiver sent to the address of the node in whose name
//!   it is: who has it receives at that address. That the address is the node's, the owner checks
//!   before it sends the pass.
//! - Memory that peers can claim is bounded, as is the number of messages of a link, and of offers
//!   of a way, that are read in a time.

mod action;
mod closing;
mod crowd;
mod id;
mod lanes;
mod line;
mod link;
mod links;
mod message;
mod pieces;
mod reason;
mod receive;
mod strangers;
mod table;
mod timers;

pub use crate::secret::Secret;
pub use action::{Action, CallError, Turn};
pub use id::{LinkId, Uuid};
pub use lanes::{Answer, Lane, MAX_LANES, Offer};
pub use link::{Side, State};
pub use links::{Config, Links};
pub use message::{HEADER, Kind, MAX_BODY, Message, MessageError, VERSION};
pub use pieces::MIN_SEGMENT;
pub use reason::{Cause, Phase, Reason};
