//! A plan as text.

use std::fmt;

use super::{Connects, Plan, Reason};
use crate::address::transport_name;

/// The lanes, the threshold of tagged messages, then what was rejected. Pairs of different
/// transports are only counted.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [here, there] = &self.codes;
        let mut rows = vec![
            ["pair", "transport", "latency", "bandwidth", "connects to", "for"]
                .map(String::from)
                .to_vec(),
        ];
        for lane in &self.lanes {
            rows.push(vec![
                format!("{}-{}", lane.pair.here, lane.pair.there),
                lane.transport.to_string(),
                format!("{:.2} us", (lane.latency_ns + lane.overhead_ns) / 1e3),
                format!("{:.1} GB/s", lane.bandwidth / 1e9),
                match lane.connects {
                    Connects::ToInterface => "interface",
                    Connects::ToEndpoint => "endpoint",
                    Connects::Nodes => "node",
                }
                .to_owned(),
                lane.kinds.to_string(),
            ]);
        }
        if self.lanes.is_empty() {
            writeln!(f, "no lanes")?;
        } else {
            write_rows(f, &rows)?;
        }
        if let Some(costs) = self.costs() {
            writeln!(f, "tagged messages: {costs}")?;
        }
        for kind in self.missing.iter() {
            let weight =
                if self.needs.required.contains(kind) { "required" } else { "not required" };
            writeln!(f, "no lane for {kind} ({weight})")?;
        }
        let (other, refused): (Vec<_>, Vec<_>) =
            self.refusals.iter().partition(|refusal| refusal.reason == Reason::OtherTransport);
        let mut rows: Vec<Vec<String>> = Vec::new();
        for refusal in refused {
            let pair = refusal.pair;
            let name = |codes: &[u8], at: u8| {
                codes.get(usize::from(at)).map_or_else(String::new, |code| transport_name(*code))
            };
            let (own, peer) = (name(here, pair.here), name(there, pair.there));
            let transport = if own == peer { own } else { format!("{own}, {peer}") };
            let row =
                [format!("{}-{}", pair.here, pair.there), transport, refusal.reason.to_string()];
            // One line for the kinds that have the same reason.
            if let Some(known) =
                rows.iter_mut().find(|known| known[0] == row[0] && known[3] == row[2])
            {
                known[2].push(' ');
                known[2].push_str(refusal.kind.name());
            } else {
                let [pair, transport, reason] = row;
                rows.push(vec![pair, transport, refusal.kind.to_string(), reason]);
            }
        }
        if !rows.is_empty() {
            rows.insert(0, ["rejected", "transport", "for", "reason"].map(String::from).to_vec());
            writeln!(f)?;
            write_rows(f, &rows)?;
        }
        let pairs = |kind| other.iter().filter(|refusal| refusal.kind == kind).count();
        let pairs = super::Kind::ALL.into_iter().map(pairs).max().unwrap_or(0);
        if pairs > 0 {
            writeln!(f, "{pairs} pairs of different transports")?;
        }
        Ok(())
    }
}

fn write_rows(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}
