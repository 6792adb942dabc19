//! The transports that this library knows, behind one type.
#![allow(unsafe_code)]

use rma_core::transport::{
    AllocateError, CrossError, Descriptor, ImportError, Limits, Mapped, Mapping, Outcome,
    PeerState, SubmitError, Ticket, Touch, Transport, WorldRank,
};
use rma_launcher::Client;
use rma_transport_shm::Shm;
use rma_transport_sim::Sim;
use std::time::Duration;

/// The transport of a job, chosen when it starts. Windows ask it at creation only; the data path
/// of near targets does not come here.
pub struct AnyTransport {
    kind: Kind,
    /// Told when this rank leaves.
    launcher: Option<Client>,
}

pub(crate) enum Kind {
    Shm(Box<Shm>),
    Sim(Sim),
}

impl AnyTransport {
    pub(crate) fn new(kind: Kind, launcher: Option<Client>) -> Self {
        Self { kind, launcher }
    }
}

/// Memory of this rank, or of a peer.
#[doc(hidden)]
pub enum Either<A, B> {
    Shm(A),
    Sim(B),
}

type Region = Either<<Shm as Transport>::Region, <Sim as Transport>::Region>;
type Import = Either<<Shm as Transport>::Import, <Sim as Transport>::Import>;

// SAFETY: forwards to a value that keeps the promise, and moving `Either` moves that value.
unsafe impl<A: Mapped, B: Mapped> Mapped for Either<A, B> {
    fn mapping(&self) -> Mapping {
        match self {
            Self::Shm(memory) => memory.mapping(),
            Self::Sim(memory) => memory.mapping(),
        }
    }
}

macro_rules! forward {
    ($self:ident, $transport:ident => $call:expr) => {
        match &$self.kind {
            Kind::Shm($transport) => $call,
            Kind::Sim($transport) => $call,
        }
    };
}

// SAFETY: every call is forwarded to the one transport inside, which keeps the promises.
unsafe impl Transport for AnyTransport {
    type Region = Region;
    type Import = Import;

    fn name(&self) -> &'static str {
        forward!(self, transport => transport.name())
    }

    fn explain(&self) -> String {
        forward!(self, transport => transport.explain())
    }

    fn rank(&self) -> WorldRank {
        forward!(self, transport => transport.rank())
    }

    fn size(&self) -> u32 {
        forward!(self, transport => transport.size())
    }

    fn limits(&self) -> Limits {
        forward!(self, transport => transport.limits())
    }

    fn allocate(&self, len: usize, align: usize) -> Result<Region, AllocateError> {
        match &self.kind {
            Kind::Shm(shm) => shm.allocate(len, align).map(Either::Shm),
            Kind::Sim(sim) => sim.allocate(len, align).map(Either::Sim),
        }
    }

    fn available(&self) -> (u64, &'static str) {
        forward!(self, transport => transport.available())
    }

    fn export(&self, region: &Region) -> Descriptor {
        match (&self.kind, region) {
            (Kind::Shm(shm), Either::Shm(region)) => shm.export(region),
            (Kind::Sim(sim), Either::Sim(region)) => sim.export(region),
            // A region of another job; importing it is refused.
            _ => Descriptor([0; Descriptor::LEN]),
        }
    }

    fn is_near(&self, peer: WorldRank) -> bool {
        forward!(self, transport => transport.is_near(peer))
    }

    fn import(&self, owner: WorldRank, descriptor: &Descriptor) -> Result<Import, ImportError> {
        match &self.kind {
            Kind::Shm(shm) => shm.import(owner, descriptor).map(Either::Shm),
            Kind::Sim(sim) => sim.import(owner, descriptor).map(Either::Sim),
        }
    }

    fn crosses(&self, peer: WorldRank) -> Result<(), CrossError> {
        forward!(self, transport => transport.crosses(peer))
    }

    fn copy_from(&self, peer: WorldRank, address: u64, bytes: &mut [u8]) -> Result<(), CrossError> {
        forward!(self, transport => transport.copy_from(peer, address, bytes))
    }

    unsafe fn copy_to(
        &self,
        peer: WorldRank,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), CrossError> {
        match &self.kind {
            // SAFETY: forwarded to the caller.
            Kind::Shm(shm) => unsafe { shm.copy_to(peer, address, bytes) },
            // SAFETY: forwarded to the caller.
            Kind::Sim(sim) => unsafe { sim.copy_to(peer, address, bytes) },
        }
    }

    fn send(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        forward!(self, transport => transport.send(to, head, body))
    }

    fn poll(&self, sink: &mut dyn FnMut(WorldRank, &[u8])) -> usize {
        forward!(self, transport => transport.poll(sink))
    }

    fn arrived(&self) -> u64 {
        forward!(self, transport => transport.arrived())
    }

    fn is_handled(&self, mark: u64) -> bool {
        forward!(self, transport => transport.is_handled(mark))
    }

    fn ring(&self, peer: WorldRank) {
        forward!(self, transport => transport.ring(peer))
    }

    fn agent(&self) -> Option<&dyn rma_core::transport::Agent> {
        forward!(self, transport => transport.agent())
    }

    fn arm(&self) -> Ticket {
        forward!(self, transport => transport.arm())
    }

    fn disarm(&self, ticket: Ticket) {
        forward!(self, transport => transport.disarm(ticket))
    }

    fn park(&self, ticket: Ticket, timeout: Option<Duration>) {
        forward!(self, transport => transport.park(ticket, timeout))
    }

    fn is_crowded(&self) -> bool {
        forward!(self, transport => transport.is_crowded())
    }

    fn relax(&self, round: u32) -> bool {
        forward!(self, transport => transport.relax(round))
    }

    #[inline]
    fn touches(&self, touch: Touch) {
        forward!(self, transport => transport.touches(touch))
    }

    fn now(&self) -> Duration {
        forward!(self, transport => transport.now())
    }

    fn peer_state(&self, peer: WorldRank) -> PeerState {
        forward!(self, transport => transport.peer_state(peer))
    }

    fn told(&self, peer: WorldRank) -> PeerState {
        forward!(self, transport => transport.told(peer))
    }

    fn failed(&self) -> Option<WorldRank> {
        forward!(self, transport => transport.failed())
    }

    fn missed(&self, peer: WorldRank) {
        if let Some(launcher) = &self.launcher {
            launcher.missed(peer.0);
        }
    }

    fn is_fork(&self) -> bool {
        forward!(self, transport => transport.is_fork())
    }

    fn depart(&self, outcome: Outcome) {
        // First, so that the launcher blames this rank and not one that fails because of it.
        if let Some(launcher) = &self.launcher {
            launcher.leave(outcome == Outcome::Failed);
        }
        forward!(self, transport => transport.depart(outcome));
    }
}
