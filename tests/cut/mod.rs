//! Jobs on pretended hosts between which the way is cut.
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program that cargo has built beside this test, by `how`.
pub(crate) fn built(name: &str, how: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let program = profile.join(name);
    assert!(program.exists(), "{} is missing: {how}", program.display());
    program
}

/// A script that stands for a remote shell, and its folder.
pub(crate) fn remote_shell(script: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let shell = folder.path().join("rsh");
    fs::write(&shell, script).unwrap();
    fs::set_permissions(&shell, PermissionsExt::from_mode(0o755)).unwrap();
    (folder, shell)
}

/// What each rank does: once the way is cut, its wait ends in an error.
pub(crate) fn hear() {
    let universe = rma::initialize().unwrap();
    let world = universe.world();
    world.barrier().unwrap();
    println!("ready");
    let error = std::iter::repeat_with(|| world.barrier()).find_map(Result::err).unwrap();
    println!("rank {} heard: {error}", world.rank().0);
}

/// Cuts the way once so many ranks are ready; each has to say what it heard, and to end in order,
/// which is how the job is to end, too.
pub(crate) fn cut_when_ready(job: &mut Command, ranks: u32, cut: impl FnOnce()) {
    let mut job = job.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(job.stdout.take().unwrap());
    let (mut ready, mut line) = (0, String::new());
    while ready < ranks {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "the job ended early");
        ready += u32::from(line.trim_end().ends_with("ready"));
    }
    cut();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let status = job.wait().unwrap();
    for rank in 0..ranks {
        let heard = format!("rank {rank} heard: ");
        let error = rest.lines().find_map(|line| line.split_once(&heard)).map(|(_, error)| error);
        let error = error.unwrap_or_else(|| panic!("{heard}nothing: {rest}"));
        assert!(error.contains("wait timeout") || error.contains("failed"), "{error}");
    }
    assert!(status.success(), "{status}: {rest}");
}
