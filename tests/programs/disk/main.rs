//! A disk that fails when it is told to, as a file system in user space: `disk FOLDER` mounts it
//! there, obeys the lines of its standard input, and unmounts it at their end. With
//! `--no-fallocate`, it reserves no space.
//!
//! | line | what it does |
//! | --- | --- |
//! | `fail KIND N` | has call `N` from now on fail, counted from 0, of those that `KIND` may hit |
//! | `hit` | says how many there were, and which one has failed |
//! | `cut SEED` | cuts the power: the disk has what was durable, and some of the rest |
mod contents;
mod serve;

use contents::{Contents, Random};
use fuser::{BackgroundSession, Config, MountOption, Session};
use rustix::mount::UnmountFlags;
use serve::{Faults, Kind, Served};
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

type Shared<T> = Arc<Mutex<T>>;

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn mount(folder: &Path, served: &Served) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("rma-disk".to_owned())];
    Session::new(served.clone(), folder, &config)?.spawn()
}

/// Unmounts it, and waits for the thread that has served it.
fn unmount(session: BackgroundSession) -> io::Result<()> {
    match session.umount_and_join() {
        // That thread may hear so, too, that its file system is no longer mounted.
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
        ended => ended,
    }
}

fn obey(folder: &Path, reserves: bool) -> io::Result<()> {
    let contents = Arc::new(Mutex::new(Contents::new()));
    let faults = Arc::new(Mutex::new(Faults::default()));
    let served = Served { contents: contents.clone(), faults: faults.clone(), reserves };
    let mut session = match mount(folder, &served) {
        Ok(session) => session,
        // Not for every user, and not in every container: that is for the test to say.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
            println!("refused: {error}");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    println!("mounted");
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse().map_err(io::Error::other);
        match words[..] {
            ["fail", kind, count] => {
                let kind = Kind::named(kind).ok_or_else(|| io::Error::other("no such kind"))?;
                *lock(&faults) = Faults::of(kind, number(count)?);
                println!("ok");
            }
            ["hit"] => println!("{}", lock(&faults).tell()),
            ["cut", seed] => {
                // What the system still has to write is lost.
                *lock(&faults) = Faults::of(Kind::Cut, 0);
                unmount(session)?;
                lock(&contents).power_cut(&mut Random(number(seed)?));
                *lock(&faults) = Faults::default();
                session = mount(folder, &served)?;
                println!("ok");
            }
            _ => return Err(io::Error::other(format!("what is {line:?}?"))),
        }
        io::stdout().flush()?;
    }
    match unmount(session) {
        // A process that was killed while the disk stood still may have it open until it ends.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            Ok(rustix::mount::unmount(folder, UnmountFlags::DETACH)?)
        }
        ended => ended,
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let folder = arguments.next().unwrap_or_default();
    match obey(Path::new(&folder), arguments.next().is_none()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("disk {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}
