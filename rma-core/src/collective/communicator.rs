//! Groups of ranks that communicate, and how to make smaller ones.
use super::contributions::{Contributions, Current};
use super::lanes::Lanes;
use super::near::Near;
use super::node::Node;
use super::turn::{Sequence, Turn};
use crate::cartesian::{Cartesian, CartesianError};
use crate::engine::{Cause, Engine, On, Wait, WaitError, grant};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::object::{NO_OBJECT, RUNTIME, TIMED};
use crate::rank::{Rank, WorldRank};
use crate::transport::{About, Beneath};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

/// An ordered group of ranks with its own space of messages (MPI 4.1, chapter 7).
///
/// Cloning makes another handle to the same communicator, without communication;
/// [`dup`](Self::dup) makes another communicator. Handles may be used by several threads, but all
/// ranks must call the collective operations of one communicator in the same order.
pub struct Communicator {
    pub(crate) inner: Arc<Inner>,
}

impl Clone for Communicator {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

pub(crate) struct Inner {
    pub(crate) engine: Arc<Engine>,
    pub(crate) contributions: Arc<Contributions>,
    pub(crate) id: u64,
    pub(crate) group: Group,
    pub(crate) rank: Rank,
    pub(crate) current: Current,
    pub(super) sequence: Sequence,
    /// The first operation that failed here when others may have heard of it. They may have passed
    /// it, so this rank takes part in no later one: it would be taken for another.
    lost: OnceLock<&'static str>,
    /// The thread that is in code of the user, in the middle of an operation.
    caller: Mutex<Option<ThreadId>>,
    pub(crate) node: Node,
    near: Option<Near>,
    pub(super) lanes: Lanes,
    /// The same ranks, with messages that no operation of the user can be taken for: what the
    /// runtime is told there, it relies on. `None` for what belongs to the runtime as a whole.
    runtime: Option<Arc<Self>>,
    /// As `runtime`, for barriers with deadlines of their own: other operations come and go while
    /// one is under way.
    timed: Option<Arc<Self>>,
    /// It is a window's.
    of_window: bool,
}

/// What communicators of one rank share.
type Roots<'a> = (&'a Arc<Engine>, &'a Arc<Contributions>);

/// What ranks agree on to make a copy of a communicator; other kinds are those of windows.
const DUP: u64 = 128;

impl Communicator {
    pub(crate) fn world(
        engine: &Arc<Engine>,
        contributions: &Arc<Contributions>,
    ) -> Result<Self, CollectiveError> {
        let group = Group::world(engine.transport.job.size);
        Self::assemble(Inner::users(
            (engine, contributions),
            0,
            group,
            Rank(engine.transport.job.rank.0),
        ))
    }

    fn assemble(mut inner: Inner) -> Result<Self, CollectiveError> {
        inner.set_node(Node::near(&inner));
        // Others wait for what this rank would have told them.
        inner.near = Near::new(&inner).inspect_err(|error| {
            // Why a wait ended, the others know or find out as this rank did.
            if matches!(error, CollectiveError::Allocate(_) | CollectiveError::Import(_)) {
                inner.give_up();
            }
        })?;
        let mut comm = Self { inner: Arc::new(inner) };
        let node = comm.inner.node.clone().with_leaders(&comm.runtime("making a communicator")?)?;
        if let Some(inner) = Arc::get_mut(&mut comm.inner) {
            inner.set_node(node);
        }
        // No rank may leave before its peers have mapped its words.
        comm.barrier()?;
        if let Some(near) = comm.near() {
            near.set_made();
        }
        Ok(comm)
    }

    /// The ranks of this communicator with a space of messages named for `id`, for a window's own
    /// use: the user's limits are not for what is told there. S-A7
    pub(crate) fn internal(&self, id: u64) -> Self {
        let Inner { engine, contributions, group, rank, node, .. } = &*self.inner;
        let (id, roots) = (id | RUNTIME, (engine, contributions));
        let mut inner = Inner::plain(roots, id, group.clone(), *rank);
        inner.node = node.clone();
        inner.of_window = true;
        Self { inner: Arc::new(inner) }
    }

    /// This process, in this communicator.
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.inner.group.size()
    }

    /// All ranks in order.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = Rank> + use<> {
        (0..self.size()).map(Rank)
    }

    /// As [`Universe::progress`](crate::Universe::progress), of the whole rank.
    pub fn progress(&self) -> usize {
        self.inner.engine.progress_in_passing()
    }

    /// The processes of this communicator.
    pub fn group(&self) -> &Group {
        &self.inner.group
    }

    /// The ranks taken for a grid of `dims[0]` x `dims[1]` x … of them, in row-major order: that of
    /// the last dimension varies fastest. Those with `periodic` set are rings. No communication,
    /// and no other order of ranks.
    ///
    /// # Errors
    ///
    /// [`CartesianError::WrongSize`] unless there is a place for each rank, and for no more;
    /// [`Cartesian::balanced`] finds such dimensions.
    ///
    /// MPI 4.1, section 8.5.1 (`MPI_CART_CREATE`). A grid of fewer ranks is that of a communicator
    /// that [`split`](Self::split) makes.
    pub fn cartesian<const N: usize>(
        &self,
        dims: [u32; N],
        periodic: [bool; N],
    ) -> Result<Cartesian<N>, CartesianError> {
        Cartesian::new(self.rank(), self.size(), dims, periodic)
    }

    /// Another communicator of the same ranks. **Collective.**
    pub fn dup(&self) -> Result<Self, CollectiveError> {
        let Inner { engine, contributions, group, rank, .. } = &*self.inner;
        let mine = [u64::from(*rank), engine.new_object_id()];
        // That of the first rank.
        let [_, id] = self.agree(DUP, mine, |a, b| a.min(b))?;
        if id == NO_OBJECT {
            return Err(CollectiveError::TooManyObjects { what: "dup" });
        }
        let inner = Inner::users((engine, contributions), id, group.clone(), *rank);
        // No message of it may come where it is not known.
        self.meet()?;
        Self::assemble(inner)
    }

    /// One communicator for each `color`, its ranks ordered by `key` and then by rank here; `None`
    /// for a rank that gives no color. **Collective.**
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, CollectiveError> {
        let mine = [u64::from(color.is_some()), color.map_or(0, u64::from), key.cast_unsigned()];
        let runtime = self.runtime("split")?;
        let all = runtime.gather(&mine, Rank(0))?;
        let shares = all.map(|all| self.deal(&all));
        let what = "split";
        let share = runtime.scatter_bytes(what, shares)?;
        let Some((head, group)) = share.split_first_chunk::<12>() else {
            runtime.barrier()?;
            return Ok(None);
        };
        let malformed = CollectiveError::Malformed { what, from: Rank(0) };
        let (id, rank) = head.split_at(8);
        let id = u64::from_le_bytes(id.try_into().map_err(|_| malformed)?);
        let rank = Rank(u32::from_le_bytes(rank.try_into().map_err(|_| malformed)?));
        if id == NO_OBJECT {
            // Other colors may have one.
            runtime.barrier()?;
            return Err(CollectiveError::TooManyObjects { what });
        }
        let engine = &self.inner.engine;
        let group = Group::from_wire(group, engine.transport.job.size).ok_or(malformed)?;
        if group.world_rank(rank) != Some(engine.transport.job.rank) {
            return Err(malformed);
        }
        let inner = Inner::users((engine, &self.inner.contributions), id, group, rank);
        // As in `dup`.
        runtime.barrier()?;
        Self::assemble(inner).map(Some)
    }

    /// One communicator for each set of ranks that reach each other's memory by load and store,
    /// ordered by `key` and then by rank here. **Collective.**
    pub fn split_by_node(&self, key: i64) -> Result<Self, CollectiveError> {
        let transport = &self.inner.engine.transport;
        // The lowest rank that is near names the node; one that is near no rank is its own.
        let node = self.ranks().find(|rank| transport.shared.is_near(self.world_rank(*rank)));
        let node = node.unwrap_or(self.rank());
        let split = self.split(Some(node.0), key)?;
        split.ok_or(CollectiveError::Malformed { what: "split_by_node", from: Rank(0) })
    }

    /// What each rank gets of a split: id, rank and group of its new communicator, or nothing. S-A6
    fn deal(&self, all: &[u64]) -> Vec<Vec<u8>> {
        let (entries, _) = all.as_chunks::<3>();
        let mut order: Vec<usize> = (0..entries.len()).filter(|i| entries[*i][0] == 1).collect();
        order.sort_by_key(|i| (entries[*i][1], entries[*i][2].cast_signed(), *i));
        let mut shares = vec![Vec::new(); entries.len()];
        for members in order.chunk_by(|a, b| entries[*a][1] == entries[*b][1]) {
            let id = self.inner.engine.new_object_id();
            let processes = members.iter().map(|i| self.world_rank(Rank(*i as u32)));
            let group = Group::from_members(processes).to_wire();
            for (rank, member) in members.iter().enumerate() {
                let head = [&id.to_le_bytes()[..], &(rank as u32).to_le_bytes()].concat();
                shares[*member] = [head, group.clone()].concat();
            }
        }
        shares
    }

    /// What may be asked of the transport beneath, as by
    /// [`Universe::transport`](crate::Universe::transport).
    pub fn transport(&self) -> Beneath<'_> {
        Beneath(&self.inner.engine.transport)
    }

    /// The process behind a rank that is known to exist.
    pub(crate) fn world_rank(&self, rank: Rank) -> WorldRank {
        self.inner.world_rank(rank)
    }

    /// The order of operations, for one more: waits for those of other threads of this rank. Fails
    /// inside of what an operation of this thread calls.
    pub(crate) fn turn(&self, what: &'static str) -> Result<Turn<'_>, CollectiveError> {
        self.turn_until(what, None)
    }

    /// As [`turn`](Self::turn), and waits until then at most.
    pub(super) fn turn_until(
        &self,
        what: &'static str,
        until: Option<Duration>,
    ) -> Result<Turn<'_>, CollectiveError> {
        let inner = &*self.inner;
        if !grant::wait(until) {
            return Err(WaitError { what, cause: Cause::Timeout }.into());
        }
        if let Some(turn) = Turn::try_take(inner) {
            return Ok(turn);
        }
        inner.check_nested(what)?;
        let on = On::Peer(inner.engine.transport.job.rank);
        let wait = Wait { until, ..Wait::new(what, on).about(inner.about()) };
        // wait: turn
        Ok(inner.engine.wait_until(wait, || Turn::take_or_await(inner))?)
    }

    /// The ranks of this node, in order.
    pub(crate) fn near_ranks(&self) -> impl Iterator<Item = Rank> {
        let (all, some, own) = match &self.inner.node {
            Node::Apart => (0, &[][..], Some(self.rank())),
            Node::Whole => (self.size(), &[][..], None),
            Node::One(node) => (0, node.members(), None),
        };
        (0..all).map(Rank).chain(some.iter().copied()).chain(own)
    }

    /// For what the runtime tells itself in a call. All steps of one call are here, or none: a rank
    /// that cannot go on with one tells so where the others wait. Fails inside of another operation
    /// of this communicator, as a call of that would: the others are not here.
    pub(crate) fn runtime(&self, what: &'static str) -> Result<Self, CollectiveError> {
        self.inner.check_nested(what)?;
        Ok(Self { inner: self.inner.runtime.as_ref().unwrap_or(&self.inner).clone() })
    }

    /// For barriers with deadlines of their own.
    pub(super) fn timed(&self) -> Self {
        Self { inner: self.inner.timed.as_ref().unwrap_or(&self.inner).clone() }
    }

    /// If all ranks have a collective block, on which they tell each other something.
    pub(crate) fn collective_block(&self) -> Option<&Near> {
        self.near().filter(|near| near.has_slots())
    }

    /// All ranks know the id of the next window, if they have a collective block.
    pub(crate) fn set_next_window(&self, id: u64) {
        self.collective_block().into_iter().for_each(|near| near.set_next_window(id));
    }

    pub(crate) fn near(&self) -> Option<&Near> {
        self.inner.near.as_ref()
    }
}

impl Inner {
    fn plain((engine, contributions): Roots<'_>, id: u64, group: Group, rank: Rank) -> Self {
        let (engine, contributions) = (engine.clone(), contributions.clone());
        let current = contributions.open(id, group.clone());
        Self {
            engine,
            contributions,
            id,
            group,
            rank,
            current,
            sequence: Sequence::default(),
            lost: OnceLock::new(),
            caller: Mutex::default(),
            node: Node::Apart,
            near: None,
            lanes: Lanes::default(),
            runtime: None,
            timed: None,
            of_window: false,
        }
    }

    /// As [`plain`](Self::plain), for a communicator of the user.
    fn users(beneath: Roots<'_>, id: u64, group: Group, rank: Rank) -> Self {
        let apart = |bit| Arc::new(Self::plain(beneath, id | bit, group.clone(), rank));
        let (runtime, timed) = (apart(RUNTIME), apart(TIMED));
        let mut inner = Self::plain(beneath, id, group, rank);
        (inner.runtime, inner.timed) = (Some(runtime), Some(timed));
        inner
    }

    /// While no other handle has it.
    fn set_node(&mut self, node: Node) {
        if let Some(runtime) = self.runtime.as_mut().and_then(Arc::get_mut) {
            runtime.node = node.clone();
        }
        self.node = node;
    }

    /// Fails if this thread is in code of the user that an operation of this communicator calls.
    fn check_nested(&self, what: &'static str) -> Result<(), CollectiveError> {
        if *self.caller() == Some(thread::current().id()) {
            return Err(CollectiveError::Nested { what });
        }
        Ok(())
    }

    fn caller(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.caller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This thread calls code of the user until the value is dropped.
    pub(crate) fn calls_user(&self) -> impl Drop + '_ {
        *self.caller() = Some(thread::current().id());
        Called(self)
    }

    /// That operation failed in the middle: this rank and others may be at different ones now.
    pub(crate) fn lose_step(&self, what: &'static str) {
        _ = self.lost.set(what);
        self.keep_words();
    }

    /// Fails if this rank may be at another operation than others. If it is known why no rank can
    /// go on, that is what the error says.
    pub(crate) fn check_step(&self, what: &'static str) -> Result<(), CollectiveError> {
        let Some(failed) = self.lost.get() else { return Ok(()) };
        let in_vain = || self.current.news().cause();
        let wait = Wait::new(what, On::All(&self.group, &in_vain));
        Err(match self.engine.trouble(wait) {
            Some(cause) => self.engine.given_up(wait, cause).into(),
            None => CollectiveError::OutOfStep { what, failed },
        })
    }

    /// An operation has failed here: others may come to it, and to its words, after this rank is
    /// gone.
    pub(crate) fn keep_words(&self) {
        if let Some(near) = &self.near {
            near.set_left(false);
        }
    }

    pub(crate) fn world_rank(&self, rank: Rank) -> WorldRank {
        // Callers pass ranks below the size; anything else would be a bug here, not theirs.
        self.group.world_rank(rank).unwrap_or(WorldRank(u32::MAX))
    }

    pub(crate) fn wait_for(&self, what: &'static str, peer: Rank) -> Wait<'static> {
        Wait::new(what, On::Peer(self.world_rank(peer))).about(self.about())
    }

    /// What its waits are about.
    pub(crate) fn about(&self) -> About {
        let id = self.id & !(RUNTIME | TIMED);
        if self.of_window { About::Window(id) } else { About::Communicator(id) }
    }
}

struct Called<'a>(&'a Inner);

impl Drop for Called<'_> {
    fn drop(&mut self) {
        *self.0.caller() = None;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let cts = self.contributions.close(self.id);
        // A rank that has left sends nothing any more.
        if !self.engine.has_left() {
            self.engine.send_cts(cts);
        }
    }
}

impl From<WaitError> for CollectiveError {
    fn from(WaitError { what, cause }: WaitError) -> Self {
        match cause {
            Cause::PeerFailed(world) => Self::PeerFailed { what, world },
            Cause::PeerLeft(world) => Self::PeerLeft { what, world },
            Cause::GaveUp(world) => Self::GaveUp { what, world },
            Cause::Left => Self::Left { what },
            Cause::Import(error) => Self::Import(error),
            Cause::Timeout => Self::Timeout { what },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Communicator;
    use crate::config::Config;
    use crate::window::accumulate_tests::with_universe;

    /// The least that the user can allow is less than what the ranks of a window tell each other.
    #[test]
    fn what_windows_tell_has_no_limit_of_the_users() {
        let mut config = Config::default();
        config.collective_bytes = 256;
        with_universe(config, |universe| {
            let world = universe.world();
            let most = |comm: &Communicator| comm.inner.contributions.payload_max(comm.inner.id);
            assert_eq!(most(world), 256);
            assert!(most(&world.internal(7)) >= 1 << 30);
        });
    }
}
