//! What a commit has to look at: the blocks that were stored to since the last one, as the marks of
//! all processes say that map a part, or the whole part where they do not.

use super::transaction::Marks;
use super::{PersistentError, Ranks};
use crate::marks::marks;
use crate::store::BLOCK;
use core::ops::Range;
use rma_core::Communicator;
use rma_core::transport::{FileId, FileMapping, FileWatch, WorldRank};

/// How a commit finds out what has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DirtyTracking {
    /// By marks where the kernel keeps them, the last commit wrote at most 1/32 of the part,
    /// and that has 1 MiB or more; otherwise by comparison.
    Auto,
    /// By marks, where the kernel keeps them: the first store to each page of 4 KiB in a
    /// transaction takes some microseconds, and a commit looks at these pages only.
    WriteProtect,
    /// By comparing all bytes with the last version.
    #[default]
    Compare,
}

/// Runs of blocks of a part that a process tells its rank, at most; one of more is taken whole.
const RUNS_MAX: usize = 4096;
/// Smaller parts are compared.
const AUTO_MIN: u64 = 1 << 20;
/// Of the blocks, this part may have changed in the last commit.
const AUTO_SHARE: usize = 32;

/// Of one rank, for its part and for what it maps of others.
#[derive(Debug)]
pub(super) struct Tracker {
    wish: DirtyTracking,
    /// Why there are no marks, if there are none.
    flaw: Option<&'static str>,
    rank: u32,
    size: u64,
    /// The files of the parts, by rank; none if the program wants no marks.
    files: Option<FileWatch>,
    /// Of which ranks marks are kept in the transaction under way.
    tracked: Vec<bool>,
    /// Marks of this rank's part do not tell all: none were kept, or a commit failed that took
    /// them.
    whole: bool,
    /// The system keeps marks of a mapping of this rank's part: not of one that was made after the
    /// last commit, and so of none when the window is opened.
    is_armed: bool,
    /// The system would not keep marks of a mapping of this rank's part.
    is_refused: bool,
    /// Blocks that the last commit wrote.
    changed: usize,
}

/// What this process knows of the transaction that ends.
struct Found {
    /// Blocks of this rank's part; `None` if all may have changed.
    own: Option<Vec<bool>>,
    /// Runs of blocks of other parts: rank and first block, and how many.
    runs: Vec<[u64; 2]>,
    /// What was mapped here is not any more, and with it its marks.
    is_lost: bool,
}

/// A run that is a whole part.
const WHOLE: u64 = u64::MAX;

fn run_of(rank: usize, Range { start, end }: Range<usize>) -> [u64; 2] {
    [(rank as u64) << 32 | start as u64, (end - start) as u64]
}

impl Found {
    /// What process `rank` has stored to the part of `owner`, in blocks; `None` if that is unknown.
    fn note(&mut self, rank: usize, owner: usize, stored: Option<&[Range<usize>]>) {
        match stored {
            None if owner == rank => self.own = None,
            Some(stored) if owner == rank => {
                stored.iter().for_each(|run| add(&mut self.own, run.clone()));
            }
            Some(stored) if stored.len() <= RUNS_MAX => {
                self.runs.extend(stored.iter().map(|run| run_of(owner, run.clone())));
            }
            _ => self.runs.push([(owner as u64) << 32, WHOLE]),
        }
    }
}

impl Tracker {
    pub(super) fn new(wish: DirtyTracking, comm: &Communicator, size: u64) -> Self {
        let transport = comm.transport();
        let is_near = |rank: u32| transport.is_near(WorldRank(rank));
        let near = (0..transport.size()).filter(|rank| is_near(*rank)).count();
        let here = comm.group().members().filter(|rank| is_near(rank.0)).count();
        let known = match wish {
            // The system is not asked for what the program does not want.
            DirtyTracking::Compare => Ok(()),
            _ => marks().map(|_| ()),
        };
        let flaw = match known {
            Err(why) => Some(why),
            // Its driver may write through a mapping of its own.
            Ok(_) if transport.has_device() => Some("a device writes into the parts"),
            // They may map the part for a window that this communicator is only some of.
            Ok(_) if here < near => Some("ranks of this node have no part of the window"),
            Ok(_) if size.div_ceil(BLOCK as u64) > u64::from(u32::MAX) => {
                Some("a part has more than 2^32 blocks")
            }
            Ok(_) => None,
        };
        Self::of(wish, flaw, comm.rank().into(), size)
    }

    fn of(wish: DirtyTracking, flaw: Option<&'static str>, rank: u32, size: u64) -> Self {
        let (files, tracked, whole) = (None, Vec::new(), true);
        let (is_armed, is_refused, changed) = (false, false, 0);
        Self { wish, flaw, rank, size, files, tracked, whole, is_armed, is_refused, changed }
    }

    /// Whether commits look for marks at all; the same at all ranks.
    pub(super) fn is_tracking(&self) -> bool {
        self.wish != DirtyTracking::Compare
    }

    /// What is in force, and why.
    pub(super) fn explain(&self) -> String {
        let is_tracked = self.tracked.get(self.rank as usize).copied().unwrap_or(false);
        if is_tracked && self.is_refused {
            return "compare (the system refused marks of it)".into();
        }
        match (is_tracked && self.is_armed, self.wish, self.flaw) {
            (true, ..) => "write_protect".into(),
            (false, DirtyTracking::Compare, _) => "compare".into(),
            (false, _, Some(why)) => format!("compare ({why})"),
            (false, DirtyTracking::Auto, None) if self.size < AUTO_MIN => {
                "compare (the part is small)".into()
            }
            (false, DirtyTracking::Auto, None) if self.has_changed_much() => {
                "compare (the last commit changed much)".into()
            }
            (false, ..) => "compare (until the next commit)".into(),
        }
    }

    fn has_changed_much(&self) -> bool {
        self.changed * AUTO_SHARE > self.blocks()
    }

    fn blocks(&self) -> usize {
        self.size.div_ceil(BLOCK as u64) as usize
    }

    /// Whether marks of this part are to be kept in the next transaction.
    fn wants(&self) -> bool {
        self.flaw.is_none()
            && match self.wish {
                DirtyTracking::Compare => false,
                DirtyTracking::WriteProtect => true,
                DirtyTracking::Auto => self.size >= AUTO_MIN && !self.has_changed_much(),
            }
    }

    /// Takes the marks of what this process maps.
    fn take(&mut self) -> Found {
        let (rank, tracked) = (self.rank as usize, &self.tracked);
        let own =
            (!self.whole && tracked.get(rank) == Some(&true)).then(|| vec![false; self.blocks()]);
        let mut found = Found { own, runs: Vec::new(), is_lost: false };
        // If what follows does not come to its end, the marks are gone.
        self.whole = true;
        let Some(files) = &self.files else { return found };
        files.each(|mapping, owners| {
            let owners = owners.iter().filter(|owner| tracked[**owner]);
            let mut known = None;
            for &owner in owners {
                let stored = known.get_or_insert_with(|| marked(mapping));
                found.note(rank, owner, stored.as_deref());
            }
        });
        // After them: one that has ended meanwhile was looked at, or is told of now.
        found.is_lost = files.has_ended();
        found
    }

    /// Three words of what was found, for all ranks.
    fn words(&self, found: &Found) -> [u64; 3] {
        [found.runs.len() as u64, found.is_lost.into(), self.wants().into()]
    }

    /// What all have found, whose `words` these are. **Collective** if one has found something.
    async fn join(
        &mut self,
        ranks: &impl Ranks,
        found: Found,
        words: &[[u64; 3]],
    ) -> Result<Option<Vec<bool>>, PersistentError> {
        let Found { mut own, runs, .. } = found;
        if words.iter().any(|[_, is_lost, _]| *is_lost > 0) {
            own = None;
        }
        let most = words.iter().map(|[count, ..]| *count).max().unwrap_or(0);
        if let Ok(most) = usize::try_from(most)
            && most > 0
        {
            let mut told = runs;
            // A run of no rank.
            told.resize(most, [u64::MAX, 0]);
            let all = ranks.gather("a commit", told.as_flattened()).await?;
            for run in all.as_chunks::<2>().0 {
                let [at, count] = *run;
                if at >> 32 == u64::from(self.rank) {
                    let start = (at & u64::from(u32::MAX)) as usize;
                    match count {
                        WHOLE => own = None,
                        count => add(&mut own, start..start.saturating_add(count as usize)),
                    }
                }
            }
        }
        for (tracked, [.., wants]) in self.tracked.iter_mut().zip(words) {
            *tracked = *wants > 0;
        }
        self.arm();
        Ok(own)
    }

    /// All mappings of tracked parts, and no others.
    fn arm(&mut self) {
        let (Some(files), Ok(marks)) = (&self.files, marks()) else { return };
        let (tracked, own) = (&self.tracked, self.rank as usize);
        let (mut is_armed, mut is_refused) = (false, false);
        files.each(|mapping, owners| {
            match (owners.iter().any(|owner| tracked[*owner]), mapping.is_armed) {
                // One that cannot be is as one that is made later.
                (true, false) => {
                    mapping.is_armed = marks.arm(mapping.base, mapping.len).is_ok();
                    is_refused |= !mapping.is_armed && owners.contains(&own);
                }
                (false, true) => {
                    marks.disarm(mapping.base, mapping.len);
                    mapping.is_armed = false;
                }
                (true, true) | (false, false) => {}
            }
            is_armed |= mapping.is_armed && owners.contains(&own);
        });
        (self.is_armed, self.is_refused) = (is_armed, is_refused);
    }
}

impl Marks for Tracker {
    fn begin(&mut self, files: Vec<FileId>) {
        self.tracked = vec![false; files.len()];
        self.files = self.is_tracking().then(|| FileWatch::new(files));
    }

    /// By the marks of all processes. Keeps marks of the parts from now on whose ranks want it.
    async fn stored(&mut self, ranks: &impl Ranks) -> Result<Option<Vec<bool>>, PersistentError> {
        if !self.is_tracking() {
            return Ok(None);
        }
        let found = self.take();
        let all = ranks.gather("a commit", &self.words(&found)).await?;
        self.join(ranks, found, all.as_chunks().0).await
    }

    fn committed(&mut self, changed: usize) {
        (self.whole, self.changed) = (false, changed);
    }
}

/// Blocks of the file that were stored to by this mapping, in ascending order, or `None` if that is
/// not known.
fn marked(mapping: &FileMapping) -> Option<Vec<Range<usize>>> {
    let marks = marks().ok().filter(|_| mapping.is_armed)?;
    let mut runs: Vec<Range<usize>> = Vec::new();
    let block = |at: usize| (mapping.offset as usize + at) / BLOCK;
    let scanned = marks.scan(mapping.base, mapping.len, |bytes| {
        let (start, end) = (block(bytes.start), block(bytes.end - 1) + 1);
        match runs.last_mut() {
            Some(last) if last.end >= start => last.end = end,
            _ => runs.push(start..end),
        }
    });
    scanned.ok().map(|()| runs)
}

fn add(blocks: &mut Option<Vec<bool>>, run: Range<usize>) {
    let Some(blocks) = blocks else { return };
    // The last page may end behind the part.
    let end = run.end.min(blocks.len());
    blocks[run.start.min(end)..end].fill(true);
}

#[cfg(test)]
mod tests {
    use super::super::finish;
    use super::*;
    use rma_core::transport::Mapping;

    const BLOCKS: usize = 16;
    const RANKS: usize = 3;

    /// What the ranks tell each other, as each of them hears it.
    struct Told {
        rank: usize,
        words: Vec<u64>,
    }

    impl Ranks for Told {
        fn rank(&self) -> u32 {
            self.rank as u32
        }

        fn size(&self) -> u32 {
            RANKS as u32
        }

        async fn gather(&self, _: &'static str, _: &[u64]) -> Result<Vec<u64>, PersistentError> {
            Ok(self.words.clone())
        }
    }

    fn tracker(rank: usize) -> Tracker {
        let size = (BLOCKS * BLOCK) as u64;
        let mut tracker = Tracker::of(DirtyTracking::WriteProtect, None, rank as u32, size);
        (tracker.tracked, tracker.whole) = (vec![true; RANKS], false);
        tracker
    }

    /// What becomes of what is told, by mistake.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Mistake {
        None,
        /// Runs of this rank are not heard.
        Deaf(usize),
        /// Parts that are to be taken whole are not.
        Divides,
    }

    /// Stores of all processes to all parts are found by the owners of these: of processes whose
    /// marks of each other's parts are `stored`, by process and part; `None` if they have lost
    /// them.
    fn are_found(stored: &[[Option<Vec<usize>>; RANKS]; RANKS], mistake: Mistake) -> bool {
        let trackers: Vec<_> = (0..RANKS).map(tracker).collect();
        let found = |rank: usize| {
            let own = Some(vec![false; BLOCKS]);
            let mut found = Found { own, runs: Vec::new(), is_lost: false };
            for (part, blocks) in stored[rank].iter().enumerate() {
                let runs = |blocks: &Vec<usize>| -> Vec<_> {
                    blocks.iter().map(|block| *block..*block + 1).collect()
                };
                found.note(rank, part, blocks.as_ref().map(runs).as_deref());
            }
            let mistakes = found.runs.iter_mut().filter(|_| mistake == Mistake::Divides);
            mistakes.filter(|[_, count]| *count == WHOLE).for_each(|[_, count]| *count = 1);
            found
        };
        let words: Vec<_> =
            trackers.iter().zip(0..).map(|(tracker, rank)| tracker.words(&found(rank))).collect();
        let most = words.iter().map(|[count, ..]| *count as usize).max().unwrap_or(0);
        let heard = |rank: usize| {
            let mut runs = found(rank).runs;
            if mistake == Mistake::Deaf(rank) {
                runs.clear();
            }
            runs.resize(most, [u64::MAX, 0]);
            runs.into_flattened()
        };
        let told: Vec<u64> = (0..RANKS).flat_map(heard).collect();
        trackers.into_iter().enumerate().all(|(rank, mut tracker)| {
            let ranks = Told { rank, words: told.clone() };
            let joined = finish(tracker.join(&ranks, found(rank), &words)).unwrap();
            let all = (0..RANKS).map(|process| &stored[process][rank]);
            let is_in = |block: &usize| joined.as_ref().is_none_or(|joined| joined[*block]);
            all.into_iter().all(|blocks| match blocks {
                None => joined.is_none(),
                Some(blocks) => blocks.iter().all(is_in),
            })
        })
    }

    #[test]
    fn what_each_process_has_stored_is_joined() {
        let some = |blocks: &[usize]| Some(blocks.to_vec());
        let stored = [
            [some(&[0]), some(&[5, 7]), some(&[])],
            [some(&[15]), some(&[1]), None],
            [some(&[3]), some(&[]), some(&[2])],
        ];
        assert!(are_found(&stored, Mistake::None));
        let mistakes = [Mistake::Deaf(0), Mistake::Deaf(1), Mistake::Deaf(2), Mistake::Divides];
        for mistake in mistakes {
            assert!(!are_found(&stored, mistake), "{mistake:?} is not noticed");
        }
        // What is told is no more than what was stored to, where all is known.
        let mut first = tracker(0);
        let words = [[0, 0, 1], [1, 0, 1], [0, 0, 1]];
        let runs = [[1 << 32, 1], run_of(0, 4..6), [u64::MAX, 0]];
        let ranks = Told { rank: 0, words: runs.as_flattened().to_vec() };
        let nothing = || Found { own: Some(vec![false; BLOCKS]), runs: Vec::new(), is_lost: false };
        let joined = finish(first.join(&ranks, nothing(), &words)).unwrap().unwrap();
        let blocks: Vec<_> = (0..BLOCKS).filter(|block| joined[*block]).collect();
        assert_eq!(blocks, [4, 5]);
        // And a rank that has lost a mapping has lost marks of anything.
        let lost = [[0, 0, 1], [1, 1, 1], [0, 0, 1]];
        assert_eq!(finish(first.join(&ranks, nothing(), &lost)).unwrap(), None);
    }

    /// Opening a window makes its first version before any mapping of the part is known.
    #[test]
    fn no_marks_are_told_before_a_mapping_has_some() {
        let file = FileId { device: u64::MAX, inode: 22 };
        let mut tracker = Tracker::of(DirtyTracking::WriteProtect, None, 0, BLOCK as u64);
        tracker.begin(vec![file]);
        tracker.committed(0);
        tracker.tracked = vec![true];
        tracker.arm();
        assert_eq!(tracker.explain(), "compare (until the next commit)");
    }

    /// A mapping that the system keeps no marks of is compared, and that is told.
    #[test]
    fn a_refusal_of_the_system_is_told() {
        if let Err(why) = marks() {
            return eprintln!("skipped: marks: {why}");
        }
        let (file, page) = (FileId { device: u64::MAX, inode: 21 }, rustix::param::page_size());
        // No page begins there, and none is mapped.
        let base = core::ptr::without_provenance_mut(page / 2);
        let _mapped = FileMapping::announce(file, 0, Mapping { base, len: page });
        let mut tracker = Tracker::of(DirtyTracking::WriteProtect, None, 0, BLOCK as u64);
        tracker.begin(vec![file]);
        tracker.committed(0);
        tracker.tracked = vec![true];
        tracker.arm();
        assert_eq!(tracker.explain(), "compare (the system refused marks of it)");
        assert!(tracker.take().own.is_none());
    }
}
