//! Where ranks are reached: what a rank says of itself, and asks of others.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::{Client, Ear, End, LEAVE_TIMEOUT, lost};
use crate::start::StartError;
use crate::wire::{self, ToLauncher};

impl Client {
    /// Tells the launcher where this rank is reached, and has `told` hear where others are of whom
    /// there was a [query](Self::query), from a thread. Once, before any thread exchanges or asks;
    /// a card has 1024 bytes at most.
    ///
    /// # Errors
    ///
    /// When there is no thread to be had, when the launcher is gone, and when this rank has left.
    pub fn publish(
        &self,
        card: &[u8],
        told: impl Fn(u32, &[u8]) + Send + 'static,
    ) -> Result<(), StartError> {
        let _exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ear.get().is_none() {
            let end = End::of(&self.is_cut, &self.job, self.managed.as_ref());
            let ear = self.stream.try_clone().and_then(|stream| Ear::start(stream, end));
            let system = |source| StartError::System { call: "starting a thread", source };
            _ = self.ear.set(ear.map_err(system)?);
        }
        if let Some(ear) = self.ear.get() {
            let mut news = ear.news.lock().unwrap_or_else(PoisonError::into_inner);
            news.told = Some(Box::new(told));
        }
        let _turn = self.writing.take(None);
        if self.left.load(Ordering::Relaxed) {
            return Err(StartError::HasLeft { rank: self.job.rank });
        }
        let lost = |source| lost(&self.settings, "said where it is reached", source);
        wire::write(&self.stream, &ToLauncher::Card { card: card.to_vec() }).map_err(lost)
    }

    /// Asks where that rank is reached: who has [published](Self::publish) hears it. Does not wait.
    /// False if the launcher is gone, or this rank has left.
    pub fn query(&self, rank: u32) -> bool {
        if std::process::id() != self.pid {
            return false;
        }
        let Some(_turn) = self.writing.take(Some(LEAVE_TIMEOUT)) else { return false };
        // Nothing follows a `Leave`.
        !self.left.load(Ordering::Relaxed)
            && wire::write(&self.stream, &ToLauncher::Query { rank }).is_ok()
    }
}
