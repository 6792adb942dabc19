//! What a commit has to look at: the blocks that were stored to since the last one, as the marks of
//! all processes say that map a part, or the whole part where they do not.

use super::{PersistentError, Ranks};
use crate::marks::{Marks, marks};
use crate::store::BLOCK;
use core::ops::Range;
use rma_core::Communicator;
use rma_core::transport::{FileId, FileMapping, WorldRank};

/// How a commit finds out what has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DirtyTracking {
    /// By marks where the kernel keeps them, the last commit wrote less than an eighth of the part,
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
const AUTO_SHARE: usize = 8;

/// Of one rank, for its part and for what it maps of others.
#[derive(Debug)]
pub(super) struct Tracker {
    wish: DirtyTracking,
    /// Why there are no marks, if there are none.
    flaw: Option<&'static str>,
    rank: u32,
    size: u64,
    /// The files of the parts, by rank.
    files: Vec<FileId>,
    /// Of which ranks marks are kept in the transaction under way.
    tracked: Vec<bool>,
    /// Marks of this rank's part do not tell all: none were kept, or a commit failed that took
    /// them.
    whole: bool,
    /// Mappings of this process that had ended at the last commit.
    ended: u64,
    /// Blocks that the last commit wrote.
    changed: usize,
}

/// What this process knows of the transaction that ends.
pub(super) struct Found {
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

impl Tracker {
    pub(super) fn new(wish: DirtyTracking, comm: &Communicator, size: u64) -> Self {
        let transport = comm.transport();
        let is_near = |rank: u32| transport.is_near(WorldRank(rank));
        let near = (0..transport.size()).filter(|rank| is_near(*rank)).count();
        let here = comm.group().members().filter(|rank| is_near(rank.0)).count();
        let known = match wish {
            // The system is not asked for what nobody wants.
            DirtyTracking::Compare => Ok(()),
            _ => marks().map(|_| ()),
        };
        let flaw = match known {
            Err(why) => Some(why),
            // They may map the part for a window that this communicator is only some of.
            Ok(_) if here < near => Some("ranks of this node have no part of the window"),
            Ok(_) if size.div_ceil(BLOCK as u64) > u64::from(u32::MAX) => {
                Some("a part has more than 2^32 blocks")
            }
            Ok(_) => None,
        };
        let (rank, files, tracked) = (comm.rank().into(), Vec::new(), Vec::new());
        Self { wish, flaw, rank, size, files, tracked, whole: true, ended: 0, changed: 0 }
    }

    /// All ranks have told of their files.
    pub(super) fn begin(&mut self, files: Vec<FileId>) {
        (self.tracked, self.files) = (vec![false; files.len()], files);
        self.ended = FileMapping::with_all(|_, ended| ended);
    }

    /// What is in force, and why.
    pub(super) fn explain(&self) -> String {
        let is_tracked = self.tracked.get(self.rank as usize).copied().unwrap_or(false);
        match (is_tracked, self.wish, self.flaw) {
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

    /// Takes the marks of what this process maps; all ranks have ended their stores.
    pub(super) fn take(&mut self) -> Found {
        let (own, here) = (self.rank as usize, &self.files);
        let mut mine = (!self.whole && self.tracked.get(own) == Some(&true))
            .then(|| vec![false; self.blocks()]);
        // If what follows does not come to its end, the marks are gone.
        self.whole = true;
        let mut runs = Vec::new();
        let ended = FileMapping::with_all(|all, ended| {
            for mapping in all {
                let of_it = |rank: &usize| here[*rank] == mapping.file && self.tracked[*rank];
                let owners: Vec<usize> = (0..here.len()).filter(of_it).collect();
                if owners.is_empty() {
                    continue;
                }
                let marked = marked(mapping);
                for owner in owners {
                    match (&marked, owner == own) {
                        (None, true) => mine = None,
                        (None, false) => runs.push(run_of(owner, 0..0)),
                        (Some(marked), true) => {
                            marked.iter().for_each(|run| add(&mut mine, run.clone()));
                        }
                        (Some(marked), false) if marked.len() > RUNS_MAX => {
                            runs.push(run_of(owner, 0..0));
                        }
                        (Some(marked), false) => {
                            runs.extend(marked.iter().map(|run| run_of(owner, run.clone())));
                        }
                    }
                }
            }
            ended
        });
        runs.iter_mut().filter(|[_, count]| *count == 0).for_each(|[_, count]| *count = WHOLE);
        let is_lost = core::mem::replace(&mut self.ended, ended) != ended;
        Found { own: mine, runs, is_lost }
    }

    /// Three words of what was found, for all ranks.
    pub(super) fn words(&self, found: &Found) -> [u64; 3] {
        [found.runs.len() as u64, found.is_lost.into(), self.wants().into()]
    }

    /// Which blocks of this rank's part may have changed, by the marks of all processes, whose
    /// `words` these are; `None`: any. Keeps marks of the parts from now on whose ranks want it.
    /// **Collective** if one has found something.
    pub(super) fn join(
        &mut self,
        ranks: &dyn Ranks,
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
            let all = ranks.gather("a commit", told.as_flattened())?;
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
    fn arm(&self) {
        if self.wish == DirtyTracking::Compare {
            return;
        }
        let Ok(marks) = marks() else { return };
        FileMapping::with_all(|all, _| {
            for mapping in all {
                let Some(rank) = self.files.iter().position(|file| *file == mapping.file) else {
                    continue;
                };
                match (self.tracked[rank], mapping.is_armed) {
                    // One that cannot be is as one that is made later.
                    (true, false) => {
                        mapping.is_armed = marks.arm(mapping.base, mapping.len).is_ok();
                    }
                    (false, true) => {
                        marks.disarm(mapping.base, mapping.len);
                        mapping.is_armed = false;
                    }
                    (true, true) | (false, false) => {}
                }
            }
        });
    }

    /// The commit that took the marks has come to its end, and wrote so many blocks.
    pub(super) fn committed(&mut self, changed: usize) {
        (self.whole, self.changed) = (false, changed);
    }
}

/// Blocks of the file that were stored to by this mapping, in ascending order, or `None` if that is
/// not known.
fn marked(mapping: &FileMapping) -> Option<Vec<Range<usize>>> {
    let marks: &Marks = marks().ok().filter(|_| mapping.is_armed)?;
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
