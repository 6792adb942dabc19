//! Programs that are copied to hosts that lack them: by pieces, which the host asks for, into a
//! file in its memory without a name, which is gone with the last process that has it.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::super::program;
use super::super::report::RunError;
use super::super::spec::{Program, Spec};
use super::talk::{Print, Prints, TaskProgram, Word};
use super::voice::Voice;

/// Bytes of a program in one message.
const BLOCK: usize = 1 << 20;

/// Programs of a launcher that hosts may ask for, by their first rank.
#[derive(Debug, Default)]
pub(super) struct Sources(Vec<(u32, File)>);

impl Sources {
    pub(super) fn open(programs: &[program::Found]) -> Result<Sources, RunError> {
        let open = |(program, path): &program::Found| Ok((program.first, File::open(path)?));
        let all: io::Result<_> = programs.iter().map(open).collect();
        let what = "opening the program, which is to be copied";
        Ok(Sources(all.map_err(|source| RunError::System { what, source })?))
    }

    /// A piece of one; nothing at its end, or if it cannot be read.
    pub(super) fn piece(&self, first: u32, at: u64) -> Vec<u8> {
        let Some((_, file)) = self.0.iter().find(|(number, _)| *number == first) else {
            return Vec::new();
        };
        let mut piece = vec![0; BLOCK];
        let count = file.read_at(&mut piece, at).unwrap_or(0);
        piece.truncate(count);
        piece
    }
}

/// What a host asks its launcher for pieces by.
pub(super) struct Copier {
    pub(super) voice: Voice,
    pub(super) pieces: mpsc::Receiver<Vec<u8>>,
    /// Whether copies are wanted, and the user told of each.
    pub(super) copies: bool,
    pub(super) explains: bool,
    pub(super) host: String,
}

/// Programs of a host, and the copies among them, which are there as long as these are open.
pub(super) type Here = (Vec<program::Found>, Vec<File>);

impl Copier {
    /// The programs of a task, as they are here or as they are copied.
    pub(super) fn programs(&self, spec: &Spec, task: &[TaskProgram]) -> Result<Here, RunError> {
        let (mut prints, mut found, mut copies) = (Prints::default(), Vec::new(), Copies::new());
        for (program, expected) in spec.programs().into_iter().zip(task) {
            let called = OsString::from_vec(expected.called.clone());
            let file = match self.here(&program, expected.print, &mut prints) {
                Err(RunError::OtherBuild { .. } | RunError::NotFound { .. }) if self.copies => {
                    let copy = self.copy(expected, &mut copies)?;
                    // The folder that it is to run in is looked for as ever.
                    program::file(&Program { program: copy.into(), ..program.clone() })?
                }
                other => other?,
            };
            found.push((Program { program: called, ..program }, file));
        }
        Ok((found, copies.into_iter().map(|(_, copy)| copy).collect()))
    }

    /// The file that is here, of that build.
    fn here(
        &self,
        program: &Program,
        expected: Print,
        prints: &mut Prints,
    ) -> Result<PathBuf, RunError> {
        let path = program::file(program)?;
        let print = prints.of(&path).map_err(|error| RunError::NotExecutable {
            program: path.clone(),
            why: format!("it cannot be read: {error}"),
        })?;
        let is_same = print == expected;
        if is_same { Ok(path) } else { Err(RunError::OtherBuild { path, what: "the program" }) }
    }

    /// Where a copy of that program is.
    fn copy(&self, program: &TaskProgram, copies: &mut Copies) -> Result<PathBuf, RunError> {
        let path = |file: &File| {
            let number = file.as_raw_fd();
            PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id()))
        };
        if let Some((_, file)) = copies.iter().find(|(print, _)| *print == program.print) {
            return Ok(path(file));
        }
        let what = "copying the program here";
        let copied = self.fetch(program).map_err(|source| RunError::System { what, source })?;
        let there = path(&copied);
        copies.push((program.print, copied));
        if self.explains {
            let (host, shown) = (&self.host, String::from_utf8_lossy(&program.program));
            let text = format!("explain: host {host}: {shown} is copied there, into memory");
            self.voice.say(&Word::Note { text });
        }
        Ok(there)
    }

    fn fetch(&self, program: &TaskProgram) -> io::Result<File> {
        let mut file = in_memory(&program.program)?;
        let mut at = 0;
        while at < program.print.len {
            self.voice.say(&Word::Lacks { first: program.first, at });
            let piece = self.pieces.recv().map_err(|_| io::Error::other("the launcher is gone"))?;
            if piece.is_empty() {
                break;
            }
            file.write_all(&piece)?;
            at += piece.len() as u64;
        }
        // What is compared now is what runs, whatever a rank does to its own file.
        let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&file, all)?;
        // For reading only: what is open for writing is not executed.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let copy = File::open(&path)?;
        if Print::of(Path::new(&path))? != program.print {
            let why = "the file was changed, or could not be read, while it was copied";
            return Err(io::Error::other(why));
        }
        Ok(copy)
    }
}

type Copies = Vec<(Print, File)>;

/// A file without a name, whose bytes can be executed.
fn in_memory(path: &[u8]) -> io::Result<File> {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    // The kernel takes 249 bytes.
    let name = CString::new(&name[..name.len().min(200)])?;
    let with = |flags| memfd_create(&name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags);
    // Kernels before 6.3 do not know the flag, and need it not.
    let made = with(MemfdFlags::EXEC).or_else(|_| with(MemfdFlags::empty()));
    Ok(made?.into())
}
