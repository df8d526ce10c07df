//! A job of one process.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use crate::{Bootstrap, Error, Runtime, check, check_rank};

/// A job of one process: values are kept in memory.
#[derive(Debug, Default)]
pub struct Single {
    values: BTreeMap<String, Vec<u8>>,
    /// Values that no fence has published yet.
    unpublished: BTreeMap<String, Vec<u8>>,
}

impl Bootstrap for Single {
    fn runtime(&self) -> Runtime {
        Runtime::Single
    }

    fn rank(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        1
    }

    fn node_peers(&self) -> Option<&[u32]> {
        Some(&[0])
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        check(key, value)?;
        if self.values.contains_key(key) {
            return Err(Error::KeyTaken { key: key.to_owned() });
        }
        match self.unpublished.entry(key.to_owned()) {
            Entry::Occupied(_) => Err(Error::KeyTaken { key: key.to_owned() }),
            Entry::Vacant(entry) => {
                entry.insert(value.to_vec());
                Ok(())
            }
        }
    }

    fn fence(&mut self, _: Duration) -> Result<(), Error> {
        self.values.append(&mut self.unpublished);
        Ok(())
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Vec<u8>, Error> {
        check_rank(rank, 1)?;
        self.values.get(key).cloned().ok_or_else(|| Error::NotFound { rank, key: key.to_owned() })
    }

    fn abort(&mut self, _: i32, _: &str) {}
}
