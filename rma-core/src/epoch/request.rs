//! Operations that own their buffer (MPI 4.1, section 12.3.5).
#![allow(unsafe_code)]

use super::peer::GET;
use super::{Lock, LockAll, Operands, OwnedOperands, Peer};
use crate::element::{Element, Op};
use crate::engine::{On, Pending, Wait};
use crate::error::{Refused, RmaError};
use crate::execute::{BOUNCE_BYTES, Completion, Packed};
use crate::operation::{Action, Displacement, Operation, OriginBuffer, OwnedOrigin, Side, Sink};
use crate::rank::Rank;
use crate::window::Window;
use bytemuck::cast_slice_mut;
use core::mem::replace;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::sync::Arc;

const REQUEST_WAIT: &str = "a request";

/// How often a wait for requests of several universes looks at all of them.
const RECHECK: Duration = Duration::from_millis(1);

/// An operation under way, and the buffer that it works on.
///
/// Dropping or forgetting it is harmless: the buffer then stays with the runtime until the last
/// answer is there. It is a future, too, each poll of which makes some progress: there is no other
/// thread that would wake a task, so a task that is pending is woken at once. As any future, it
/// panics if it is polled again after it was ready.
#[must_use = "the buffer comes back from `wait`"]
pub struct Request<'w, B: OriginBuffer> {
    // Nothing else, so that one that is complete is hardly larger than its buffer: a program may
    // keep millions.
    state: RequestState<'w, B>,
}

enum RequestState<'w, B: OriginBuffer> {
    Complete(B),
    UnderWay(Owner<'w, B::Element>),
    /// The buffer was given back.
    Spent,
}

/// What drops an operation that is not complete. Not the request, so that one that is complete can
/// be taken apart, and costs what moving its buffer costs.
struct Owner<'w, E: Element> {
    /// On the heap, so that a request that is complete at once is small.
    unfinished: Option<Box<Unfinished<'w, E>>>,
}

impl<'w, E: Element> Owner<'w, E> {
    fn new(unfinished: Unfinished<'w, E>) -> Self {
        Self { unfinished: Some(Box::new(unfinished)) }
    }

    /// What is under way, until it is taken out.
    fn get(&self) -> Option<&Unfinished<'w, E>> {
        self.unfinished.as_deref()
    }
}

impl<E: Element> Drop for Owner<'_, E> {
    #[inline]
    fn drop(&mut self) {
        if let Some(unfinished) = self.unfinished.take() {
            (*unfinished).keep();
        }
    }
}

/// An operation that is not complete.
struct Unfinished<'w, E> {
    /// Not its epoch, which may end first. S-I4
    window: &'w Window,
    target: Rank,
    pending: Arc<Pending>,
    buffer: Vec<E>,
    /// What goes to the buffer when it is there, if that has a layout.
    packed: Option<Box<Packed>>,
}

impl<E: Element> Unfinished<'_, E> {
    /// Has the runtime keep the buffer until the last answer is there. S-I8
    #[cold]
    #[inline(never)]
    fn keep(self) {
        let Self { window, target, pending, buffer, packed } = self;
        pending.keep(Box::new((buffer, packed)));
        window.far.set_keeping(target);
    }
}

impl<'w, B: OriginBuffer> Request<'w, B> {
    /// One that was complete at once: a request all the same. S-I7
    #[inline(always)]
    fn complete(buffer: B) -> Self {
        Self { state: RequestState::Complete(buffer) }
    }

    /// One that was complete at once, or the buffer if it failed. S-I2
    #[inline(always)]
    fn done(value: B, done: Result<(), RmaError>) -> Result<Self, Refused<B>> {
        match done {
            Ok(()) => Ok(Self::complete(value)),
            Err(error) => Err(Refused { value, error }),
        }
    }

    /// Starts an operation that fetches something into those bytes of `buffer`.
    #[inline(always)]
    fn fetch(
        peer: &Peer<'w>,
        operation: &Operation<'_>,
        buffer: B,
        into: Side<'_>,
    ) -> Result<Self, Refused<B>> {
        Self::fetch_cold(peer, operation, buffer, into).map_err(|refused| *refused)
    }

    // As `wait_cold`.
    #[cold]
    #[inline(never)]
    fn fetch_cold(
        peer: &Peer<'w>,
        operation: &Operation<'_>,
        mut buffer: B,
        into: Side<'_>,
    ) -> Result<Self, Box<Refused<B>>> {
        let (window, target) = (peer.window(), peer.target());
        let sink = Sink { bytes: cast_slice_mut(buffer.as_elements_mut()), into };
        let left = match window.execute(operation, sink) {
            Ok(Some(left)) => left,
            done => return Self::done(buffer, done.map(drop)).map_err(Box::new),
        };
        let (pending, buffer): (Arc<Pending>, _) = (Arc::default(), buffer.into_vec());
        let mut under_way = Owner::new(Unfinished {
            window,
            target,
            pending: Arc::clone(&pending),
            buffer,
            packed: None,
        });
        let unfinished = under_way.unfinished.as_deref_mut().expect("made above");
        let mut completion = Completion::new(&pending, BOUNCE_BYTES);
        let sink = Sink { bytes: cast_slice_mut(&mut unfinished.buffer), into };
        // SAFETY: the elements are on the heap, in a vector that is owned by `under_way`, which
        // touches them when `pending` is done only, or gives them to it in drop. So are the bytes
        // that wait packed.
        let started = unsafe { window.begin_fetch(operation, left, sink, &mut completion) };
        unfinished.packed = completion.take_packed().map(Box::new);
        let mut request = Self { state: RequestState::UnderWay(under_way) };
        if let Err(error) = started {
            _ = window.drain(operation.what, target, &pending);
            return Err(Box::new(Refused { value: request.take(false), error }));
        }
        if operation.action == Action::Get {
            // As every accumulate is waited for by a flush of its target. S-I5
            window.far.add_request(target, &pending);
        }
        drop(completion);
        Ok(request)
    }

    #[inline(always)]
    fn put<const TRIES: bool>(
        peer: &Peer<'w>,
        disp: impl Displacement,
        origin: impl OwnedOrigin<Buffer = B>,
    ) -> Result<Self, Refused<B>> {
        origin.give(
            #[inline(always)]
            |buffer, from| {
                let elements = buffer.as_elements();
                let put = peer.put_elements::<_, TRIES>(disp.spot(), elements, from);
                Self::done(buffer, put)
            },
        )
    }

    #[inline(always)]
    fn get<const TRIES: bool>(
        peer: &Peer<'w>,
        disp: impl Displacement,
        origin: impl OwnedOrigin<Buffer = B>,
    ) -> Result<Self, Refused<B>> {
        let spot = disp.spot();
        origin.give(
            #[inline(always)]
            |mut buffer, to| {
                let Some(of) = spot.placed.or(to) else {
                    let len = size_of_val(buffer.as_elements());
                    if let Some(span) = peer.near(spot.disp, len) {
                        span.read(cast_slice_mut(buffer.as_elements_mut()));
                        return Ok(Self::complete(buffer));
                    }
                    let get = peer.operation(GET, spot.disp, len, &[]).trying(TRIES);
                    return Self::fetch(peer, &get, buffer, Side::dense(len));
                };
                match peer.get_layout(spot, of, buffer.as_elements_mut(), to) {
                    Ok(Some((get, into))) => Self::fetch(peer, &get.trying(TRIES), buffer, into),
                    done => Self::done(buffer, done.map(drop)),
                }
            },
        )
    }

    #[inline(always)]
    fn accumulate<O: OwnedOperands<Buffer = B>, const TRIES: bool>(
        peer: &Peer<'w>,
        disp: impl Displacement,
        op: Op,
        origin: O,
    ) -> Result<Self, Refused<B>> {
        origin.give(
            #[inline(always)]
            |buffer, from| {
                let combined = O::accumulate::<TRIES>(&buffer, from, peer, disp.spot(), op);
                Self::done(buffer, combined)
            },
        )
    }

    #[inline(always)]
    fn get_accumulate<const TRIES: bool>(
        peer: &Peer<'w>,
        disp: impl Displacement,
        op: Op,
        origin: impl Operands<Element = B::Element>,
        result: impl OwnedOrigin<Buffer = B>,
    ) -> Result<Self, Refused<B>> {
        let spot = disp.spot();
        result.give(
            #[inline(always)]
            |mut buffer, into| {
                let result = buffer.as_elements_mut();
                match origin.get_accumulate(peer, spot, op, result, into) {
                    Ok(Some((fetch, into))) => {
                        Self::fetch(peer, &fetch.trying(TRIES), buffer, into)
                    }
                    done => Self::done(buffer, done.map(drop)),
                }
            },
        )
    }

    /// Waits until the operation is locally complete and gives the buffer back: to be reused after
    /// a put, filled after a get.
    ///
    /// # Errors
    ///
    /// What ends every wait, and what the target found wrong. The buffer comes back with it, its
    /// elements unspecified after a get.
    #[inline]
    pub fn wait(self) -> Result<B, Refused<B>> {
        match self.state {
            RequestState::Complete(buffer) => Ok(buffer),
            state => Self { state }.wait_cold().map_err(|refused| *refused),
        }
    }

    // By value, and of another type than the caller's result, so that neither the request nor that
    // need be in memory unless it comes to this.
    #[cold]
    #[inline(never)]
    fn wait_cold(mut self) -> Result<B, Box<Refused<B>>> {
        self.finish().map_err(Box::new)
    }

    fn finish(&mut self) -> Result<B, Refused<B>> {
        let waited = match self.unfinished() {
            Some(it) => it.window.drain(REQUEST_WAIT, it.target, &it.pending),
            None => Ok(()),
        };
        self.end(waited)
    }

    /// Gives the buffer back. Nothing is under way any more. S-I6
    fn end(&mut self, waited: Result<(), RmaError>) -> Result<B, Refused<B>> {
        let value = self.take(waited.is_ok());
        match waited {
            Ok(()) => Ok(value),
            Err(error) => Err(Refused { value, error }),
        }
    }

    /// Takes the buffer out, filled if what was under way ended well. S-I3
    fn take(&mut self, filled: bool) -> B {
        let unfinished = match replace(&mut self.state, RequestState::Spent) {
            RequestState::Complete(buffer) => return buffer,
            RequestState::UnderWay(mut it) => {
                it.unfinished.take().expect("taken out with its request's state")
            }
            RequestState::Spent => {
                panic!("a request was polled after it had given its buffer back")
            }
        };
        let Unfinished { mut buffer, packed, .. } = *unfinished;
        if let Some(packed) = packed.filter(|_| filled) {
            packed.unpack(cast_slice_mut(&mut buffer));
        }
        B::from_vec(buffer)
    }

    fn unfinished(&self) -> Option<&Unfinished<'w, B::Element>> {
        match &self.state {
            RequestState::UnderWay(it) => it.get(),
            RequestState::Complete(_) | RequestState::Spent => None,
        }
    }

    /// What is under way.
    fn under_way(&self) -> Option<&Unfinished<'w, B::Element>> {
        self.unfinished().filter(|it| !it.pending.is_done())
    }

    fn pending(&self) -> Option<&Arc<Pending>> {
        self.under_way().map(|it| &it.pending)
    }

    /// Whether [`wait`](Self::wait) does not wait: because the operation is complete, or because it
    /// fails. Makes some progress.
    ///
    /// It may be tested for ever, for as long as the target takes part (MPI's `MPI_Test`).
    pub fn test(&mut self) -> bool {
        let Some(Unfinished { window, target, pending, .. }) = self.under_way() else {
            return true;
        };
        // Before the last look, which sees what the target did before it left.
        let trouble = window.engine().progress_or_trouble(window.wait_for(REQUEST_WAIT, *target));
        pending.is_done() || trouble.is_some()
    }

    /// Waits for all: one after the other, which takes as long as the slowest.
    ///
    /// Each has its own result: `collect` into a `Result<Vec<_>, _>` for the first failure (MPI's
    /// `MPI_Waitall`).
    pub fn wait_all(requests: impl IntoIterator<Item = Self>) -> Vec<Result<B, Refused<B>>> {
        requests.into_iter().map(Self::wait).collect()
    }

    /// The first of several that [is complete](Self::test), if there is one (MPI's `MPI_Testany`).
    pub fn test_any(requests: &mut [Self]) -> Option<usize> {
        requests.iter_mut().position(Self::test)
    }

    /// Waits until one of several is complete, takes it out, and says which it was; the others keep
    /// their order. `None` if there are none (MPI's `MPI_Waitany`).
    ///
    /// Requests of different universes may be mixed.
    pub fn wait_any(requests: &mut Vec<Self>) -> Option<(usize, Result<B, Refused<B>>)> {
        if let Some(index) = requests.iter().position(|request| request.under_way().is_none()) {
            return Some((index, requests.remove(index).wait()));
        }
        let window = requests.first()?.unfinished()?.window;
        let engine = window.engine();
        let alone = requests
            .iter()
            .filter_map(Self::unfinished)
            .all(|it| core::ptr::eq(it.window.engine(), engine));
        let debtor = |turn: usize| {
            let turns = requests.len().max(1);
            let pending = requests[turn % turns].pending()?;
            let turn = turn / turns;
            let transfers = || engine.queues.debtor(pending, turn);
            engine.outstanding.debtor(pending, turn).or_else(transfers)
        };
        let recheck = (!alone).then_some(RECHECK);
        let wait = Wait { recheck, ..window.wait_on(REQUEST_WAIT, On::Named(&debtor)) };
        let done = || {
            requests.iter().position(|request| {
                let under_way = request.under_way().filter(|_| !alone);
                if let Some(it) = under_way {
                    it.window.engine().progress_in_passing();
                }
                request.under_way().is_none()
            })
        };
        // wait: any request
        match engine.wait_until(wait, done) {
            Ok(index) => Some((index, requests.remove(index).wait())),
            Err(error) => {
                // One that fails for the reason that ended the wait; of a deadline, the first.
                let index = Self::test_any(requests).unwrap_or(0);
                let mut request = requests.remove(index);
                let error = match request.unfinished() {
                    Some(Unfinished { window, pending, .. }) => {
                        window.engine().cancel(pending);
                        pending.set_told();
                        window.wait_failed(error)
                    }
                    None => window.wait_failed(error),
                };
                Some((index, request.end(Err(error))))
            }
        }
    }
}

// Nothing in it is pinned: what a transport has the address of is on the heap.
impl<B: OriginBuffer> Unpin for Request<'_, B> {}

impl<B: OriginBuffer> Future for Request<'_, B> {
    type Output = Result<B, Refused<B>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let request = self.get_mut();
        if !request.test() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(request.finish())
    }
}

/// The operations that give a request, which MPI has in passive epochs only: methods of `$guard`,
/// which give a `$peer`; where that is not the guard's, callers name it.
macro_rules! requests {
    ($guard:ident, |$this:ident $(, $target:ident)?| $peer:expr) => {
        impl<'w> $guard<'w> {
            /// As [`put`](crate::Access::put), with a buffer that the request owns until
            /// [`wait`](Request::wait) gives it back. Layouts are yours again on return.
            ///
            /// Completion of the request is local: the data is at the target after a flush. The
            /// request may be waited for after the epoch, and dropped or forgotten without harm
            /// (MPI 4.1, section 12.3.5).
            ///
            /// # Errors
            ///
            /// Those of [`put`](crate::Access::put); the buffer comes back with them in a
            /// [`Refused`], as it was.
            // What it gives is a few words in memory, if it is a call: longer than all it does.
            #[inline(always)]
            pub fn rput<O: OwnedOrigin>(
                &self,
                $($target: Rank,)?
                disp: impl Displacement,
                origin: O,
            ) -> Result<Request<'w, O::Buffer>, Refused<O::Buffer>> {
                let $this = self;
                Request::put::<false>(&$peer, disp, origin)
            }

            /// As [`rput`](Self::rput), issued at once or not at all, as
            /// [`try_put`](crate::Access::try_put).
            ///
            /// # Errors
            ///
            /// Those of [`try_put`](crate::Access::try_put); the buffer comes back with them in a
            /// [`Refused`], as it was.
            #[inline(always)]
            pub fn try_rput<O: OwnedOrigin>(
                &self,
                $($target: Rank,)?
                disp: impl Displacement,
                origin: O,
            ) -> Result<Request<'w, O::Buffer>, Refused<O::Buffer>> {
                let $this = self;
                Request::put::<true>(&$peer, disp, origin)
            }

            /// As [`get`](crate::Access::get), into a buffer that the request owns until
            /// [`wait`](Request::wait) gives it back, filled. Layouts are yours again on return.
            ///
            /// Bytes of a layout that do not come by load wait packed, up to a mebibyte; a larger
            /// get is complete when it returns (MPI 4.1, section 12.3.5).
            ///
            /// # Errors
            ///
            /// Those of [`get`](crate::Access::get); the buffer comes back with them in a
            /// [`Refused`], unchanged, or its elements unspecified if a peer failed.
            // What it gives is a few words in memory, if it is a call: longer than all it does.
            #[inline(always)]
            pub fn rget<O: OwnedOrigin>(
                &self,
                $($target: Rank,)?
                disp: impl Displacement,
                origin: O,
            ) -> Result<Request<'w, O::Buffer>, Refused<O::Buffer>> {
                let $this = self;
                Request::get::<false>(&$peer, disp, origin)
            }

            /// As [`rget`](Self::rget), issued at once or not at all, as
            /// [`try_put`](crate::Access::try_put): only its [`wait`](Request::wait) waits.
            ///
            /// # Errors
            ///
            /// [`RmaError::WouldBlock`] if there is no room now, [`RmaError::TooLargeToTry`] if
            /// there never is enough: nothing was issued then. Otherwise those of
            /// [`rget`](Self::rget); the buffer comes back with them in a [`Refused`].
            #[inline(always)]
            pub fn try_rget<O: OwnedOrigin>(
                &self,
                $($target: Rank,)?
                disp: impl Displacement,
                origin: O,
            ) -> Result<Request<'w, O::Buffer>, Refused<O::Buffer>> {
                let $this = self;
                Request::get::<true>(&$peer, disp, origin)
            }

            /// As [`accumulate`](crate::Access::accumulate), with a buffer that the request owns
            /// until [`wait`](Request::wait) gives it back. Layouts are yours again on return.
            ///
            /// Completion of the request is local: the result is at the target after a flush (MPI
            /// 4.1, section 12.3.5).
            ///
            /// # Errors
            ///
            /// Those of [`accumulate`](crate::Access::accumulate); the buffer comes back with them
            /// in a [`Refused`], as it was.
            #[inline]
            pub fn raccumulate<O: OwnedOperands>(
                &self,
                $($target: Rank,)?
                disp: impl Displacement,
                op: Op,
                origin: O,
            ) -> Result<Request<'w, O::Buffer>, Refused<O::Buffer>> {
                let $this = self;
                Request::accumulate::<O, false>(&$peer, disp, op, origin)
            }

            /// As [`raccumulate`](Self::raccumulate), issued at once or not at all, as
            /// [`try_accumulate`](crate::Access::try_accumulate).
            ///
            /// # Errors
            ///
            /// Those of [`try_accumulate`](crate::Access::try_accumulate); the buffer comes back
            /// with them in a [`Refused`], as it was.
            #[inline]
            pub fn try_raccumulate<O: OwnedOperands>(
                &self,
                $($target: Rank,)?
                disp: impl Displacement,
                op: Op,
                origin: O,
            ) -> Result<Request<'w, O::Buffer>, Refused<O::Buffer>> {
                let $this = self;
                Request::accumulate::<O, true>(&$peer, disp, op, origin)
            }

            /// As [`get_accumulate`](crate::Access::get_accumulate), into a buffer that the request
            /// owns until [`wait`](Request::wait) gives it back, filled. `origin` and layouts are
            /// yours again on return. What waits packed is as for [`rget`](Self::rget).
            ///
            /// # Errors
            ///
            /// Those of [`get_accumulate`](crate::Access::get_accumulate); the buffer for the
            /// result comes back with them in a [`Refused`], unchanged, or its elements
            /// unspecified if a peer failed.
            #[inline]
            pub fn rget_accumulate<R: OwnedOrigin>(
                &self,
                $($target: Rank,)?
                disp: impl Displacement,
                op: Op,
                origin: impl Operands<Element = <R::Buffer as OriginBuffer>::Element>,
                result: R,
            ) -> Result<Request<'w, R::Buffer>, Refused<R::Buffer>> {
                let $this = self;
                Request::get_accumulate::<false>(&$peer, disp, op, origin, result)
            }

            /// As [`rget_accumulate`](Self::rget_accumulate), issued at once or not at all, as
            /// [`try_accumulate`](crate::Access::try_accumulate): only its
            /// [`wait`](Request::wait) waits.
            ///
            /// # Errors
            ///
            /// [`RmaError::WouldBlock`] if there is no room now, [`RmaError::TooLargeToTry`] if
            /// there never is enough: nothing was issued then. Otherwise those of
            /// [`rget_accumulate`](Self::rget_accumulate); the buffer for the result comes back
            /// with them in a [`Refused`].
            #[inline]
            pub fn try_rget_accumulate<R: OwnedOrigin>(
                &self,
                $($target: Rank,)?
                disp: impl Displacement,
                op: Op,
                origin: impl Operands<Element = <R::Buffer as OriginBuffer>::Element>,
                result: R,
            ) -> Result<Request<'w, R::Buffer>, Refused<R::Buffer>> {
                let $this = self;
                Request::get_accumulate::<true>(&$peer, disp, op, origin, result)
            }
        }
    };
}

requests!(Lock, |guard| guard.again());
requests!(LockAll, |guard, target| guard.to(target));
