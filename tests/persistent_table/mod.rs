//! A persistent window of so many words, as the ranks of a job open it.
use rma::{Error, PersistentHints, PersistentMemory, Root, Universe, Window};
use std::path::Path;
use std::sync::Arc;

pub(crate) const WORDS: usize = 5000;

pub(crate) type Opened = (Arc<PersistentMemory>, Window);

pub(crate) fn hints() -> PersistentHints {
    PersistentHints::name("table").elements::<u64>()
}

pub(crate) fn open(
    universe: &Universe,
    root: &Path,
    hints: &PersistentHints,
) -> Result<Opened, Error> {
    open_below(&Root::open(universe.world(), root)?, universe, hints)
}

pub(crate) fn open_below(
    root: &Root,
    universe: &Universe,
    hints: &PersistentHints,
) -> Result<Opened, Error> {
    let world = universe.world();
    let memory = Arc::new(PersistentMemory::open(root, world, hints, WORDS * 8)?);
    let window = world.window(WORDS, 8).create(memory.clone())?;
    Ok((memory, window))
}

pub(crate) fn on_ranks<T: Send>(
    ranks: u32,
    body: impl Fn(Universe) -> Result<T, Error> + Sync,
) -> Vec<T> {
    let done = rma::local(ranks, &body).unwrap();
    done.into_iter().map(|rank| rank.unwrap()).collect()
}
