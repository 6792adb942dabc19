//! What a rank saw, and how rank 0 comes to know it.
use rma_core::{Communicator, Rank};
use std::collections::BTreeMap;

/// What one rank saw of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// Its parts of windows, each time it looked: in a sealed window, or of all after a round.
    pub looks: Vec<Vec<u8>>,
    /// Origin buffers, or fetched values, by the operation's id.
    pub results: BTreeMap<usize, Vec<u8>>,
}

impl Record {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |key: usize, content: &[u8]| {
            bytes.extend_from_slice(&(key as u64).to_le_bytes());
            bytes.extend_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend_from_slice(content);
        };
        add(self.looks.len(), &[]);
        self.looks.iter().for_each(|look| add(0, look));
        self.results.iter().for_each(|(id, result)| add(*id, result));
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Self {
        let mut take = || {
            let (head, rest) = bytes.split_at_checked(16)?;
            let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight"));
            let (key, len) = (word(0) as usize, word(8) as usize);
            let (content, rest) = rest.split_at(len);
            bytes = rest;
            Some((key, content.to_vec()))
        };
        let (looks, _) = take().expect("a record begins with the number of looks");
        let look = |_| take().expect("as many as it says").1;
        let looks = (0..looks).map(look).collect();
        Self { looks, results: core::iter::from_fn(take).collect() }
    }

    /// The records of all ranks, at rank 0. **Collective.**
    pub fn gather(&self, comm: &Communicator) -> Option<Vec<Self>> {
        let all = comm.gatherv(&self.encode(), Rank(0)).expect("the ranks are there");
        all.map(|all| all.iter().map(|bytes| Self::decode(bytes)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_travel() {
        let results = BTreeMap::from([(3, vec![1, 2]), (9, vec![])]);
        let record = Record { looks: vec![vec![7; 20], vec![]], results };
        assert_eq!(Record::decode(&record.encode()), record);
        assert_eq!(Record::decode(&Record::default().encode()), Record::default());
    }
}
