//! How the writer of a lane and its readers tell each other which pieces are there, and which are
//! done with, whatever the words and the bells are.
//!
//! Pieces have numbers from 0 on. The writer overwrites the place of a piece when all of its
//! readers have said that they have done with it.
use crate::memory::lane::{UnreadPiece, is_past, is_read};
use crate::rank::Rank;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Release};
use std::sync::Arc;

/// A rank at a lane, its own or that of a peer.
pub(super) trait AtLane {
    /// Why a wait failed.
    type Error;

    /// How many pieces were written.
    fn written(&self) -> &impl Word<Value = u64>;
    /// The number behind the last piece that a reader has done with.
    fn read_by(&self, reader: Rank) -> &impl Word<Value = u64>;
    /// Wakes a rank that waits.
    fn ring(&self, rank: Rank);
    /// Waits until `is_there`, which the writer makes true.
    fn wait_there(&self, writer: Rank, is_there: impl Fn() -> bool) -> Result<(), Self::Error>;
    /// Waits until `is_read`, which a reader makes true when it has done with the piece of that
    /// number.
    fn wait_read(
        &self,
        reader: Rank,
        number: u64,
        is_read: impl Fn() -> bool,
    ) -> Result<(), Self::Error>;
}

/// The ranks that read a piece.
#[derive(Debug, Clone)]
pub(super) enum Readers {
    None,
    One(Rank),
    All(Arc<[Rank]>),
}

impl Readers {
    fn ranks(&self) -> &[Rank] {
        match self {
            Self::None => &[],
            Self::One(rank) => core::slice::from_ref(rank),
            Self::All(ranks) => ranks,
        }
    }
}

/// The places of a lane, as its writer knows them.
pub(super) struct HeldPlaces {
    /// Of the next piece.
    next: u64,
    /// The readers of what is in each place, and its number.
    held: Vec<(Readers, u64)>,
}

impl HeldPlaces {
    /// Of a lane whose next piece has that number.
    pub(super) fn new(places: u32, next: u64) -> Self {
        Self { next, held: vec![(Readers::None, 0); places as usize] }
    }

    /// The number of the next piece.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Has the next piece written, when its place is free. Readers are rung, unless there is more
    /// for them at once.
    pub(super) fn put<S: AtLane>(
        &mut self,
        side: &S,
        readers: Readers,
        rings: bool,
        write: impl FnOnce(u64),
    ) -> Result<(), S::Error> {
        let number = self.next;
        let place = (number % self.held.len() as u64) as usize;
        let held = &mut self.held[place];
        wait_read(side, held)?;
        write(number);
        publish(side.written(), number);
        self.next += 1;
        let rung = readers.ranks().iter().filter(|_| rings);
        rung.for_each(|rank| side.ring(*rank));
        *held = (readers, number);
        Ok(())
    }

    /// Waits until all that was written is read.
    pub(super) fn drain<S: AtLane>(&mut self, side: &S) -> Result<(), S::Error> {
        self.held.iter().try_for_each(|held| wait_read(side, held))?;
        self.held.iter_mut().for_each(|(readers, _)| *readers = Readers::None);
        Ok(())
    }

    /// Waits until each rank that is to read something has read it, but for those that are `known`
    /// to come to it even if this rank has left. They all are, then.
    pub(super) fn settle<S: AtLane>(&self, side: &S, known: &mut [bool]) -> Result<(), S::Error> {
        for (readers, number) in &self.held {
            for reader in readers.ranks().iter().filter(|reader| !known[usize::from(**reader)]) {
                wait_read_by(side, *reader, *number)?;
            }
        }
        let readers = self.held.iter().flat_map(|(readers, _)| readers.ranks());
        readers.for_each(|reader| known[usize::from(*reader)] = true);
        Ok(())
    }

    /// No rank comes to what was written from that piece on.
    pub(super) fn recall(&mut self, first: u64) {
        let later = self.held.iter_mut().filter(|(_, number)| *number >= first);
        later.for_each(|(readers, _)| *readers = Readers::None);
    }

    /// What readers may not have done with.
    pub(super) fn unread(&self) -> impl Iterator<Item = UnreadPiece> {
        self.held.iter().flat_map(|&(ref readers, number)| {
            readers.ranks().iter().map(move |&reader| UnreadPiece { reader, number })
        })
    }
}

fn wait_read<S: AtLane>(side: &S, (readers, number): &(Readers, u64)) -> Result<(), S::Error> {
    readers.ranks().iter().try_for_each(|reader| wait_read_by(side, *reader, *number))
}

fn wait_read_by<S: AtLane>(side: &S, reader: Rank, number: u64) -> Result<(), S::Error> {
    let read = side.read_by(reader);
    side.wait_read(reader, number, || is_read(read, number))
}

/// Has the piece of that number read by `reader`, when `writer` has written it. The writer is rung,
/// unless more of what it has written is read at once.
pub(super) fn get<S: AtLane>(
    side: &S,
    (writer, reader): (Rank, Rank),
    number: u64,
    rings: bool,
    read: impl FnOnce(),
) -> Result<(), S::Error> {
    let written = side.written();
    side.wait_there(writer, || is_there(written, number))?;
    read();
    done_with(side.read_by(reader), number);
    if rings {
        side.ring(writer);
    }
    Ok(())
}

/// Whether a piece is the last of one half of a lane.
pub(super) fn ends_half(number: u64, half: u64) -> bool {
    number % half == half - 1
}

/// The writer has written the piece of that number, and all before it.
fn publish(written: &impl Word<Value = u64>, number: u64) {
    // pairs with the Acquire load in `is_there`.
    written.store(number.wrapping_add(1), Release);
}

/// Whether a reader finds the piece of that number.
fn is_there(written: &impl Word<Value = u64>, number: u64) -> bool {
    // pairs with the Release store in `publish`.
    is_past(written.load(Acquire), number)
}

/// A reader has done with the piece of that number, and all before it that are for it.
fn done_with(read: &impl Word<Value = u64>, number: u64) {
    // pairs with the Acquire load in `is_read`: what it has read is what was there before.
    read.store(number.wrapping_add(1), Release);
}

#[cfg(all(test, loom))]
#[path = "pieces_loom_tests.rs"]
mod loom_tests;
