//! Tagged messages over real endpoints of every transport that needs no device.

mod callbacks;
mod failure;
mod hostile;
mod matched;
mod matching;
mod nodes;
mod requests;
mod schemes;
mod support;
