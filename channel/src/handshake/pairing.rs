//! Which rail of one end is connected to which rail of the other. Both ends compute it from both
//! lists, and compare the results.

use std::fmt::Write as _;

use crate::rails::RailInfo;

/// Two connected rails, by their numbers in the lists of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partners {
    /// Number of the rail at the end that connects.
    pub connector: u8,
    /// Number of the rail at the end that listens.
    pub listener: u8,
}

/// The rails of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing(Vec<Partners>);

impl From<Vec<Partners>> for Pairing {
    fn from(partners: Vec<Partners>) -> Self {
        Self(partners)
    }
}

/// Why the rails of two ends do not go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: the end that connects has {connector}; the end that listens has {listener}")]
pub struct PairingError {
    /// What is wrong.
    pub what: String,
    /// The rails of the end that connects.
    pub connector: String,
    /// The rails of the end that listens.
    pub listener: String,
}

impl PairingError {
    pub(super) fn new(
        what: impl Into<String>,
        connector: &[RailInfo],
        listener: &[RailInfo],
    ) -> Self {
        let (connector, listener) = (list(connector), list(listener));
        Self { what: what.into(), connector, listener }
    }
}

fn list(rails: &[RailInfo]) -> String {
    let mut text = String::new();
    for (at, rail) in rails.iter().enumerate() {
        let separator = if at == 0 { "" } else { ", " };
        // Writing to a string never fails.
        let _ = write!(text, "{separator}{rail}");
    }
    text
}

impl Pairing {
    /// Pairs the rails: each rail of the end that connects, in order, with the first free rail of
    /// the other that it [reaches](RailInfo::reaches). Rails that are not on standby come first,
    /// and standby rails get partners that are on standby as well, if they can. Where that leaves a
    /// rail of the end with fewer rails without a partner, others give up theirs for another one if
    /// that helps, so that as many rails as possible are used. Unless `partial` is set, all rails
    /// of the end with fewer rails must have partners.
    ///
    /// # Errors
    /// [`PairingError`], with both lists.
    pub fn compute(
        connector: &[RailInfo],
        listener: &[RailInfo],
        partial: bool,
    ) -> Result<Self, PairingError> {
        // Augmenting paths of a bipartite matching.
        let mut partner_of: Vec<Option<usize>> = vec![None; listener.len()];
        let mut order: Vec<usize> = (0..connector.len()).collect();
        order.sort_by_key(|from| connector[*from].is_standby);
        for from in order {
            let mut visited = vec![false; listener.len()];
            augment(from, connector, listener, &mut partner_of, &mut visited);
        }
        let mut partners: Vec<_> = partner_of
            .iter()
            .enumerate()
            .filter_map(|(to, from)| {
                from.map(|from| Partners { connector: from as u8, listener: to as u8 })
            })
            .collect();
        partners.sort_by_key(|pair| pair.connector);
        let wanted = connector.len().min(listener.len());
        if partners.is_empty() || (partners.len() < wanted && !partial) {
            let what = format!(
                "only {} of {wanted} rails reach a rail of the other end (same link layer and subnet)",
                partners.len()
            );
            return Err(PairingError::new(what, connector, listener));
        }
        let is_standby = |pair: &Partners| {
            let (from, to) = (usize::from(pair.connector), usize::from(pair.listener));
            connector[from].is_standby || listener[to].is_standby
        };
        if partners.iter().all(is_standby) {
            let what = "every rail is on standby at one of the ends";
            return Err(PairingError::new(what, connector, listener));
        }
        Ok(Self(partners))
    }

    /// The pairs, in the order of the end that connects.
    pub fn partners(&self) -> &[Partners] {
        &self.0
    }
}

/// Finds a partner for rail `from`. Returns whether there is one.
fn augment(
    from: usize,
    connector: &[RailInfo],
    listener: &[RailInfo],
    partner_of: &mut [Option<usize>],
    visited: &mut [bool],
) -> bool {
    // Free rails first, in order, and among them those that are on standby if this one is.
    for (displaces, differs) in [(false, false), (false, true), (true, false), (true, true)] {
        for to in 0..listener.len() {
            let partner = partner_of[to];
            if visited[to]
                || partner.is_some() != displaces
                || (listener[to].is_standby != connector[from].is_standby) != differs
                || !connector[from].reaches(&listener[to])
            {
                continue;
            }
            visited[to] = true;
            let is_free = partner
                .is_none_or(|other| augment(other, connector, listener, partner_of, visited));
            if is_free {
                partner_of[to] = Some(from);
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use barewire_layouts::command::capability::PortType;

    use super::super::message::tests::rail;
    use super::*;

    fn on(name: &str, subnet: u8) -> RailInfo {
        let mut gid = [0; 16];
        (gid[0], gid[15]) = (subnet, name.len() as u8);
        rail(name, gid, PortType::Ethernet)
    }

    fn numbers(pairing: &Pairing) -> Vec<(u8, u8)> {
        pairing.partners().iter().map(|pair| (pair.connector, pair.listener)).collect()
    }

    #[test]
    fn rails_are_paired_by_subnet_not_by_position() {
        let ours = [on("a", 1), on("b", 2), on("c", 3)];
        let theirs = [on("x", 3), on("y", 1), on("z", 2)];
        let pairing = Pairing::compute(&ours, &theirs, false).unwrap();
        assert_eq!(numbers(&pairing), [(0, 1), (1, 2), (2, 0)]);
        let back = Pairing::compute(&theirs, &ours, false).unwrap();
        assert_eq!(numbers(&back), [(0, 2), (1, 0), (2, 1)]);
        let same = [on("a", 1), on("b", 1)];
        assert_eq!(numbers(&Pairing::compute(&same, &same, false).unwrap()), [(0, 0), (1, 1)]);
    }

    #[test]
    fn a_rail_with_several_choices_leaves_another_its_only_one() {
        let mut routed = on("a", 1);
        routed.subnet_bits = 0;
        let ours = [routed, on("b", 1)];
        let theirs = [on("x", 1), on("y", 2)];
        let pairing = Pairing::compute(&ours, &theirs, false).unwrap();
        assert_eq!(numbers(&pairing), [(0, 1), (1, 0)]);
    }

    #[test]
    fn standby_rails_get_each_other() {
        let standby = |name, subnet| RailInfo { is_standby: true, ..on(name, subnet) };
        let ours = [on("a", 1), standby("b", 1)];
        let theirs = [standby("x", 1), on("y", 1)];
        let pairing = Pairing::compute(&ours, &theirs, false).unwrap();
        assert_eq!(numbers(&pairing), [(0, 1), (1, 0)]);
        // The only rail of the other end goes to the one that is not on standby.
        let pairing = Pairing::compute(&[standby("a", 1), on("b", 1)], &theirs[1..], false);
        assert_eq!(numbers(&pairing.unwrap()), [(1, 0)]);
        // Where the subnets leave no choice, one end is enough.
        let pairing =
            Pairing::compute(&[on("a", 1), standby("b", 2)], &[on("x", 1), on("y", 2)], false);
        assert_eq!(numbers(&pairing.unwrap()), [(0, 0), (1, 1)]);
        let words = Pairing::compute(&ours[..1], &theirs[..1], false).unwrap_err().to_string();
        assert!(words.contains("standby"), "{words}");
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_both_lists() {
        let ours = [on("a", 1), on("b", 2)];
        let theirs = [on("x", 1), on("y", 9)];
        let error = Pairing::compute(&ours, &theirs, false).unwrap_err();
        let words = error.to_string();
        assert!(words.contains("1 of 2"), "{words}");
        for name in ["a (", "b (", "x (", "y ("] {
            assert!(words.contains(name), "{words}");
        }
        assert_eq!(numbers(&Pairing::compute(&ours, &theirs, true).unwrap()), [(0, 0)]);
        let none = [on("z", 7)];
        Pairing::compute(&ours, &none, true).unwrap_err();
        let infiniband = [RailInfo { port_type: PortType::InfiniBand, ..on("a", 1) }];
        Pairing::compute(&ours, &infiniband, true).unwrap_err();
        // One rail at the other end needs one partner only.
        assert_eq!(numbers(&Pairing::compute(&ours, &[on("y", 2)], false).unwrap()), [(1, 0)]);
    }
}
