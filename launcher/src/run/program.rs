//! Finding the program before any rank is started.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::report::RunError;
use super::spec::{Program, Spec};

/// Where a shell looks when `PATH` is not set.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A program, and the file that its ranks execute.
pub(super) type Found = (Program, PathBuf);

/// All programs of a job, and the files.
pub(super) fn find(spec: &Spec) -> Result<Vec<Found>, RunError> {
    spec.programs().into_iter().map(|program| file(&program).map(|file| (program, file))).collect()
}

/// That of a rank.
pub(super) fn of(programs: &[Found], rank: u32) -> &Found {
    let next = programs.partition_point(|(program, _)| program.first <= rank);
    &programs[next.saturating_sub(1)]
}

/// That of one program.
pub(super) fn file(program: &Program) -> Result<PathBuf, RunError> {
    let path = program.variable("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let file = find_in(&program.program, &path)?;
    let Some(dir) = &program.dir else { return Ok(file) };
    let failed = |source| RunError::Folder { path: dir.clone(), source };
    if !std::fs::metadata(dir).map_err(failed)?.is_dir() {
        return Err(failed(rustix::io::Errno::NOTDIR.into()));
    }
    std::path::absolute(file).map_err(failed)
}

/// The file that a name stands for in these folders.
pub(super) fn find_in(program: &OsStr, path: &OsStr) -> Result<PathBuf, RunError> {
    if program.as_bytes().contains(&b'/') {
        let file = PathBuf::from(program);
        return match verdict(&file) {
            Verdict::Runs => Ok(file),
            Verdict::Missing => Err(RunError::NotFound { program: program.into(), path: None }),
            Verdict::Refused(why) => Err(RunError::NotExecutable { program: file, why }),
        };
    }
    let mut refused = None;
    if !program.is_empty() {
        for folder in std::env::split_paths(path) {
            // An empty entry stands for the current folder.
            let file = Path::new(".").join(folder).join(program);
            match verdict(&file) {
                Verdict::Runs => return Ok(file),
                Verdict::Missing => {}
                Verdict::Refused(why) => {
                    refused.get_or_insert(RunError::NotExecutable { program: file, why });
                }
            }
        }
    }
    let not_found = || RunError::NotFound { program: program.into(), path: Some(path.into()) };
    Err(refused.unwrap_or_else(not_found))
}

enum Verdict {
    Runs,
    Missing,
    Refused(String),
}

fn verdict(file: &Path) -> Verdict {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    match std::fs::metadata(file) {
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Verdict::Missing,
        Err(error) => Verdict::Refused(error.to_string()),
        Ok(metadata) if metadata.is_dir() => Verdict::Refused("it is a folder".into()),
        Ok(metadata) if !metadata.is_file() => Verdict::Refused("it is not a file".into()),
        Ok(_) => match access(file, Access::EXEC_OK) {
            Ok(()) => Verdict::Runs,
            Err(error) => Verdict::Refused(format!("{error}; chmod +x?")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        for folder in [&first, &second] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("tool"), "#!/bin/sh\n").unwrap();
        }
        let tool = second.join("tool");
        std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
        let path = std::env::join_paths([&first, &second]).unwrap();

        assert_eq!(find_in("tool".as_ref(), &path).unwrap(), tool);
        assert_eq!(find_in(tool.as_os_str(), OsStr::new("")).unwrap(), tool);

        let refused = find_in("tool".as_ref(), first.as_os_str()).unwrap_err();
        assert!(matches!(refused, RunError::NotExecutable { .. }), "{refused}");
        let folder = find_in(first.as_os_str(), &path).unwrap_err();
        assert_eq!(folder.exit_code(), 126);
        for missing in ["no-such-tool", "", "./no/such"] {
            let error = find_in(missing.as_ref(), &path).unwrap_err();
            assert_eq!(error.exit_code(), 127, "{error}");
        }
    }
}
