//! How ranks open a persistent window together and make versions of it, on whatever storage: which
//! call of a rank follows which, of its own storage and of all ranks, whatever they answer.

use super::error::{PersistentCode, PersistentError};
use super::hints::{PersistentHints, PersistentMode};
use super::start::{Beginning, OPENING};
use super::{Ranks, agree};
use crate::store::{
    Decision, ElementType, Key, Medium, Opening, PartRef, PartStore, State, following, tag,
};
use rma_core::transport::FileId;
use std::time::{SystemTime, UNIX_EPOCH};

type Result<T> = std::result::Result<T, PersistentError>;

/// What tells a commit which blocks it has to look at.
pub(super) trait Marks {
    /// The window is open: these are the files of the parts, by rank.
    fn begin(&mut self, files: Vec<FileId>);
    /// Which blocks of this rank's part may have changed; `None`: any. All ranks have ended their
    /// stores. **Collective**
    fn stored(&mut self, ranks: &impl Ranks) -> impl Future<Output = Result<Option<Vec<bool>>>>;
    /// The commit that asked has come to its end, and wrote so many blocks.
    fn committed(&mut self, changed: usize);
}

/// What a rank tells of its transaction before a commit: the highest serial, the number that it
/// would have, the highest number, and whether older versions are kept.
pub(super) type Numbers = [u64; 4];

/// What all ranks do, as errors name it.
pub(super) const COMMIT: &str = "a commit";

/// A mistake of a rank that tests must notice.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slip {
    /// It takes its part back when it has not heard whether all have theirs.
    AbandonsUnheard,
    /// So it does when it has not heard whether the version is decided.
    AbandonsUndecided,
    /// It says that the version is there before it has heard that it is decided.
    ReturnsUndecided,
    /// It takes its own next number for that of all.
    OwnNumber,
    /// It copies its blocks when they are written, and not when the version is asked for.
    CopiesLate,
    /// It goes on without having heard that all have copied.
    GoesOnEarly,
}

/// A version that all ranks have asked for, and none has decided: each has copies of what it is to
/// have, which [`PartStore::write`] makes durable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requested {
    decision: Decision,
    keep_all: bool,
}

impl Requested {
    pub(super) fn serial(&self) -> u64 {
        self.decision.serial
    }
}

/// The transaction under way of a rank.
#[derive(Debug)]
pub(super) struct Transaction<M: Medium> {
    /// None if the window is volatile.
    pub(super) store: Option<PartStore<M>>,
    /// The version that it began with.
    pub(super) version: Option<u64>,
    name: String,
    element: ElementType,
    next: u64,
    highest: u64,
    /// At its commit, older versions go in any case: their parts are of other sizes.
    drops: bool,
    /// At its commit, versions of its number and above go.
    replaces: bool,
    #[cfg(test)]
    pub(super) slip: Option<Slip>,
}

/// Opens the window below a root, or makes it, with `len` bytes of this rank: when it returns, the
/// parts have what they begin with. `make` makes what this rank's part lies on, and `checked` says
/// whether it is to be opened at all, and which opening of the root this rank has. **Collective**:
/// one rank fails if another does, and no version is harmed.
pub(super) async fn open<M: Medium + Clone, W>(
    root: (&M, &Key),
    ranks: &impl Ranks,
    hints: &PersistentHints,
    len: u64,
    checked: Result<u64>,
    marks: &mut impl Marks,
    make: impl FnOnce() -> Result<(W, FileId)>,
) -> Result<(Transaction<M>, W)> {
    let ((medium, key), name, rank) = (root, &hints.name, ranks.rank());
    let told = tag(key, format!("{hints:?}").as_bytes());
    let (_, all) = agree(ranks, OPENING, checked, |opening| [told, *opening]).await?;
    if all.iter().any(|one| *one != all[0]) {
        let what = "ranks gave different hints or roots; all give the same, in the same order";
        return Err(PersistentError::Arg { name: name.clone(), what });
    }
    let make_folder = || {
        medium.make_folder(name)?;
        Ok(medium.sync_folder("")?)
    };
    agree(ranks, OPENING, if rank == 0 { make_folder() } else { Ok(()) }, |()| []).await?;
    let beginning = Beginning::find(root, hints, (rank, ranks.size()), len);
    let (mut beginning, sizes) = agree(ranks, OPENING, beginning, |_| [len]).await?;
    let mut is_known = hints.mode != PersistentMode::Checkpoint;
    if hints.divides() {
        let divided = beginning.divide(hints, rank, sizes.as_flattened());
        (is_known, _) = agree(ranks, OPENING, divided, |_| []).await?;
    }
    if !is_known {
        let number = beginning.number(ranks, hints).await?;
        let chosen = beginning.choose(hints, rank, number, len);
        agree(ranks, OPENING, chosen, |()| []).await?;
    }
    let opened = make().and_then(|(made, file)| {
        let begun = Transaction::begin(root, hints, (rank, ranks.size()), len, &beginning);
        begun.map(|transaction| (transaction, made, file))
    });
    let begins = u64::from(beginning.needs_version(hints, len));
    let words = |(.., FileId { device, inode }): &(_, _, FileId)| [begins, *device, *inode];
    let (opened, all) = agree(ranks, OPENING, opened, words).await?;
    let (mut transaction, made, _) = opened;
    marks.begin(all.iter().map(|&[_, device, inode]| FileId { device, inode }).collect());
    if !hints.volatile && all.iter().any(|[begins, ..]| *begins > 0) {
        let state = if hints.plain { State::Plain } else { State::Kept };
        transaction.commit(ranks, marks, state, hints.keep_all, None).await?;
    }
    Ok((transaction, made))
}

impl<M: Medium> Transaction<M> {
    /// The local part of opening: no other rank has the part, and it has the bytes that it begins
    /// with.
    fn begin(
        (medium, key): (&M, &Key),
        hints: &PersistentHints,
        (rank, ranks): (u32, u32),
        size: u64,
        beginning: &Beginning,
    ) -> Result<Self>
    where
        M: Clone,
    {
        let Beginning { catalog, base, is_plain, pieces, .. } = beginning;
        let (name, base) = (&*hints.name, base.as_ref());
        let opening = Opening { name, rank, ranks, size, base };
        let store = PartStore::open(medium.clone(), *key, catalog, &opening)?;
        match pieces {
            Some(pieces) => store.fill_from(pieces)?,
            None if *is_plain => {}
            None => store.fill()?,
        }
        if hints.plain {
            store.sync_work()?;
        }
        let (version, highest) = (base.map(|base| base.number), catalog.highest_number());
        let is_version = hints.mode == PersistentMode::Checkpoint && !hints.append;
        let next = match version {
            Some(version) if is_version => following(name, version)?,
            _ if catalog.is_nothing() => 0,
            _ => following(name, highest)?,
        };
        let told = [hints.element].into_iter().chain(catalog.versions.last().map(|of| of.element));
        Ok(Self {
            store: Some(store).filter(|_| !hints.volatile),
            version,
            name: hints.name.clone(),
            element: told.into_iter().find(|of| of.size > 0).unwrap_or_default(),
            next,
            highest,
            drops: hints.mode == PersistentMode::Expand || pieces.is_some(),
            replaces: is_version && pieces.is_none(),
            #[cfg(test)]
            slip: None,
        })
    }

    pub(super) fn numbers(&self, keep_all: bool) -> Result<Numbers> {
        let store = self.store.as_ref().filter(|store| !store.is_poisoned());
        let store = store.ok_or_else(|| poisoned(&self.name))?;
        Ok([store.highest_serial(), self.next, self.highest, keep_all.into()])
    }

    /// Both phases of a version of all ranks, of which `told` has what they have told, if they
    /// have: all parts are durable, and then rank 0 decides. **Collective**
    pub(super) async fn commit(
        &mut self,
        ranks: &impl Ranks,
        marks: &mut impl Marks,
        state: State,
        keep_all: bool,
        told: Option<Vec<Numbers>>,
    ) -> Result<u64> {
        let (requested, stored) = self.begin_version(ranks, marks, state, keep_all, told).await?;
        let serial = requested.serial();
        let prepared = self.store_mut().and_then(|store| store.prepare(serial, stored.as_deref()));
        self.conclude(ranks, marks, &requested, prepared).await
    }

    /// Asks for a version of all ranks, of what their parts hold now: copies them, of `room` bytes
    /// at most. From when it returns, ranks store again. What is to follow is
    /// [`PartStore::write`], and [`conclude`](Self::conclude). Returns how many bytes were written
    /// for which there was no room. **Collective**
    pub(super) async fn request(
        &mut self,
        ranks: &impl Ranks,
        marks: &mut impl Marks,
        keep_all: bool,
        told: Option<Vec<Numbers>>,
        room: usize,
    ) -> Result<(Requested, u64)> {
        let begun = self.begin_version(ranks, marks, State::Kept, keep_all, told).await;
        let (requested, stored) = begun?;
        #[cfg(test)]
        let slip = self.slip;
        let store = self.store_mut()?;
        #[cfg(test)]
        if slip == Some(Slip::CopiesLate) {
            agree(ranks, COMMIT, Ok(()), |()| []).await?;
            return Ok((requested, 0));
        }
        let captured = store.capture(stored.as_deref(), room);
        #[cfg(test)]
        if slip == Some(Slip::GoesOnEarly) {
            return captured.map(|written| (requested, written));
        }
        // Others may store to this part as soon as they go on: not before it is copied.
        match agree(ranks, COMMIT, captured, |_| []).await {
            Ok((written, _)) => Ok((requested, written)),
            Err(error) => {
                store.give_up(&error);
                Err(error)
            }
        }
    }

    /// What a commit begins with: the number of the version, and which blocks were stored to.
    /// **Collective**
    async fn begin_version(
        &mut self,
        ranks: &impl Ranks,
        marks: &mut impl Marks,
        state: State,
        keep_all: bool,
        told: Option<Vec<Numbers>>,
    ) -> Result<(Requested, Option<Vec<bool>>)> {
        let all = match told {
            Some(told) => told,
            None => agree(ranks, COMMIT, self.numbers(keep_all), |numbers| *numbers).await?.1,
        };
        // All have come, so that what they store meanwhile has ended.
        let stored = marks.stored(ranks).await.inspect_err(|_| self.poison())?;
        let most = |word: usize| all.iter().map(|all| all[word]).max().unwrap_or(0);
        let (keep_all, time_ns) = (most(3) > 0, now());
        let number = if state == State::Plain { most(2) } else { most(1) };
        #[cfg(test)]
        let number = if self.slip == Some(Slip::OwnNumber) { self.next } else { number };
        // The same at all ranks.
        let serial = following(&self.name, most(0))?;
        following(&self.name, number)?;
        let (highest, alone, element) = (most(2).max(number), false, self.element);
        let decision = Decision { number, serial, highest, time_ns, state, alone, element };
        Ok((Requested { decision, keep_all }, stored))
    }

    /// The second phase, and the end of the first, in which this rank's part was `prepared`.
    /// **Collective**
    pub(super) async fn conclude(
        &mut self,
        ranks: &impl Ranks,
        marks: &mut impl Marks,
        requested: &Requested,
        prepared: Result<PartRef>,
    ) -> Result<u64> {
        let Requested { decision, keep_all } = requested;
        let told = agree(ranks, COMMIT, prepared, words_of).await;
        #[cfg(test)]
        let slip = self.slip;
        let store = self.store_mut()?;
        let changed = store.changed_blocks();
        let parts = match told {
            Ok((_, parts)) => parts.into_iter().map(part_of).collect(),
            Err(error) => {
                #[cfg(test)]
                if slip == Some(Slip::AbandonsUnheard) {
                    store.abandon();
                }
                store.give_up(&error);
                return Err(error);
            }
        };
        let decided = if ranks.rank() == 0 { store.decide(decision, parts) } else { Ok(()) };
        let decided = agree(ranks, COMMIT, decided, |()| []).await;
        #[cfg(test)]
        match slip {
            Some(Slip::AbandonsUndecided) if decided.is_err() => store.abandon(),
            Some(Slip::ReturnsUndecided) if decided.is_err() => return Ok(decision.number),
            _ => {}
        }
        decided.inspect_err(|error| {
            // Rank 0 says so as long as it has decided nothing.
            match error.code() {
                Some(PersistentCode::NoMem) => store.abandon(),
                _ => store.poison(),
            }
        })?;
        // The version is there, whatever becomes of those that it takes the place of; and their
        // records are gone before the next commit of any rank synchronises the folder.
        let adopted = self.adopt(decision, *keep_all);
        let adopted = agree(ranks, COMMIT, adopted, |()| []).await;
        adopted.inspect_err(|_| self.poison())?;
        if decision.state == State::Kept {
            marks.committed(changed);
        }
        Ok(decision.number)
    }

    /// What this rank has copied for a version that was asked for becomes durable.
    #[cfg(test)]
    pub(super) fn write(&mut self, requested: &Requested) -> Result<PartRef> {
        let (slip, store) = (self.slip, self.store_mut()?);
        if slip == Some(Slip::CopiesLate) {
            store.capture(None, 0)?;
        }
        store.write(requested.serial())
    }

    fn store_mut(&mut self) -> Result<&mut PartStore<M>> {
        self.store.as_mut().ok_or_else(|| poisoned(&self.name))
    }

    /// Makes what the window lies on what it holds, behind a version: without transactions.
    /// **Collective**
    pub(super) async fn end(
        &mut self,
        ranks: &impl Ranks,
        marks: &mut impl Marks,
        keep_all: bool,
    ) -> Result<()> {
        // What the window lies on is durable before the record that says so is.
        let synced = self.store.as_ref().map_or(Ok(()), PartStore::sync_work).map_err(behind);
        let synced = agree(ranks, "turning transactions off", synced, |()| []).await;
        synced.inspect_err(|_| self.poison())?;
        self.commit(ranks, marks, State::Plain, keep_all, None).await.map(drop)
    }

    /// A version of this rank only. Local.
    pub(super) fn commit_alone(&mut self, keep_all: bool) -> Result<u64> {
        let store = self.store.as_mut().ok_or_else(|| poisoned(&self.name))?;
        let serial = following(&self.name, store.highest_serial())?;
        following(&self.name, self.next)?;
        let part = store.prepare(serial, None)?;
        let (number, highest) = (self.next, self.highest.max(self.next));
        let (state, alone, time_ns, element) = (State::Kept, true, now(), self.element);
        let decision = Decision { number, serial, highest, time_ns, state, alone, element };
        store.decide(&decision, vec![part])?;
        self.adopt(&decision, keep_all).map(|()| number)
    }

    fn poison(&mut self) {
        self.store.iter_mut().for_each(PartStore::poison);
    }

    fn adopt(&mut self, decision: &Decision, keep_all: bool) -> Result<()> {
        let store = self.store.as_mut().ok_or_else(|| poisoned(&self.name))?;
        let from = if self.replaces { decision.number } else { u64::MAX };
        let adopted = store.adopt(decision, keep_all && !self.drops, from);
        adopted.map_err(behind).inspect_err(|_| store.poison())?;
        self.highest = decision.highest;
        if decision.state == State::Kept {
            (self.version, self.next) = (Some(decision.number), decision.number + 1);
            (self.drops, self.replaces) = (false, false);
        }
        Ok(())
    }
}

/// Also of a store that is lost with the thread that had it.
fn poisoned(name: &str) -> PersistentError {
    PersistentError::Poisoned { name: name.to_owned() }
}

/// An error after a version was decided. That is there, so that it is not
/// [`PersistentError::Space`], which says that there is none.
fn behind(error: PersistentError) -> PersistentError {
    match error {
        PersistentError::Space { path, limit } => {
            PersistentError::System { path, call: "commit", errno: limit.errno().raw_os_error() }
        }
        error => error,
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn words_of(part: &PartRef) -> [u64; 6] {
    let mut words = [part.serial, part.size, 0, 0, 0, 0];
    for (word, bytes) in words[2..].iter_mut().zip(part.mac.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}

fn part_of([serial, size, mac @ ..]: [u64; 6]) -> PartRef {
    let mut bytes = [0; 32];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(mac) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    PartRef { serial, size, mac: bytes }
}
