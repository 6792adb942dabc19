//! Windows as shared data structures, a list and a hash table: words counted by MapReduce.
//!
//! ```text
//! rma-run -n 4 target/release/examples/wordcount FOLDER
//! ```
//!
//! 1. Rank 0 finds the files and puts the list into a window. From then on no rank is in charge:
//!    each rank claims the next file by a fetch-and-add on a shared counter, until none is left.
//! 2. Words are counted into a hash table that is spread over the windows of all ranks
//!    (`wordcount/table.rs`). Each rank adds its words itself, wherever they belong: no rank
//!    receives, sorts or answers anything.
//! 3. Each rank reads its own part of the table, and rank 0 prints what was most frequent.
//! 4. Rank 0 counts everything once more, alone, and compares every word.
//!
//! With `--checkpoint DIR`, all ranks commit the table together after each has counted a file, or
//! as many as `--every` says, and once all are counted (`wordcount/checkpoint.rs`). A run that
//! finds such a table goes on from there: also after `kill -9`, with the same result.

#[path = "wordcount/check.rs"]
mod check;
#[path = "wordcount/checkpoint.rs"]
mod checkpoint;
#[path = "wordcount/claim.rs"]
mod claim;
mod common;
#[path = "wordcount/input.rs"]
mod input;
#[path = "wordcount/report.rs"]
mod report;
#[path = "wordcount/table.rs"]
mod table;

use bytemuck::{Pod, Zeroable};
use checkpoint::{Checkpoint, State};
use claim::{Claim, FileList, HOME};
use clap::Parser;
use common::{Failure, print};
use input::Found;
use report::{Report, grouped};
use rma::{Communicator, Error, Universe};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use table::{Added, Entry, Inserter, Size, Table, TableError};

/// How many different words a rank counts by itself before it adds them to the table. Frequent
/// words are added once for thousands of times that they were read.
const COMBINED: usize = 1 << 15;
/// Time between two lines about progress.
const EVERY: Duration = Duration::from_secs(1);

/// Counts the words of every .rs and .md file under a folder, by all ranks together
///
/// Hidden folders and folders called "target" are left out. A word is a run of letters, digits and
/// underscores, in lower case; apostrophes count inside words.
#[derive(Debug, Parser)]
#[command(name = "wordcount")]
struct Arguments {
    /// Where to look
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// How many of the most frequent words to print
    #[arg(long, default_value_t = 20)]
    top: usize,
    /// Folder, for this count only, where the table is kept: the next run goes on from there
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// Files that each rank counts between two checkpoints
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Buckets of the hash table at each rank [default: from the size of the input]
    #[arg(long, hide = true)]
    buckets: Option<u32>,
    /// Words of 64 bits in the overflow heap of each rank [default: as above]
    #[arg(long, hide = true)]
    heap: Option<u32>,
}

/// What a rank did.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Share {
    files: u64,
    bytes: u64,
    words: u64,
    unreadable: u64,
    not_utf8: u64,
}

fn main() -> Result<(), Failure> {
    let universe = rma::initialize()?;
    match common::arguments(&universe)? {
        Some(arguments) => run(universe, &arguments),
        None => Ok(()),
    }
}

fn run(universe: Universe, arguments: &Arguments) -> Result<(), Failure> {
    let world = universe.world();
    let Some((found, bytes)) = find(world, arguments)? else { return Ok(()) };
    let ranks = world.size();

    let start = Instant::now();
    let folder = arguments.checkpoint.as_deref();
    let checkpoint = folder.map(|folder| Checkpoint::open(world, folder, &found.files));
    let mut checkpoint = checkpoint.transpose()?;
    let found_there = checkpoint.as_mut().map_or(Ok(None), Checkpoint::load)?;
    let State { done, mut share, mut table } = match found_there {
        Some(state) => state,
        None => State {
            done: 0,
            share: Share::default(),
            table: Table::new(world, size(arguments, bytes, ranks))?,
        },
    };
    let list = FileList::new(world, &found.files, done)?;
    if world.rank() == HOME && done > 0 {
        eprintln!("wordcount: going on from file {done} of {}", found.files.len());
    }
    let most = if checkpoint.is_some() { arguments.every } else { u64::MAX };
    let mut grown = 0;
    loop {
        let waiting = map(world, &list, &table, &mut share, most)?;
        let times;
        // Behind it, all ranks have added what they have claimed.
        (table, times) = table.grow(world, waiting)?;
        grown += times;
        let Some(checkpoint) = &mut checkpoint else { break };
        let (done, files) = list.claimed()?;
        checkpoint.save(&table, done, &share)?;
        if done == files {
            break;
        }
    }
    checkpoint.map_or(Ok(()), Checkpoint::close)?;
    let size = table.size();
    let mine = table.into_entries()?;
    list.free()?;
    // Ranks tell rank 0 about words in one message each, made of 64-bit words.
    let parts = world.gatherv(&table::encode(&mine), HOME)?;
    let shares = world.gather(&[share], HOME)?;
    let time = start.elapsed();

    // The others have nothing more to do, and need not wait for the rest.
    universe.finalize()?;
    let (Some(parts), Some(shares)) = (parts, shares) else { return Ok(()) };
    let damaged = || Failure::new("a rank's share of the result does not parse");
    let parts = parts.iter().map(|part| table::decode(part).ok_or_else(damaged));
    let mut words = parts.collect::<Result<Vec<_>, _>>()?.concat();
    report::sort(&mut words);
    let report = Report { words: &words, shares: &shares, time, size, grown };
    print(&report.text(arguments.top))?;

    eprintln!("wordcount: counting once more, by rank 0 alone, to compare");
    check::compare(&words, check::count(&found.files))?;
    print("checked against a sequential count: equal\n")?;
    Ok(())
}

/// The files, at rank 0, and the number of bytes in them. `None` if another rank reports why not.
fn find(world: &Communicator, arguments: &Arguments) -> Result<Option<(Found, u64)>, Failure> {
    let found = match world.rank() {
        HOME => input::find(&arguments.folder),
        _ => Ok(Found::default()),
    };
    // Whether to go on, and with how many bytes.
    let mut plan = found.as_ref().map_or([0, 0], |found| [1, found.bytes]);
    world.bcast(&mut plan, HOME)?;
    let [go, bytes] = plan;
    let found = found.map_err(|error| {
        let folder = arguments.folder.display();
        Failure::new(format!("cannot read the folder {folder}: {error}; pass one that exists"))
    })?;
    if world.rank() == HOME {
        for (path, error) in &found.unreadable {
            eprintln!("wordcount: skipping the folder {}: {error}", path.display());
        }
        let (files, ranks) = (grouped(found.files.len()), world.size());
        eprintln!("wordcount: {files} files with {} bytes for {ranks} ranks", grouped(bytes));
        if found.files.is_empty() {
            let folder = arguments.folder.display();
            eprintln!("wordcount: there is no .rs or .md file under {folder}");
        }
    }
    Ok((go == 1).then_some((found, bytes)))
}

/// How large a table to begin with; it grows if that is too small.
fn size(arguments: &Arguments, bytes: u64, ranks: u32) -> Size {
    // The number of different words grows with the root of the length of a text (Heaps' law).
    let different = 1000 + 24 * bytes.isqrt();
    let each = different.div_ceil(u64::from(ranks));
    Size {
        buckets: arguments.buckets.map_or(each, u64::from),
        heap: arguments.heap.map_or(each * 6, u64::from),
    }
}

/// Claims files and counts their words.
struct Mapper<'l> {
    inserter: Inserter<'l>,
    /// Counted, but not in the table yet.
    counts: HashMap<String, u64>,
    /// Did not fit into the table.
    waiting: Vec<Entry>,
    share: &'l mut Share,
    /// When a person was last told how far it is.
    told: Option<Instant>,
}

/// Counts files, at most so many, until there are no more; returns the words that did not fit into
/// the table.
fn map(
    world: &Communicator,
    list: &FileList,
    table: &Table,
    share: &mut Share,
    most: u64,
) -> Result<Vec<Entry>, TableError> {
    let mut mapper = Mapper {
        inserter: table.open()?,
        counts: HashMap::new(),
        waiting: Vec::new(),
        share,
        told: (world.rank() == HOME).then(Instant::now),
    };
    for _ in 0..most {
        let Some(claim) = list.next()? else { break };
        mapper.tell(&claim);
        mapper.count_file(&claim);
        if mapper.counts.len() >= COMBINED {
            mapper.add_counts()?;
        }
    }
    mapper.add_counts()?;
    mapper.inserter.close()?;
    Ok(mapper.waiting)
}

impl Mapper<'_> {
    /// Says how far all ranks together are: rank 0 does, once a second.
    fn tell(&mut self, claim: &Claim) {
        if let Some(told) = self.told.as_mut().filter(|told| told.elapsed() >= EVERY) {
            *told = Instant::now();
            eprintln!("wordcount: file {} of {}", grouped(claim.number), grouped(claim.files));
        }
    }

    fn count_file(&mut self, claim: &Claim) {
        let bytes = match std::fs::read(&claim.path) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.share.unreadable += 1;
                eprintln!("wordcount: skipping {}: {error}", claim.path.display());
                return;
            }
        };
        self.share.files += 1;
        self.share.bytes += table::number(bytes.len());
        let text = String::from_utf8_lossy(&bytes);
        self.share.not_utf8 += u64::from(matches!(text, Cow::Owned(_)));
        input::for_each_word(&text, |word| {
            self.share.words += 1;
            match self.counts.get_mut(word) {
                Some(count) => *count += 1,
                None => _ = self.counts.insert(word.to_owned(), 1),
            }
        });
    }

    fn add_counts(&mut self) -> Result<(), Error> {
        for (word, count) in self.counts.drain() {
            if self.inserter.add(&word, count)? == Added::Full {
                self.waiting.push((word, count));
            }
        }
        Ok(())
    }
}
