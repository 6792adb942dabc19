//! The crate lamellar as a peer: a program of a workspace of its own, which is built on request.
use super::find::{Here, Kind, Peer};
use super::rows::{Group, group};
use crate::Result;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Its folder, below that of this crate.
const FOLDER: &str = "peers/lamellar";
const MANIFEST: &str = include_str!("../../peers/lamellar/Cargo.toml");

/// What it has a call for.
pub(super) const GROUPS: &[Group] = &[
    group(&["lat"], &["put-latency", "bandwidth"]),
    group(&["progress"], &["progress"]),
    group(&["atomic"], &["fetch-and-op"]),
];

/// Builds its program, and returns it as the only peer.
pub(super) fn built() -> Result<Here> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    let exe = env::current_exe()?;
    let target = exe.parent().unwrap_or(Path::new(".")).join(FOLDER);
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--locked", "--manifest-path"]);
    command.arg(folder.join("Cargo.toml")).arg("--target-dir").arg(&target);
    let status = command.status()?;
    if !status.success() {
        return Err(format!("{command:?} failed ({status})").into());
    }
    let version = version(MANIFEST).ok_or("the manifest of its program names no version")?;
    let nowhere = PathBuf::new;
    let peer = Peer {
        kind: Kind::Lamellar,
        name: format!("{} {version}", Kind::Lamellar.name()),
        version: version.to_owned(),
        program: target.join("release/peerbench-lamellar"),
        compiler: nowhere(),
        launcher: nowhere(),
        is_named: true,
    };
    Ok(Here { taken: vec![peer], ..Here::default() })
}

/// A job of one group. The program is its own launcher.
pub(super) fn command(peer: &Peer, group: &Group, name: &str) -> Command {
    let mut command = Command::new(&peer.program);
    command.args(["--timeout-s", &group.timeout_s.to_string(), name]);
    command
}

/// The version that a manifest asks for, and no other.
fn version(manifest: &str) -> Option<&str> {
    let (_, rest) = manifest.split_once("lamellar = { version = \"=")?;
    rest.split_once('"').map(|(version, _)| version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_program_is_built_with_one_version() {
        let version = version(MANIFEST).unwrap();
        let lock = include_str!("../../peers/lamellar/Cargo.lock");
        assert!(lock.contains(&format!("name = \"lamellar\"\nversion = \"{version}\"\n")));
        assert_eq!(super::version("lamellar = \"1\""), None);
    }
}
