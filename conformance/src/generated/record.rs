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
    /// What became of the operations that were tried, by their ids.
    pub tried: BTreeMap<usize, Tried>,
}

/// What became of an operation that was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// How often it was refused.
    pub refused: u8,
    /// How it was issued, if it was.
    pub issued: Option<Issued>,
}

/// In which form an operation that was tried was issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Issued {
    /// In the one that does not wait.
    Trying,
    /// In the one that waits, after it was refused.
    Waiting,
}

impl Tried {
    fn encode(self) -> [u8; 2] {
        let issued = match self.issued {
            None => 0,
            Some(Issued::Trying) => 1,
            Some(Issued::Waiting) => 2,
        };
        [self.refused, issued]
    }

    fn decode(bytes: &[u8]) -> Self {
        let issued = match bytes[1] {
            0 => None,
            1 => Some(Issued::Trying),
            _ => Some(Issued::Waiting),
        };
        Self { refused: bytes[0], issued }
    }
}

impl Record {
    /// Whether that operation was tried, refused and not issued.
    pub fn is_left(&self, id: usize) -> bool {
        self.tried.get(&id).is_some_and(|tried| tried.issued.is_none())
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |key: usize, content: &[u8]| {
            bytes.extend_from_slice(&(key as u64).to_le_bytes());
            bytes.extend_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend_from_slice(content);
        };
        add(self.looks.len(), &[]);
        self.looks.iter().for_each(|look| add(0, look));
        add(self.tried.len(), &[]);
        self.tried.iter().for_each(|(id, tried)| add(*id, &tried.encode()));
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
        let mut list = || {
            let (count, _) = take().expect("a list begins with its length");
            (0..count).map(|_| take().expect("as many as it says")).collect::<Vec<_>>()
        };
        let looks = list().into_iter().map(|(_, look)| look).collect();
        let tried = list().into_iter().map(|(id, bytes)| (id, Tried::decode(&bytes))).collect();
        Self { looks, results: core::iter::from_fn(take).collect(), tried }
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
        let tried = [None, Some(Issued::Trying), Some(Issued::Waiting)].into_iter().enumerate();
        let tried = tried.map(|(id, issued)| (id, Tried { refused: 200 + id as u8, issued }));
        let looks = vec![vec![7; 20], vec![]];
        let record = Record { looks, results, tried: tried.collect() };
        assert_eq!(Record::decode(&record.encode()), record);
        assert_eq!(Record::decode(&Record::default().encode()), Record::default());
    }
}
