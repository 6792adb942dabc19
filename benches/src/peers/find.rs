//! Which MPI libraries are here: of packages, of wheels in a virtual environment of Python, of a
//! folder that is named. They are told apart by what they say, wherever they are.
use crate::Result;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../../peers/peerbench.c");
/// Where packages put compilers and launchers that are not on the path.
const FOLDERS: [&str; 8] = [
    "/usr/bin",
    "/usr/local/bin",
    "/usr/lib64/mpich/bin",
    "/usr/lib64/openmpi/bin",
    "/usr/lib/x86_64-linux-gnu/openmpi/bin",
    "/opt/mpich/bin",
    "/opt/openmpi/bin",
    "/opt/intel/oneapi/mpi/latest/bin",
];

/// The project that a library is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Mpich,
    OpenMpi,
    Intel,
    /// No MPI: a crate of Rust.
    Lamellar,
}

impl Kind {
    /// Those that are MPI libraries.
    pub(super) const ALL: [Self; 3] = [Self::Mpich, Self::OpenMpi, Self::Intel];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mpich => "MPICH",
            Self::OpenMpi => "Open MPI",
            Self::Intel => "Intel MPI",
            Self::Lamellar => "lamellar",
        }
    }

    /// What has ranks of one machine reach each other by TCP, over the loop-back device.
    pub(super) fn over_tcp(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Mpich => &[
                ("MPIR_CVAR_NOLOCAL", "1"),
                ("MPIR_CVAR_CH4_NETMOD", "ofi"),
                ("FI_PROVIDER", "tcp"),
                ("FI_TCP_IFACE", "lo"),
            ],
            Self::OpenMpi => &[
                ("OMPI_MCA_pml", "ob1"),
                ("OMPI_MCA_btl", "tcp,self"),
                ("OMPI_MCA_osc", "rdma"),
                ("OMPI_MCA_btl_tcp_if_include", "lo"),
            ],
            Self::Intel => &[
                ("I_MPI_FABRICS", "ofi"),
                ("I_MPI_OFI_PROVIDER", "tcp"),
                ("FI_PROVIDER", "tcp"),
                ("FI_TCP_IFACE", "lo"),
            ],
            Self::Lamellar => &[],
        }
    }

    /// By what a library says of itself, and its version.
    fn of_library(said: &str) -> Option<(Self, String)> {
        let (kind, rest) = if let Some((_, rest)) = said.split_once("Open MPI v") {
            (Self::OpenMpi, rest)
        } else if let Some((_, rest)) = said.split_once("Intel(R) MPI Library ") {
            (Self::Intel, rest)
        } else if let Some((_, rest)) = said.split_once("MPICH Version:") {
            (Self::Mpich, rest)
        } else {
            return None;
        };
        let end = |c: char| c.is_whitespace() || c == ',';
        let version = rest.trim_start().split(end).next().filter(|version| !version.is_empty());
        Some((kind, version?.to_owned()))
    }

    /// By what a launcher says of itself.
    fn of_launcher(said: &str) -> Option<Self> {
        if said.contains("Open MPI") || said.contains("OpenRTE") || said.contains("PRRTE") {
            Some(Self::OpenMpi)
        } else if said.contains("Intel(R) MPI") {
            Some(Self::Intel)
        } else if said.contains("HYDRA") {
            Some(Self::Mpich)
        } else {
            None
        }
    }
}

/// A library that can be measured: our program built with it, and its launcher.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) program: PathBuf,
    pub(super) compiler: PathBuf,
    pub(super) launcher: PathBuf,
    /// Whether it is in a folder that the user named.
    pub(super) is_named: bool,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Here {
    /// One of each kind, in the order of [`Kind::ALL`].
    pub(super) taken: Vec<Peer>,
    /// Others of the same kinds.
    pub(super) left: Vec<Peer>,
    /// What is of no use, and why.
    pub(super) complaints: Vec<String>,
}

/// Of each kind, one that the user named, or the newest of all.
pub(super) fn all(named: &[PathBuf]) -> Result<Here> {
    let (peers, complaints) = found(&Folders::look(named))?;
    let (taken, left) = chosen(peers);
    Ok(Here { taken, left, complaints })
}

/// Where it is looked for compilers and launchers.
struct Folders {
    named: Vec<PathBuf>,
    others: Vec<PathBuf>,
}

impl Folders {
    fn look(named: &[PathBuf]) -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let environment = env::var_os("VIRTUAL_ENV").map(|root| PathBuf::from(root).join("bin"));
        let others = environment.into_iter().chain(env::split_paths(&path));
        let others = others.chain(FOLDERS.map(PathBuf::from)).collect();
        // What is named is the folder itself, or the root of an installation.
        let named = named.iter().flat_map(|folder| [folder.clone(), folder.join("bin")]);
        Self { named: named.collect(), others }
    }

    fn all(&self) -> Vec<PathBuf> {
        self.named.iter().chain(&self.others).cloned().collect()
    }
}

/// One of each kind, and the others.
fn chosen(peers: Vec<Peer>) -> (Vec<Peer>, Vec<Peer>) {
    let (mut taken, mut left) = (Vec::new(), peers);
    for kind in Kind::ALL {
        let rank = |peer: &Peer, other: &Peer| {
            let by_version = by_version(&peer.version, &other.version);
            peer.is_named.cmp(&other.is_named).then(by_version)
        };
        let of_kind = left.iter().enumerate().filter(|(_, peer)| peer.kind == kind);
        if let Some((index, _)) = of_kind.max_by(|(_, peer), (_, other)| rank(peer, other)) {
            taken.push(left.remove(index));
        }
    }
    (taken, left)
}

/// The older one first: number by number, and what is not yet a release (`5.0.0rc1`) before it.
fn by_version(one: &str, other: &str) -> Ordering {
    let key = |version: &str| {
        let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
        let (numbers, rest) = version.split_at(end);
        let numbers = numbers.split('.').map(|number| number.parse().unwrap_or(0));
        (numbers.collect::<Vec<u64>>(), rest.is_empty(), rest.to_owned())
    };
    key(one).cmp(&key(other))
}

/// Every version of every library in these folders, and what is of no use.
fn found(places: &Folders) -> Result<(Vec<Peer>, Vec<String>)> {
    let folders = places.all();
    let launchers: Vec<(PathBuf, Kind, String)> = programs(&folders, &["mpiexec", "mpirun"])
        .into_iter()
        .filter_map(|path| {
            let said = said(of_installation(&path, &path).arg("--version")).ok()?;
            Some((path, Kind::of_launcher(&said)?, said))
        })
        .collect();
    let exe = env::current_exe()?;
    let build = exe.parent().unwrap_or(Path::new(".")).join("peers");
    fs::create_dir_all(&build)?;
    let source = build.join("peerbench.c");
    fs::write(&source, SOURCE)?;
    let (mut peers, mut complaints): (Vec<Peer>, Vec<String>) = (Vec::new(), Vec::new());
    for compiler in programs(&folders, &["mpicc"]) {
        let program = build.join(format!("peerbench-{}", peers.len()));
        let (kind, version) = match made(&compiler, &source, &program) {
            Ok(made) => made,
            Err(error) => {
                complaints.push(format!("{}: {error}", compiler.display()));
                continue;
            }
        };
        let name = format!("{} {version}", kind.name());
        if peers.iter().any(|peer| peer.name == name) {
            continue;
        }
        // Of several launchers of a kind, the one beside the compiler, or of its version.
        let fits = |(path, _, said): &&(PathBuf, Kind, String)| {
            (path.parent() == compiler.parent(), said.contains(&version))
        };
        let of_kind = launchers.iter().filter(|(_, other, _)| *other == kind);
        let is_named = places.named.iter().any(|folder| compiler.parent() == Some(folder));
        match of_kind.max_by_key(fits) {
            Some((launcher, _, _)) => {
                let launcher = launcher.clone();
                peers.push(Peer { kind, name, version, program, compiler, launcher, is_named });
            }
            None => complaints.push(format!("{name}: there is no mpiexec of it")),
        }
    }
    Ok((peers, complaints))
}

/// Files of these folders whose name is one of `names`, or one of them and a suffix; no file twice.
fn programs(folders: &[PathBuf], names: &[&str]) -> Vec<PathBuf> {
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for folder in folders {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        let mut here: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        here.sort();
        for path in here {
            let is_named = path.file_name().and_then(OsStr::to_str).is_some_and(|name| {
                names.iter().any(|word| name.strip_prefix(word).is_some_and(is_suffix))
            });
            // Wrappers look at the name they are called by: the same file is two programs.
            if is_named && path.is_file() && seen.insert(path.clone()) {
                found.push(path);
            }
        }
    }
    found
}

fn is_suffix(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(['.', '-'])
}

/// Builds our program and asks it which library it is.
fn made(compiler: &Path, source: &Path, program: &Path) -> Result<(Kind, String)> {
    let mut command = of_installation(compiler, compiler);
    command.args(["-std=c11", "-O2", "-pthread", "-o"]).arg(program).arg(source);
    said(&mut command)?;
    let said = said(of_installation(program, compiler).arg("version"))?;
    Kind::of_library(&said).ok_or_else(|| {
        let first = said.lines().next().unwrap_or_default();
        format!("an MPI library that is not known here: {first}").into()
    })
}

/// A program of the library to which `compiler` belongs. Where a wheel of Intel MPI is, only this
/// variable tells its programs; the others do not know it.
pub(super) fn of_installation(program: &Path, compiler: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some(root) = compiler.parent().and_then(Path::parent) {
        command.env("I_MPI_ROOT", root);
    }
    command
}

/// Runs a command that must succeed, and returns what it printed.
pub(super) fn said(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed ({}): {}", output.status, why.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn libraries_and_launchers_are_known_by_what_they_say() {
        let library = |said| Kind::of_library(said).map(|(kind, version)| (kind.name(), version));
        let is = |name, version: &str| Some((name, version.to_owned()));
        assert_eq!(
            library("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"),
            is("Open MPI", "4.1.4")
        );
        assert_eq!(library("MPICH Version:\t4.0.2\nMPICH Device:\tch4:ofi"), is("MPICH", "4.0.2"));
        assert_eq!(
            library("Intel(R) MPI Library 2021.18 for Linux* OS"),
            is("Intel MPI", "2021.18")
        );
        assert_eq!(library("another one"), None);
        assert_eq!(Kind::of_launcher("HYDRA build details:"), Some(Kind::Mpich));
        assert_eq!(Kind::of_launcher("mpiexec.openmpi (OpenRTE) 4.1.4"), Some(Kind::OpenMpi));
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.18 (hydra)";
        assert_eq!(Kind::of_launcher(intel), Some(Kind::Intel));
        assert_eq!(Kind::of_launcher("srun"), None);
    }

    /// Made up, for tests of what is done with it.
    pub(in crate::peers) fn peer(kind: Kind, version: &str, is_named: bool) -> Peer {
        let name = format!("{} {version}", kind.name());
        let nowhere = PathBuf::new;
        let (program, compiler, launcher) = (nowhere(), nowhere(), nowhere());
        Peer { kind, name, version: version.into(), program, compiler, launcher, is_named }
    }

    #[test]
    fn the_newest_of_each_kind_is_taken_unless_one_is_named() {
        let taken = |peers: Vec<Peer>| -> Vec<String> {
            chosen(peers).0.into_iter().map(|peer| peer.name).collect()
        };
        let some = |is_named| {
            vec![
                peer(Kind::OpenMpi, "5.0.9", false),
                peer(Kind::Mpich, "4.0.2", is_named),
                peer(Kind::OpenMpi, "5.0.11", false),
                peer(Kind::Mpich, "5.0.2", false),
            ]
        };
        assert_eq!(taken(some(false)), ["MPICH 5.0.2", "Open MPI 5.0.11"]);
        assert_eq!(taken(some(true)), ["MPICH 4.0.2", "Open MPI 5.0.11"]);
        assert_eq!(chosen(some(false)).1.len(), 2);
        assert!(taken(Vec::new()).is_empty());
    }

    #[test]
    fn programs_are_told_where_their_installation_is() {
        let command = of_installation(Path::new("p"), Path::new("root/bin/mpicc"));
        let root = command.get_envs().find(|(name, _)| *name == "I_MPI_ROOT");
        assert_eq!(root.and_then(|(_, root)| root), Some(OsStr::new("root")));
    }

    #[test]
    fn versions_are_numbers_and_releases_come_last() {
        let ordered = ["4.1.10", "5.0.0a1", "5.0.0rc1", "5.0.0", "5.0.9", "5.0.11", "2021.18"];
        for pair in ordered.windows(2) {
            assert_eq!(by_version(pair[0], pair[1]), Ordering::Less, "{pair:?}");
        }
        assert_eq!(by_version("5.0.2", "5.0.2"), Ordering::Equal);
    }

    #[test]
    fn a_folder_that_is_named_may_be_the_root_of_an_installation() {
        let named = Folders::look(&[PathBuf::from("venv")]).named;
        assert_eq!(named, [PathBuf::from("venv"), PathBuf::from("venv/bin")]);
    }

    #[test]
    fn names_have_suffixes_and_no_other_ends() {
        assert!(is_suffix("") && is_suffix(".openmpi") && is_suffix("-5.0"));
        assert!(!is_suffix("c") && !is_suffix("_wrapper"));
    }
}
