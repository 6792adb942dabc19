//! Targets that were asked what is to be known of their parts by operations that do not wait: the
//! answer is for the next one.
#![allow(unsafe_code)]

use super::Window;
use crate::engine::{Buffer, Pending};
use crate::error::{RmaError, Shortage};
use crate::operation::Operation;
use crate::protocol::message::Card;
use crate::rank::{Rank, WorldRank};
use core::mem;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// By target, and the address that was asked about.
#[derive(Default)]
pub(super) struct QueriedTargets(Mutex<FxHashMap<(Rank, u64), QueriedTarget>>);

/// So many answers that no operation came back for are looked through before the next is asked for.
const ANSWERS: usize = 64;

/// One of them.
struct QueriedTarget {
    pending: Arc<Pending>,
    /// Where the answer goes. Touched when `pending` is done only.
    // Not a box: moving that asserts that nothing else has the address of its bytes.
    bytes: Vec<u8>,
}

impl Drop for QueriedTarget {
    fn drop(&mut self) {
        if !self.pending.is_done() {
            self.pending.keep(Box::new(mem::take(&mut self.bytes)));
        }
    }
}

impl QueriedTargets {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<(Rank, u64), QueriedTarget>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: (Rank, u64)) -> Option<Arc<Pending>> {
        self.lock().get(&key).map(|query| query.pending.clone())
    }

    /// The answer that is counted in `pending`, once it has come.
    fn take(&self, key: (Rank, u64), pending: &Arc<Pending>) -> Option<QueriedTarget> {
        let mut all = self.lock();
        let is_answer =
            all.get(&key).is_some_and(|it| Arc::ptr_eq(&it.pending, pending) && pending.is_done());
        is_answer.then(|| all.remove(&key)).flatten()
    }

    /// Keeps a question, unless another thread has asked the same meanwhile; what counts the one
    /// that is kept.
    fn insert(&self, key: (Rank, u64), new: QueriedTarget) -> Arc<Pending> {
        self.lock().entry(key).or_insert(new).pending.clone()
    }

    /// What was asked so far is asked again, answered or not.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// Takes those that are answered, if there are many.
    fn take_answered(&self) -> Vec<((Rank, u64), QueriedTarget)> {
        let mut all = self.lock();
        if all.len() < ANSWERS {
            return Vec::new();
        }
        all.extract_if(|_, query| query.pending.is_done()).collect()
    }
}

impl Window {
    /// As [`query_card`](Self::query_card), without waiting: asks, and finds the answer if it has
    /// come since.
    pub(super) fn try_query_card(
        &self,
        operation: &Operation<'_>,
        world: WorldRank,
        address: u64,
    ) -> Result<Card, RmaError> {
        let (target, what) = (operation.target, self.card_query());
        let (queried, key) = (&self.far.queried, (target, address));
        let pending = match queried.get(key) {
            Some(pending) => pending,
            None => self.begin_query_card(operation, world, address)?,
        };
        let answered = || pending.is_done().then_some(());
        self.try_for(operation, self.wait_for(what, target), Shortage::Memory, answered)?;
        // Another thread may have taken it; it remembers what it was.
        let answer = queried.take(key, &pending);
        let answer = answer.ok_or_else(|| self.would_block(operation, Shortage::Memory))?;
        self.check_failure(what, target, &answer.pending)?;
        self.checked_card(target, address, &answer.bytes)
    }

    fn begin_query_card(
        &self,
        operation: &Operation<'_>,
        world: WorldRank,
        address: u64,
    ) -> Result<Arc<Pending>, RmaError> {
        let queried = &self.far.queried;
        for ((target, address), answer) in queried.take_answered() {
            // One that failed is asked again.
            if let (None, Ok(card)) =
                (answer.pending.failure(), self.checked_card(target, address, &answer.bytes))
            {
                self.learn_card(target, card);
            }
        }
        let pending = Arc::<Pending>::default();
        let mut new = QueriedTarget { pending: pending.clone(), bytes: vec![0; Card::LEN] };
        let buffer = Buffer { at: new.bytes.as_mut_ptr(), len: new.bytes.len() };
        let requests = vec![(self.card_head(address), buffer)];
        // SAFETY: the bytes are on the heap, owned by `new`, which touches them when `pending` is
        // done only, or gives them to it in drop.
        unsafe { self.try_issue(operation, world, requests, |_| Cow::default(), &pending) }?;
        Ok(queried.insert((operation.target, address), new))
    }
}
