//! Where ranks are reached: what a rank says of itself, and asks of others.

use std::io;
use std::net::Shutdown;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::{Client, Ear, End, LEAVE_TIMEOUT, lost};
use crate::start::StartError;
use crate::wire::{CARD_MAX, ToLauncher};

impl Client {
    /// Tells the launcher where this rank is reached, and has `told` hear, from a thread, where
    /// ranks are that a [query](Self::query) asked for; `None` once it can hear of no more. Once,
    /// before any thread exchanges or asks; a card has 1024 bytes at most.
    ///
    /// # Errors
    ///
    /// When the card is longer, when there is no thread to be had, when the launcher is gone, and
    /// when this rank has left.
    pub fn publish(
        &self,
        card: &[u8],
        told: impl Fn(Option<(u32, &[u8])>) + Send + 'static,
    ) -> Result<(), StartError> {
        let lost = |source| lost(&self.settings, "said where it is reached", source);
        if card.len() > CARD_MAX {
            let what = format!("a card of {} bytes, of at most {CARD_MAX}", card.len());
            return Err(lost(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let ear = match self.ear.get() {
            Some(ear) => ear,
            None => {
                let end = End::of(&self.is_cut, &self.job, self.managed.as_ref());
                let no_opener = || lost(io::ErrorKind::NotConnected.into());
                let opener = exchange.take().ok_or_else(no_opener)?;
                let ear = Ear::start(&self.stream, self.job.rank, opener, end)?;
                self.ear.get_or_init(|| ear)
            }
        };
        let mut news = ear.news.lock().unwrap_or_else(PoisonError::into_inner);
        // It may be over already.
        if news.is_over {
            told(None);
        }
        news.told = Some(Box::new(told));
        drop(news);
        let _turn = self.writing.take(None);
        if self.left.load(Ordering::Relaxed) {
            return Err(StartError::HasLeft { rank: self.job.rank });
        }
        self.send(&ToLauncher::Card { card: card.to_vec() }).map_err(lost)
    }

    /// Asks where that rank is reached: the `told` of [`publish`](Self::publish) hears it. Does not
    /// wait for the answer; for its turn to ask, and for a launcher that does not read, a second
    /// each. False if that is too short, the launcher is gone, or this rank has left.
    pub fn query(&self, rank: u32) -> bool {
        let is_deaf = |ear: &Ear| ear.news.lock().unwrap_or_else(PoisonError::into_inner).is_over;
        if std::process::id() != self.pid || self.ear.get().is_none_or(is_deaf) {
            return false;
        }
        let Some(_turn) = self.writing.take(Some(LEAVE_TIMEOUT)) else { return false };
        // Nothing follows a `Leave`.
        if self.left.load(Ordering::Relaxed) {
            return false;
        }
        let is_sent = self.send_soon(&ToLauncher::Query { rank });
        if !is_sent {
            // Nothing can follow a part of a frame; the ear hears the end, and tells of it.
            _ = self.stream.shutdown(Shutdown::Both);
        }
        // An exchange waits as long as it takes.
        is_sent && self.stream.set_write_timeout(None).is_ok()
    }
}
