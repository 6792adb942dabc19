//! Files that ranks' output goes to, instead of this process' streams or besides.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::driver::Input;
use super::lines::{Tail, last_lines};
use super::look;
use super::machine::Event;
use super::output::{Stream, lock};
use super::pattern::{StreamOf, is_folder};
use super::report::RunError;
use super::spec::Spec;

/// The files of a rank's two streams; where both have one name, they share the file, and the place
/// in it.
type OfRank<T> = [T; 2];

/// Of each rank. None once they are given away.
type Opened = Vec<OfRank<Option<File>>>;

/// Where the output of each rank goes; empty where it goes to no file.
#[derive(Debug, Default)]
pub(super) struct Paths(Vec<OfRank<PathBuf>>);

impl Paths {
    /// Refuses names that two ranks would have.
    pub(super) fn of(spec: &Spec) -> Result<Paths, RunError> {
        let Some(pattern) = &spec.output_file else { return Ok(Paths::default()) };
        let job = spec.name.clone().unwrap_or_else(|| std::process::id().to_string());
        if pattern.names_job() && is_folder(&job) {
            return Err(RunError::JobNamesFolder { name: job });
        }
        let here = look::host();
        let parts = spec.remote.iter().flat_map(|remote| &remote.hosts);
        let mut hosts = parts.flat_map(|part| part.range().map(move |_| part.name.as_str()));
        let mut owners: HashMap<PathBuf, u32> = HashMap::new();
        let of_rank = |rank| {
            let host = hosts.next().unwrap_or(&here);
            let both = [Stream::Out, Stream::Err]
                .map(|stream| pattern.path(StreamOf { rank, host, job: &job, stream }));
            for path in &both {
                let owner = *owners.entry(path.clone()).or_insert(rank);
                if owner != rank {
                    return Err(RunError::SharedFile { path: path.clone(), ranks: [owner, rank] });
                }
            }
            Ok(both)
        };
        (0..spec.ranks).map(of_rank).collect::<Result<_, _>>().map(Paths)
    }

    fn of_rank(&self, rank: u32) -> Option<&OfRank<PathBuf>> {
        self.0.get(rank as usize)
    }

    /// Opens all, before any rank runs. Names may lead to one file, by links or `..`: to that of
    /// another rank, which is refused before any is emptied, or to that of the other stream.
    fn open(&self) -> Result<Opened, RunError> {
        let mut owners = HashMap::new();
        let mut made = |rank: u32, path: &Path| {
            let file = made(path)?;
            let failed = |error| unwritable(path, error);
            let found = file.metadata().map_err(failed)?;
            let key = (found.dev(), found.ino());
            if !found.is_file() {
                return Ok((file, None));
            }
            let owner = *owners.entry(key).or_insert(rank);
            if owner != rank {
                return Err(RunError::SharedFile { path: path.to_owned(), ranks: [owner, rank] });
            }
            Ok((file, Some(key)))
        };
        let mut of_rank = |(rank, [out, err]): (u32, &OfRank<PathBuf>)| {
            let (file, key) = made(rank, out)?;
            let share = || file.try_clone().map_err(|error| unwritable(out, error));
            let other = match out == err {
                true => share()?,
                false => match made(rank, err)? {
                    (_, Some(same)) if Some(same) == key => share()?,
                    (other, _) => other,
                },
            };
            Ok([Some(file), Some(other)])
        };
        let all: Result<Opened, RunError> = (0..).zip(&self.0).map(&mut of_rank).collect();
        let all = all?;
        for (path, file) in self.0.iter().flatten().zip(all.iter().flatten().flatten()) {
            empty(file).map_err(|error| unwritable(path, error))?;
        }
        Ok(all)
    }
}

/// Why a folder cannot be made.
fn no_folder(folder: &Path, source: io::Error) -> RunError {
    // Of those that it is in, the one that is there.
    let there = folder.ancestors().find(|path| path.symlink_metadata().is_ok());
    match there.filter(|path| path.exists() && !path.is_dir()) {
        Some(path) => RunError::FileForFolder { path: path.to_owned() },
        None => unwritable(folder, source),
    }
}

fn unwritable(path: &Path, source: io::Error) -> RunError {
    RunError::OutputFile { path: path.to_owned(), source }
}

/// Pipes and devices hold nothing.
fn empty(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

/// Makes a file, and the folders that it is in; what is there keeps what it holds.
fn made(path: &Path) -> Result<File, RunError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| no_folder(folder, error))?;
    }
    // A pipe that no process reads is an error, and no wait.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).custom_flags(flags);
    let blocking = |file: File| {
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        Ok(file)
    };
    options.open(path).and_then(blocking).map_err(|error| unwritable(path, error))
}

/// The files of a job.
pub(super) struct Files {
    paths: Paths,
    open: Opened,
    writer: Option<Writer>,
    /// This process writes them, besides its own streams: `--tee`.
    tees: bool,
}

impl Files {
    /// Opens those of a job. Where this process writes them, it keeps them open; else ranks do.
    pub(super) fn open(
        spec: &Spec,
        paths: Paths,
        inputs: &UnboundedSender<Input>,
    ) -> Result<Files, RunError> {
        let is_writing = !paths.0.is_empty() && !spec.ranks_write_files();
        let open = paths.open()?;
        let what = "starting a thread for output files";
        let failed = |source| RunError::System { what, source };
        let writer = is_writing.then(|| Writer::start(inputs.clone())).transpose();
        Ok(Files { paths, open, writer: writer.map_err(failed)?, tees: spec.tee })
    }

    /// Those that ranks write themselves, by rank.
    pub(super) fn of_ranks(&mut self, ranks: u32) -> Opened {
        let mut files = match self.writer {
            Some(_) => Vec::new(),
            None => std::mem::take(&mut self.open),
        };
        files.resize_with(ranks as usize, || [None, None]);
        files
    }

    /// Whether this process prints what ranks do.
    pub(super) fn are_besides(&self) -> bool {
        self.paths.0.is_empty() || self.tees
    }

    /// What writes a stream, if this process does.
    pub(super) fn take(&mut self, rank: u32, stream: Stream) -> Option<OutputFile> {
        let writer = self.writer.clone()?;
        let path = self.paths.of_rank(rank)?[stream as usize].as_path().into();
        let file = self.open.get_mut(rank as usize)?[stream as usize].take()?;
        Some(OutputFile { path, file: Arc::new(file), writer })
    }

    /// Why one of them cannot be written, if that is so.
    pub(super) fn failure(&self) -> Option<String> {
        self.writer.as_ref().and_then(|writer| lock(&writer.failure).clone())
    }

    /// What is said of a rank that has failed, if its output is in files: where that is, and the
    /// last lines of its standard error; or that there is no room for it.
    pub(super) fn say(&self, rank: u32) -> Option<String> {
        let [out, err] = self.paths.of_rank(rank)?;
        let folder = match out.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if is_full(folder) {
            return Some(format!("; what it printed is cut short: {} is full", folder.display()));
        }
        let names = match out == err {
            true => out.display().to_string(),
            false => format!("{} and {}", out.display(), err.display()),
        };
        let mut tail = Tail::default();
        // Without these, it is still said where they are.
        let _ = push_end(&mut tail, err);
        Some(format!("; see {names}{}", last_lines(&tail.text())))
    }

    /// The end of what a rank has printed, if that is in files.
    pub(super) fn tail(&self, rank: u32) -> Option<String> {
        let [out, err] = self.paths.of_rank(rank)?;
        let mut tail = Tail::default();
        let read = push_end(&mut tail, out);
        let read = if out == err { read } else { read.and_then(|()| push_end(&mut tail, err)) };
        Some(read.map(|()| tail.text()).unwrap_or_default())
    }
}

/// Whether nothing more can be written in that folder.
fn is_full(folder: &Path) -> bool {
    // File systems that count no blocks or no files say 0 of 0.
    rustix::fs::statvfs(folder).is_ok_and(|disk| {
        (disk.f_blocks > 0 && disk.f_bavail == 0) || (disk.f_files > 0 && disk.f_favail == 0)
    })
}

/// Adds the end of a file.
fn push_end(tail: &mut Tail, path: &Path) -> io::Result<()> {
    // Of a pipe, what is read would be missing elsewhere.
    if !std::fs::metadata(path)?.is_file() {
        return Ok(());
    }
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(Tail::LEN as u64)))?;
    let mut end = Vec::new();
    file.take(Tail::LEN as u64).read_to_end(&mut end)?;
    tail.push(&end);
    Ok(())
}

/// Bytes for a file, and the task that waits until they are there, and gets them back.
struct Writing {
    path: Arc<Path>,
    file: Arc<File>,
    bytes: Vec<u8>,
    done: oneshot::Sender<Vec<u8>>,
}

/// A thread that writes to files, which may block.
#[derive(Debug, Clone)]
struct Writer {
    to: mpsc::Sender<Writing>,
    /// Why a file could not be written, of the first such.
    failure: Arc<Mutex<Option<String>>>,
}

impl Writer {
    /// A file that cannot be written ends the job, as standard output does: ranks do not see it.
    fn start(inputs: UnboundedSender<Input>) -> io::Result<Writer> {
        let (to, writings) = mpsc::channel::<Writing>();
        let failure = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&failure);
        let write = move || {
            for Writing { path, file, bytes, done } in writings {
                if let Err(error) = (&*file).write_all(&bytes) {
                    let why = format!("{} cannot be written: {error}", path.display());
                    lock(&noted).get_or_insert_with(|| why.clone());
                    // The driver is gone only when the job is over.
                    let _ = inputs.send(Input::Event(Event::OutputEnded(Some(why))));
                }
                // Fails when the task waits no more.
                let _ = done.send(bytes);
            }
        };
        std::thread::Builder::new().name("files".into()).spawn(write)?;
        Ok(Writer { to, failure })
    }
}

/// What writes a stream of a rank to its file.
#[derive(Debug)]
pub(super) struct OutputFile {
    path: Arc<Path>,
    file: Arc<File>,
    writer: Writer,
}

impl OutputFile {
    /// Writes that, waits until it is there, and gives it back.
    pub(super) async fn write(&self, bytes: Vec<u8>) -> Vec<u8> {
        let (done, written) = oneshot::channel();
        let (path, file) = (Arc::clone(&self.path), Arc::clone(&self.file));
        // Both fail when the thread is gone, with this process.
        let _ = self.writer.to.send(Writing { path, file, bytes, done });
        written.await.unwrap_or_default()
    }
}
