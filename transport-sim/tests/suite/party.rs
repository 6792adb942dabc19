//! Ranks that use their devices by themselves, without a core.
#![allow(unsafe_code)] // registers memory and posts transfers

use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{poll_until, send, wait_until};
use rma_core::transport::{
    Addressing, Atomic, DeviceError, Endpoint, Mapping, Messages, PostError, Posted, Purpose,
    Region, RegisterError, Registration, Remote, RemoteKey, Shared, Sleep, There, Transfer,
    WorldRank,
};
use rma_transport_sim::{DeviceConfig, NetConfig, Sim};

/// A network whose device is `device`.
pub(crate) fn net(ranks: u32, seed: u64, device: DeviceConfig) -> NetConfig {
    NetConfig { device: Some(device), ..NetConfig::new(ranks, seed) }
}

/// Memory of a rank.
pub(crate) struct Memory(Box<dyn Region>);

impl Memory {
    pub(crate) fn new(sim: &Sim, len: usize) -> Self {
        Self(sim.allocate(len, 64).unwrap())
    }

    pub(crate) fn of(sim: &Sim, bytes: &[u8]) -> Self {
        let memory = Self::new(sim, bytes.len());
        memory.set(bytes);
        memory
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.0.mapping().base
    }

    pub(crate) fn len(&self) -> usize {
        self.0.mapping().len
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        // SAFETY: the region is mapped, and other ranks and the device wait.
        unsafe { self.base().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Changes the first bytes.
    pub(crate) fn set(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len());
        // SAFETY: the region is mapped, and other ranks and the device wait.
        unsafe { self.base().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn fill(&self, byte: u8) {
        self.set(&vec![byte; self.len()]);
    }

    pub(crate) fn put(&self) -> Transfer {
        Transfer::Put { from: self.base(), len: self.len() }
    }

    pub(crate) fn get(&self) -> Transfer {
        Transfer::Get { into: self.base(), len: self.len() }
    }

    /// With these bytes as operands.
    pub(crate) fn atomic(&self, atomic: Atomic, count: usize, fetched: Option<&Self>) -> Transfer {
        let fetched = fetched.map_or(core::ptr::null_mut(), Self::base);
        Transfer::Atomic { atomic, count, operands: self.base(), fetched }
    }

    /// Registers it. It has to live longer than that, and transfers use it for less.
    pub(crate) fn register(
        &self,
        sim: &Sim,
        key: Option<RemoteKey>,
    ) -> Result<Box<dyn Registration>, RegisterError> {
        self.register_part(sim, key, 0..self.len())
    }

    /// As [`register`](Self::register), a part of it.
    pub(crate) fn register_part(
        &self,
        sim: &Sim,
        key: Option<RemoteKey>,
        part: Range<usize>,
    ) -> Result<Box<dyn Registration>, RegisterError> {
        assert!(part.end <= self.len());
        let mapping = Mapping { base: self.base().wrapping_add(part.start), len: part.len() };
        // SAFETY: the tests drop registrations before memory.
        unsafe { sim.register(mapping, key) }
    }
}

/// A rank, its contributions and one endpoint. Declare it behind the memory that it uses.
pub(crate) struct Party<'a> {
    pub(crate) sim: &'a Sim,
    pub(crate) endpoint: Arc<dyn Endpoint>,
    /// What was complete, in order.
    pub(crate) complete: Vec<(u64, Result<(), DeviceError>)>,
    contributions: Contributions,
    phase: u8,
    next: u64,
}

/// What was shared, by phase and rank.
type Contributions = BTreeMap<(u8, u32), Vec<u8>>;

fn keep(contributions: &mut Contributions, from: WorldRank, bytes: &[u8]) {
    contributions.insert((bytes[0], from.0), bytes[1..].to_vec());
}

impl<'a> Party<'a> {
    pub(crate) fn new(sim: &'a Sim) -> Self {
        let endpoint = Arc::from(sim.endpoint(Purpose::Parts).unwrap());
        let (complete, contributions) = (Vec::new(), BTreeMap::new());
        Self { sim, endpoint, complete, contributions, phase: 0, next: 0 }
    }

    /// Tells all ranks these bytes; returns what each of them told.
    pub(crate) fn share(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let Self { sim, contributions, phase, .. } = self;
        let mut sink = |from: WorldRank, bytes: &[u8]| keep(contributions, from, bytes);
        let message = [&[*phase], bytes].concat();
        (0..sim.size()).for_each(|to| send(sim, to, &message, &mut sink));
        let mut told = Vec::new();
        for from in 0..sim.size() {
            wait_until(sim, || {
                sim.poll(&mut |from, bytes| keep(contributions, from, bytes));
                contributions.contains_key(&(*phase, from))
            });
            told.push(contributions.remove(&(*phase, from)).unwrap());
        }
        self.phase += 1;
        told
    }

    pub(crate) fn meet(&mut self) {
        self.share(&[]);
    }

    /// Tells all ranks of a registration; returns where those of each begin.
    pub(crate) fn publish(&mut self, memory: &Memory, key: RemoteKey) -> Vec<There> {
        let at = match Remote::limits(self.sim).addressing {
            Addressing::Offset => 0,
            Addressing::Virtual => memory.base().addr() as u64,
        };
        let told = self.share(&[&key.0[..], &at.to_le_bytes()].concat());
        let there = |(peer, told): (u32, &Vec<u8>)| {
            let (key, at) = told.split_at(RemoteKey::LEN);
            let at = u64::from_le_bytes(at.try_into().unwrap());
            There { peer: WorldRank(peer), key: RemoteKey(key.try_into().unwrap()), at }
        };
        (0..).zip(&told).map(there).collect()
    }

    /// Posts once.
    pub(crate) fn try_post(
        &mut self,
        transfer: &Transfer,
        there: &There,
    ) -> Result<(u64, Posted), PostError> {
        self.next += 1;
        // SAFETY: the tests keep memory for longer than the endpoint. They change what is being
        // read on purpose, while the device waits, to see when it reads.
        let posted = unsafe { self.endpoint.post(self.next, transfer, there) }?;
        Ok((self.next, posted))
    }

    /// Posts as soon as there is room.
    pub(crate) fn post(&mut self, transfer: &Transfer, there: &There) -> (u64, Posted) {
        let mut done = None;
        let sim = self.sim;
        wait_until(sim, || {
            self.poll();
            match self.try_post(transfer, there) {
                Err(PostError::Again) => {}
                posted => done = Some(posted.unwrap()),
            }
            done.is_some()
        });
        done.unwrap()
    }

    pub(crate) fn poll(&mut self) -> usize {
        let Self { endpoint, complete, .. } = self;
        endpoint.poll(&mut |id, result| complete.push((id, result)))
    }

    /// How a transfer went.
    pub(crate) fn result(&self, id: u64) -> Option<Result<(), DeviceError>> {
        let mut of_it = self.complete.iter().filter(|(known, _)| *known == id);
        let (first, more) = (of_it.next(), of_it.next());
        assert_eq!(more, None, "told twice");
        first.map(|&(_, result)| result)
    }

    /// Waits for a transfer that is pending.
    pub(crate) fn wait(&mut self, id: u64) -> Result<(), DeviceError> {
        let sim = self.sim;
        wait_until(sim, || {
            self.poll();
            self.result(id).is_some()
        });
        self.result(id).unwrap()
    }

    /// Posts, and waits.
    pub(crate) fn run(&mut self, transfer: &Transfer, there: &There) -> Result<(), DeviceError> {
        match self.post(transfer, there) {
            (_, Posted::Done) => Ok(()),
            (id, Posted::Pending) => self.wait(id),
        }
    }

    /// Flushes, and waits.
    pub(crate) fn flush(&mut self, peer: u32) -> Result<(), DeviceError> {
        self.next += 1;
        let (id, sim) = (self.next, self.sim);
        let mut posted = Err(PostError::Again);
        wait_until(sim, || {
            self.poll();
            posted = self.endpoint.flush(id, WorldRank(peer));
            posted != Err(PostError::Again)
        });
        match posted {
            Ok(Posted::Done) => Ok(()),
            Ok(Posted::Pending) => self.wait(id),
            Err(PostError::Device(error)) => Err(error),
            Err(PostError::Again) => unreachable!("waited for"),
        }
    }

    /// As long as any transfer takes.
    pub(crate) fn pass_time(&mut self) {
        let Self { sim, contributions, .. } = self;
        let end = sim.now() + Duration::from_millis(5);
        poll_until(sim, end, &mut |from, bytes| keep(contributions, from, bytes));
    }
}

/// `there`, so many bytes later.
pub(crate) fn behind(there: &There, bytes: u64) -> There {
    There { at: there.at.wrapping_add(bytes), ..*there }
}
