//! One rank of a program, played with the library.
use super::calls::{Buffer, Buffers, Scale, perform, rank};
use super::program::{Call, FenceEnd, Finish, Flavour, Operation, Path, Phase, Program, Round};
use super::program::{Step, Stretch, UNTOUCHED, WindowPlan};
use super::record::{Record, Tried};
use super::tries::{issue, unchanged};
use super::values::{Type, typed, typed_atomic};
use super::windows::{Made, builder, reaches};
use crate::help::near;
use bytemuck::{cast_slice, pod_collect_to_vec};
use rma_core::{
    Assert, BasicElement, Communicator, Exposure, Fence, Lock, LockAll, LockKind, OriginBuffer,
    Rank, Request, RmaError, Start, Universe,
};
use std::collections::BTreeMap;

/// Plays this rank's part, with as many ranks in `comm`. **Collective** over it.
///
/// # Panics
///
/// If the library returns an error.
pub fn play(universe: &Universe, comm: &Communicator, program: &Program) -> Record {
    assert_eq!(comm.size(), program.ranks);
    let me = usize::from(comm.rank());
    let mut record = Record::default();
    let reaches = program.windows.iter().any(|plan| plan.path == Path::Cma) && reaches(comm);
    let make = |plan: &WindowPlan| {
        let WindowPlan { flavour, .. } = *plan;
        let apart = flavour == Flavour::Shared && !near(universe);
        let flavour = if apart { Flavour::Allocated } else { flavour };
        Made::new(builder(comm, plan, reaches), comm, plan, flavour)
    };
    let mut windows: Vec<Made> = program.windows.iter().map(make).collect();
    comm.barrier().expect("all ranks are there");
    for stretch in &program.stretches {
        seal(&mut windows, comm, (program, stretch), &mut record);
        let mut player = Player {
            comm,
            program,
            me,
            windows: &windows,
            open: windows.iter().map(|_| Open::None).collect(),
            pending: BTreeMap::new(),
            record: &mut record,
        };
        stretch.rounds.iter().for_each(|round| player.round(round));
    }
    record.looks.extend(windows.into_iter().map(Made::free));
    record
}

/// Stores to plain slices between two stretches.
fn seal(
    windows: &mut Vec<Made>,
    comm: &Communicator,
    (program, stretch): (&Program, &Stretch),
    record: &mut Record,
) {
    let me = usize::from(comm.rank());
    for (window, stores) in &stretch.sealed {
        let memory = program.windows[*window].parts[me].memory;
        let (look, made) = windows.remove(*window).seal(comm, memory, &stores[me]);
        record.looks.push(look);
        windows.insert(*window, made);
    }
}

/// The epochs that are open on a window.
enum Open<'w> {
    None,
    Fence(Fence<'w>),
    Pscw(Start<'w>, Exposure<'w>),
    Locks(Option<LockAll<'w>>, BTreeMap<Option<u32>, Lock<'w>>),
}

/// An operation with a request, until that ends.
trait Pending {
    /// The buffer, unless the request was dropped.
    fn finish(self: Box<Self>, how: Finish) -> Option<Vec<u8>>;
}

impl<B: OriginBuffer + AsRef<[B::Element]>> Pending for Request<'_, B> {
    fn finish(self: Box<Self>, how: Finish) -> Option<Vec<u8>> {
        let mut request = *self;
        match how {
            Finish::Drop => return None,
            Finish::Wait => {}
            Finish::Test => while !request.test() {},
        }
        let buffer = request.wait().expect("the peer is there");
        Some(cast_slice(buffer.as_ref()).to_vec())
    }
}

/// A request that was begun or left.
type Begun<'w> = (Option<Box<dyn Pending + 'w>>, Option<Tried>);

struct Player<'w, 'p> {
    comm: &'p Communicator,
    program: &'p Program,
    me: usize,
    windows: &'w [Made],
    open: Vec<Open<'w>>,
    pending: BTreeMap<usize, (&'p Operation, Box<dyn Pending + 'w>)>,
    record: &'p mut Record,
}

impl<'w, 'p> Player<'w, 'p> {
    fn round(&mut self, round: &'p Round) {
        if round.barrier_before {
            self.barrier();
        }
        for (window, phase) in round.phases.iter().enumerate() {
            self.enter(window, phase).unwrap_or_else(|e| panic!("opening {phase:?}: {e}"));
        }
        if round.together {
            self.barrier();
        }
        for step in &round.steps[self.me] {
            self.step(step).unwrap_or_else(|e| panic!("rank {}, {step:?}: {e}", self.me));
        }
        for (window, phase) in round.phases.iter().enumerate() {
            self.leave(window, phase).unwrap_or_else(|e| panic!("closing {phase:?}: {e}"));
        }
        if round.barrier_after {
            self.barrier();
        }
        for (window, plan) in self.windows.iter().zip(&self.program.windows) {
            let mut part = vec![0u8; plan.parts[self.me].size];
            window.view().read(0, &mut part).expect("as long as the part");
            self.record.looks.push(part);
        }
    }

    fn barrier(&self) {
        self.comm.barrier().expect("all ranks are there");
    }

    fn enter(&mut self, window: usize, phase: &Phase) -> Result<(), RmaError> {
        let (on, me) = (self.windows[window].window(), self.me);
        let before = core::mem::replace(&mut self.open[window], Open::None);
        self.open[window] = match phase {
            Phase::Idle | Phase::Local => Open::None,
            Phase::Fence { open, .. } => Open::Fence(match before {
                Open::Fence(guard) => guard.next(open[me])?,
                _ => on.fence(open[me])?,
            }),
            Phase::Pscw { targets, post, no_check, start_first, .. } => {
                let partners = |ranks: Vec<u32>| ranks.into_iter().map(Rank).collect::<Vec<_>>();
                let names_me = |origin: &u32| targets[*origin as usize].contains(&(me as u32));
                let origins = partners((0..self.program.ranks).filter(names_me).collect());
                let targets = partners(targets[me].clone());
                let (start, exposure);
                if *no_check {
                    exposure = on.post(&origins, post[me])?;
                    self.barrier();
                    start = on.start(&targets, Assert::NO_CHECK)?;
                } else if start_first[me] {
                    start = on.start(&targets, Assert::NONE)?;
                    exposure = on.post(&origins, post[me])?;
                } else {
                    exposure = on.post(&origins, post[me])?;
                    start = on.start(&targets, Assert::NONE)?;
                }
                Open::Pscw(start, exposure)
            }
            Phase::LockAll { no_check } => {
                let asserts = if *no_check { Assert::NO_CHECK } else { Assert::NONE };
                Open::Locks(Some(on.lock_all_with(asserts)?), BTreeMap::new())
            }
            Phase::Locks => Open::Locks(None, BTreeMap::new()),
        };
        Ok(())
    }

    fn leave(&mut self, window: usize, phase: &Phase) -> Result<(), RmaError> {
        let open = core::mem::replace(&mut self.open[window], Open::None);
        match (open, phase) {
            (Open::Fence(guard), Phase::Fence { close, end, .. }) => match end {
                FenceEnd::Next => self.open[window] = Open::Fence(guard.next(close[self.me])?),
                FenceEnd::End => guard.end()?,
                FenceEnd::Drop => {
                    drop(guard);
                    drop(self.windows[window].window().fence(close[self.me])?);
                }
            },
            (Open::Pscw(start, mut exposure), Phase::Pscw { test, .. }) => {
                start.complete()?;
                if !test[self.me] {
                    return exposure.wait();
                }
                loop {
                    match exposure.test() {
                        Ok(done) => return done,
                        Err(again) => exposure = again,
                    }
                }
            }
            (Open::Locks(all, one), _) => {
                assert!(one.is_empty(), "the steps of a round give all locks back");
                all.map_or(Ok(()), LockAll::unlock)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn step(&mut self, step: &'p Step) -> Result<(), RmaError> {
        match step {
            Step::Lock { window, target, exclusive, no_check } => {
                let kind = if *exclusive { LockKind::Exclusive } else { LockKind::Shared };
                let asserts = if *no_check { Assert::NO_CHECK } else { Assert::NONE };
                let lock =
                    self.windows[*window].window().lock_with(rank(*target), kind, asserts)?;
                let Open::Locks(_, one) = &mut self.open[*window] else { unreachable!("locks") };
                one.insert(*target, lock);
            }
            Step::Unlock { window, target, drop: dropped } => {
                let Open::Locks(_, one) = &mut self.open[*window] else { unreachable!("locks") };
                let lock = one.remove(target).expect("it was locked");
                if *dropped { drop(lock) } else { lock.unlock()? }
            }
            Step::LockAll { window, no_check } => {
                let asserts = if *no_check { Assert::NO_CHECK } else { Assert::NONE };
                let lock = self.windows[*window].window().lock_all_with(asserts)?;
                let Open::Locks(all, _) = &mut self.open[*window] else { unreachable!("locks") };
                *all = Some(lock);
            }
            Step::UnlockAll { window, drop: dropped } => {
                let Open::Locks(all, _) = &mut self.open[*window] else { unreachable!("locks") };
                let lock = all.take().expect("it was locked");
                if *dropped { drop(lock) } else { lock.unlock()? }
            }
            Step::Do(operation) => self.perform(operation)?,
            Step::Request(operation) => self.request(operation)?,
            Step::Scope(operations) => self.scope(operations)?,
            Step::Flush { window, target, local } => self.flush(*window, *target, *local)?,
            Step::Finish { id, how } => {
                if self.record.is_left(*id) {
                    return Ok(());
                }
                let (operation, request) = self.pending.remove(id).expect("it was issued");
                if let Some(buffer) = request.finish(*how) {
                    self.keep_request(operation, &buffer);
                }
            }
            Step::View(operation) => self.view(operation)?,
            Step::Sync { window } => self.windows[*window].window().sync().unwrap(),
        }
        Ok(())
    }

    fn element(&self, operation: &Operation) -> Type {
        self.program.windows[operation.window].element
    }

    fn scale(&self, operation: &Operation) -> Scale {
        let (window, target) = (operation.window, operation.target.unwrap_or(0));
        let unit = self.program.windows[window].parts[target as usize].unit;
        Scale { base: self.windows[window].base(target), unit }
    }

    fn perform(&mut self, operation: &Operation) -> Result<(), RmaError> {
        let (element, scale) = (self.element(operation), self.scale(operation));
        let mut buffers = Buffers::new(&operation.call);
        let into = &mut buffers;
        // The other epochs have no flushes; each try makes progress.
        let go_on = || Ok(());
        let flush = || self.flush(operation.window, operation.target, false);
        match &self.open[operation.window] {
            Open::None => unreachable!("operations are in epochs"),
            Open::Fence(epoch) => perform(&**epoch, element, scale, operation, into, go_on)?,
            Open::Pscw(epoch, _) => perform(&**epoch, element, scale, operation, into, go_on)?,
            Open::Locks(Some(epoch), _) => {
                perform(&**epoch, element, scale, operation, into, flush)?
            }
            Open::Locks(None, one) => {
                perform(&one[&operation.target], element, scale, operation, into, flush)?;
            }
        }
        self.keep(operation, buffers);
        Ok(())
    }

    fn scope(&mut self, operations: &[Operation]) -> Result<(), RmaError> {
        use super::calls::Calls;
        let Some(first) = operations.first() else { return Ok(()) };
        let element = self.element(first);
        let scales: Vec<Scale> = operations.iter().map(|operation| self.scale(operation)).collect();
        let mut list: Vec<_> =
            operations.iter().map(|operation| (operation, Buffers::new(&operation.call))).collect();
        match &self.open[first.window] {
            Open::None => unreachable!("operations are in epochs"),
            Open::Fence(epoch) => epoch.scope(element, &scales, &mut list)?,
            Open::Pscw(epoch, _) => epoch.scope(element, &scales, &mut list)?,
            Open::Locks(Some(epoch), _) => epoch.scope(element, &scales, &mut list)?,
            Open::Locks(None, one) => one[&first.target].scope(element, &scales, &mut list)?,
        }
        list.into_iter().for_each(|(operation, buffers)| self.keep(operation, buffers));
        Ok(())
    }

    fn tell(&mut self, operation: &Operation, tried: Option<Tried>) {
        self.record.tried.extend(tried.map(|tried| (operation.id, tried)));
    }

    fn keep(&mut self, operation: &Operation, buffers: Buffers) {
        self.tell(operation, buffers.tried);
        if !operation.call.sends() {
            self.record.results.insert(operation.id, buffers.result.bytes().to_vec());
        }
    }

    /// Keeps what a request filled; what it sent must have come back as it was.
    fn keep_request(&mut self, operation: &Operation, buffer: &[u8]) {
        let Buffers { origin, result, .. } = Buffers::new(&operation.call);
        match &operation.call {
            Call::Put { from, .. } | Call::Accumulate { from, .. } => {
                let whole = buffer == origin.bytes();
                let sent = whole
                    || from.is_plain() && *buffer == origin.bytes()[from.start..][..from.size()];
                assert!(sent, "{operation:?} changed its origin buffer");
            }
            Call::Get { to: into, .. } | Call::GetAccumulate { into, .. } => {
                let whole = buffer.len() == result.bytes().len();
                let held = if whole {
                    buffer.to_vec()
                } else {
                    Buffer::holding(into, buffer).bytes().to_vec()
                };
                _ = self.record.results.insert(operation.id, held);
            }
            other => unreachable!("{other:?} has no request"),
        }
    }

    fn flush(&self, window: usize, target: Option<u32>, local: bool) -> Result<(), RmaError> {
        let Open::Locks(all, one) = &self.open[window] else { unreachable!("flushes need locks") };
        match (all, target) {
            (Some(all), Some(target)) if local => all.flush_local(Rank(target)),
            (Some(all), Some(target)) => all.flush(Rank(target)),
            (Some(all), None) if local => all.flush_local_all(),
            (Some(all), None) => all.flush_all(),
            (None, target) if local => one[&target].flush_local(),
            (None, target) => one[&target].flush(),
        }
    }

    fn request(&mut self, operation: &'p Operation) -> Result<(), RmaError> {
        let (request, tried) = self.begin(operation)?;
        self.tell(operation, tried);
        self.pending.extend(request.map(|request| (operation.id, (operation, request))));
        Ok(())
    }

    /// The request, unless the operation was refused and left, and what became of it. `either` is
    /// the same call of a lock, and of an epoch to all, with what its buffer holds.
    fn begin(&self, operation: &Operation) -> Result<Begun<'w>, RmaError> {
        let (element, scale) = (self.element(operation), self.scale(operation));
        let (call, target) = (&operation.call, rank(operation.target));
        let Buffers { origin, result, mut tried } = Buffers::new(call);
        let (origin, result) = (origin.bytes().to_vec(), result.bytes().to_vec());
        let flush = || self.flush(operation.window, operation.target, false);
        macro_rules! either { ($call:ident, $trying:ident($($argument:expr),*), $before:expr) => {{
            let call = |tries| -> Result<Box<dyn Pending + 'w>, RmaError> {
                let request = match &self.open[operation.window] {
                    Open::Locks(Some(all), _) if tries => all.$trying(target, $($argument),*),
                    Open::Locks(Some(all), _) => all.$call(target, $($argument),*),
                    Open::Locks(None, one) if tries => {
                        one[&operation.target].$trying($($argument),*)
                    }
                    Open::Locks(None, one) => one[&operation.target].$call($($argument),*),
                    _ => unreachable!("requests need locks"),
                };
                Ok(Box::new(request.map_err(|refused| unchanged(refused, $before))?))
            };
            issue(operation, &mut tried, call, flush)?
        }} }
        let request = match call {
            Call::Put { data, .. } => match scale.place(call) {
                (disp, None) => either!(rput, try_rput(disp, data.clone()), data),
                (disp, Some(by)) => {
                    let of = |buffer| by.here[0].of(buffer);
                    either!(rput, try_rput(by.there.at(disp), of(origin.clone())), &origin)
                }
            },
            Call::Get { to, .. } => match scale.place(call) {
                (disp, None) => {
                    let buffer = || filled::<u8>(to.size());
                    either!(rget, try_rget(disp, buffer()), &buffer())
                }
                (disp, Some(by)) => {
                    let of = |buffer| by.here[0].of(buffer);
                    either!(rget, try_rget(by.there.at(disp), of(result.clone())), &result)
                }
            },
            Call::Accumulate { op, values, .. } => match scale.place(call) {
                (disp, None) => typed!(element, E => {
                    let from = || pod_collect_to_vec::<u8, E>(values);
                    either!(raccumulate, try_raccumulate(disp, *op, from()), values)
                }),
                (disp, Some(by)) => {
                    let from = || by.here[0].of(origin.clone());
                    either!(raccumulate, try_raccumulate(by.there.at(disp), *op, from()), &origin)
                }
            },
            Call::GetAccumulate { op, values, into, .. } => match scale.place(call) {
                (disp, None) => typed!(element, E => {
                    let (from, into) = (pod_collect_to_vec::<u8, E>(values), into.size());
                    let (before, into) = (vec![UNTOUCHED; into], || filled::<E>(into));
                    either!(rget_accumulate, try_rget_accumulate(disp, *op, &from, into()), &before)
                }),
                (disp, Some(by)) => {
                    let [from, into] = &by.here[..] else { unreachable!("two buffers") };
                    let (at, from) = (|| by.there.at(disp), || from.of(&origin));
                    let into = || into.of(result.clone());
                    either!(
                        rget_accumulate,
                        try_rget_accumulate(at(), *op, from(), into()),
                        &result
                    )
                }
            },
            other => unreachable!("{other:?} has no request"),
        };
        Ok((request, tried))
    }

    fn view(&mut self, operation: &Operation) -> Result<(), RmaError> {
        let (element, Scale { unit, .. }) = (self.element(operation), self.scale(operation));
        let view = self.windows[operation.window].view();
        let disp = |at: usize| (at / unit) as u64;
        let mut buffers = Buffers::new(&operation.call);
        let old = match &operation.call {
            Call::Put { to, data, .. } => return view.write(disp(to.start), data),
            Call::Get { from, to } => {
                let mut bytes = vec![0u8; to.size()];
                view.read(disp(from.start), &mut bytes)?;
                Buffer::holding(to, &bytes).bytes().to_vec()
            }
            Call::Accumulate { op, to, values, .. } => {
                return typed!(element, E => {
                    view.accumulate(disp(to.start), *op, &pod_collect_to_vec::<u8, E>(values))
                });
            }
            Call::FetchAndOp { op, at, value } => typed!(element, E => {
                let with = pod_collect_to_vec::<u8, E>(value)[0];
                bytemuck::bytes_of(&view.fetch_and_op(disp(*at), *op, with)?).to_vec()
            }),
            Call::CompareAndSwap { at, compare, swap } => typed_atomic!(element, E => {
                let one = |bytes: &[u8]| pod_collect_to_vec::<u8, E>(bytes)[0];
                let old = view.compare_and_swap(disp(*at), one(compare), one(swap))?;
                bytemuck::bytes_of(&old).to_vec()
            }),
            Call::GetAccumulate { .. } => unreachable!("views have no get_accumulate"),
        };
        buffers.result.fill(&old);
        self.keep(operation, buffers);
        Ok(())
    }
}

/// So many bytes of elements.
fn filled<E: BasicElement>(len: usize) -> Vec<E> {
    pod_collect_to_vec(&vec![UNTOUCHED; len])
}
