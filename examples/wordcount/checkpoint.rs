//! The table, and how many files are in it, in a persistent window: the next run goes on from it.
//!
//! The window has a name with the size of the table in it. When the table has grown, a new window
//! is saved before the older one is deleted, so that one of the two is always whole.
use super::Share;
use super::claim::HOME;
use super::common::Failure;
use super::table::{Size, Table, hash};
use rma::bytemuck::{bytes_of, bytes_of_mut, cast_slice};
use rma::{Communicator, Error, PersistentHints, PersistentMemory, Root, Window};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NAME: &str = "wordcount";
/// Words of a [`Share`].
const SHARE: usize = size_of::<Share>() / size_of::<u64>();
/// Words of a part before the table: files that are counted, the fingerprint, the share.
const HEAD: usize = 2 + SHARE;
/// Where the fingerprint is, until a table is saved.
const UNSAVED: u64 = 0;

/// Where the state is kept.
pub(crate) struct Checkpoint<'w> {
    world: &'w Communicator,
    root: Root,
    /// Of the list of files.
    fingerprint: u64,
    kept: Option<Kept>,
}

/// A persistent window for a table of that size.
struct Kept {
    size: Size,
    memory: Arc<PersistentMemory>,
    window: Window,
}

/// What a run goes on from.
pub(crate) struct State {
    /// Files that are counted, the first ones of the list.
    pub(crate) done: u64,
    /// What this rank has done of it.
    pub(crate) share: Share,
    /// With the words of these files.
    pub(crate) table: Table,
}

impl<'w> Checkpoint<'w> {
    /// Opens the folder, which has to be there. **Collective.** Only rank 0 passes files.
    pub(crate) fn open(
        world: &'w Communicator,
        folder: &Path,
        files: &[PathBuf],
    ) -> Result<Self, Failure> {
        let names: Vec<&[u8]> = files.iter().map(|file| file.as_os_str().as_bytes()).collect();
        let mut fingerprint = [hash(&names.join(&0)).max(UNSAVED + 1)];
        world.bcast(&mut fingerprint, HOME)?;
        let root = Root::open(world, folder)?;
        Ok(Self { world, root, fingerprint: fingerprint[0], kept: None })
    }

    /// What an earlier run has committed, if one has. **Collective.**
    pub(crate) fn load(&mut self) -> Result<Option<State>, Failure> {
        // Tables only grow, so the largest is the newest. A run that ended before the first save
        // of its table has left zeros there, and the one before.
        let mut sizes = [0u64; 4];
        if self.world.rank() == HOME {
            let windows = self.root.windows()?;
            let whole = windows.iter().filter(|window| !window.versions.is_empty());
            let mut found: Vec<_> = whole.filter_map(|window| size_of_name(&window.name)).collect();
            found.sort_unstable_by(|one, other| other.cmp(one));
            for (place, size) in sizes.iter_mut().zip(found.as_flattened()) {
                *place = *size;
            }
        }
        self.world.bcast(&mut sizes, HOME)?;
        for [buckets, heap] in sizes.as_chunks().0.iter().copied().filter(|[some, _]| *some > 0) {
            if let Some(state) = self.load_from(Size { buckets, heap })? {
                self.remove_smaller(state.table.size())?;
                return Ok(Some(state));
            }
        }
        Ok(None)
    }

    /// What the window for a table of that size has; if that was never saved, the window goes.
    fn load_from(&mut self, size: Size) -> Result<Option<State>, Failure> {
        let table = Table::new(self.world, size)?;
        let kept = Kept::open(self.world, &self.root, table.size())?;
        let mut words = vec![0u64; HEAD + Table::words_of(table.size())?];
        kept.window.local().read(0, &mut words)?;
        let (head, part) = words.split_at(HEAD);
        if head[1] == UNSAVED {
            self.remove(kept)?;
            return Ok(None);
        }
        self.kept = Some(kept);
        if head[1] != self.fingerprint {
            let folder = self.root.path().display();
            return Err(Failure::new(format!(
                "the files are not those that were counted for the checkpoint in {folder}: choose \
                 another folder, or remove what is in this one"
            )));
        }
        let mut share = Share::default();
        bytes_of_mut(&mut share).copy_from_slice(cast_slice(&head[2..]));
        table.write_part(part)?;
        self.world.barrier()?;
        Ok(Some(State { done: head[0], share, table }))
    }

    /// Commits the table, into which all ranks have put the words of the first `done` files.
    /// **Collective.**
    pub(crate) fn save(&mut self, table: &Table, done: u64, share: &Share) -> Result<(), Failure> {
        let size = table.size();
        let older = self.kept.take_if(|kept| kept.size != size);
        let kept = match self.kept.take() {
            Some(kept) => kept,
            None => Kept::open(self.world, &self.root, size)?,
        };
        let mut words = vec![done, self.fingerprint];
        words.extend_from_slice(cast_slice(bytes_of(share)));
        words.extend(table.read_part()?);
        kept.window.local().write(0, &words)?;
        kept.memory.commit(self.world)?;
        self.kept = Some(kept);
        older.map_or(Ok(()), |older| self.remove(older))
    }

    /// Removes what is left of smaller tables by runs that ended when the larger one was saved and
    /// the smaller one not deleted yet.
    fn remove_smaller(&self, Size { buckets, heap }: Size) -> Result<(), Failure> {
        if self.world.rank() == HOME {
            for name in self.root.windows()?.iter().map(|window| &window.name) {
                if size_of_name(name).is_some_and(|size| size < [buckets, heap]) {
                    self.root.delete(name)?;
                }
            }
        }
        Ok(())
    }

    /// Removes a window. **Collective.**
    fn remove(&self, Kept { size, memory, window }: Kept) -> Result<(), Failure> {
        window.free()?;
        drop(memory);
        // No rank has it open any more.
        self.world.barrier()?;
        if self.world.rank() == HOME {
            self.root.delete(&name_of(size))?;
        }
        Ok(())
    }

    /// Ends it; what was committed stays. **Collective.**
    pub(crate) fn close(self) -> Result<(), Error> {
        self.kept.map_or(Ok(()), |kept| Ok(kept.window.free()?))
    }
}

impl Kept {
    fn open(world: &Communicator, root: &Root, size: Size) -> Result<Self, Error> {
        let words = HEAD + Table::words_of(size)?;
        let hints = PersistentHints::name(name_of(size)).elements::<u64>();
        let memory = PersistentMemory::open(root, world, &hints, words * size_of::<u64>())?;
        let memory = Arc::new(memory);
        let window = world.window(words, size_of::<u64>()).create(memory.clone())?;
        Ok(Self { size, memory, window })
    }
}

fn name_of(Size { buckets, heap }: Size) -> String {
    format!("{NAME}-{buckets}-{heap}")
}

/// The inverse of [`name_of`].
fn size_of_name(name: &str) -> Option<[u64; 2]> {
    let (buckets, heap) = name.strip_prefix(NAME)?.strip_prefix('-')?.split_once('-')?;
    Some([buckets.parse().ok()?, heap.parse().ok()?])
}
