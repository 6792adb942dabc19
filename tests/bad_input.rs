//! Paths, names, versions and hints of storage that mean nothing: each is an error whose text says
//! what was asked for, and what to do.
mod mounts;

use mounts::{skip, text, told, without_rights};
use rma::{
    Error, ErrorClass, OnStorage, PersistentHints, PersistentMemory, Root, StorageHints,
    StorageMemory, Universe,
};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BYTES: usize = 4096;

/// The error of a job of one rank, and its class.
fn refused(body: impl Fn(&Universe) -> Result<(), Error> + Sync) -> (ErrorClass, String) {
    let done = rma::local(1, |universe| body(&universe)).unwrap();
    let error = done.into_iter().next().unwrap().unwrap_err();
    (error.class(), error.to_string())
}

/// That of a window on storage by these hints.
fn file(hints: &StorageHints) -> (ErrorClass, String) {
    refused(|universe| {
        let world = universe.world();
        Ok(world.window(BYTES, 1).on_storage(hints)?.allocate()?.free()?)
    })
}

fn open(universe: &Universe, root: &Path, hints: &PersistentHints) -> Result<(), Error> {
    let root = Root::open(universe.world(), root)?;
    Ok(PersistentMemory::open(&root, universe.world(), hints, BYTES).map(drop)?)
}

/// That of a persistent window of this root.
fn persistent(root: &Path, hints: &PersistentHints) -> (ErrorClass, String) {
    refused(|universe| open(universe, root, hints))
}

/// The text says all of these.
fn says((class, text): (ErrorClass, String), expected: ErrorClass, words: &[&str]) {
    assert_eq!(class, expected, "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in: {text}"));
}

#[test]
fn paths_of_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| StorageHints::file(folder.path().join(name));
    let here = folder.path().to_str().unwrap();
    says(file(&StorageHints::file(here)), ErrorClass::BadFile, &[here, "a folder", "name a file"]);
    says(file(&at("none/f")), ErrorClass::NoSuchFile, &[here, "make the folder first"]);
    says(file(&at(&"n".repeat(256))), ErrorClass::BadFile, &[here, "choose a shorter name"]);
    let far = at("f").offset(1 << 63);
    let info = || {
        let hints = [("alloc_type", "storage"), ("storage_alloc_filename", "f")];
        hints.into_iter().chain([("storage_alloc_offset", "9223372036854775808")])
    };
    let hint = StorageHints::from_info(info()).unwrap_err().to_string();
    assert!(hint.contains("storage_alloc_offset") && hint.contains("2^63 - 1"), "{hint}");
    let typed = refused(|universe| {
        let memory = StorageMemory::open(universe, &far, BYTES);
        Ok(memory.map(drop)?)
    });
    says(typed, ErrorClass::Disp, &[here, "9223372036854775808", "a smaller offset"]);
    // Hints are text, memory that a program makes by itself needs none.
    let bytes = folder.path().join(OsStr::from_bytes(b"\xff\xfe"));
    says(file(&StorageHints::file(&bytes)), ErrorClass::InfoValue, &["a path in UTF-8"]);
    let made = rma::local(1, |universe| {
        StorageMemory::open(&universe, &StorageHints::file(&bytes), BYTES).map(drop)
    });
    made.unwrap().into_iter().for_each(|made| made.unwrap());
    assert!(bytes.exists());
}

/// By a user who may write neither the file, nor the folder, nor the root.
#[test]
fn paths_that_are_not_writable() {
    const TEST: &str = "paths_that_are_not_writable";
    if let Some(folder) = told() {
        let at = |name: &str| Path::new(&folder).join(name);
        for name in ["file", "new"] {
            let refused = file(&StorageHints::file(at(name)));
            says(refused, ErrorClass::NoAccess, &[&folder, name, "let this user read and write"]);
        }
        let refused = persistent(Path::new(&folder), &PersistentHints::name("n"));
        says(refused, ErrorClass::Pmem, &[&folder, "this user cannot write there"]);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    fs::write(folder.path().join("file"), "four").unwrap();
    fs::set_permissions(
        folder.path().join("file"),
        std::os::unix::fs::PermissionsExt::from_mode(0o444),
    )
    .unwrap();
    match without_rights(TEST, folder.path().to_str().unwrap()) {
        Err(reason) => skip(TEST, &reason),
        Ok(output) => {
            let said = text(&output);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
        }
    }
}

#[test]
fn names_versions_and_elements() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let long = "n".repeat(256);
    for (name, words) in [
        ("", ["\"\"", "name"]),
        ("a/b", ["a/b", "name"]),
        ("..", ["..", "name"]),
        (&long, [&long[..9], "name"]),
    ] {
        says(persistent(root, &PersistentHints::name(name)), ErrorClass::Pmem, &words);
    }
    let words = PersistentHints::name("table").elements::<u64>();
    let made = rma::local(1, |universe| open(&universe, root, &words));
    made.unwrap().into_iter().for_each(|made| made.unwrap());
    let halves = PersistentHints::name("table").elements::<u32>();
    let sizes = ["<u8", "8 bytes", "<u4", "4 bytes", "use the same"];
    says(persistent(root, &halves), ErrorClass::Type, &sizes);
    let missing = ["table", "no version 7", "there are: 0"];
    says(persistent(root, &words.clone().checkpoint_version(7)), ErrorClass::Pmem, &missing);
    let other = rma::local(2, |universe| open(&universe, root, &words).unwrap_err());
    let other = other.unwrap().remove(0);
    let ranks = ["table", "made by 1 ranks", "here are 2", "run as many"];
    says((other.class(), other.to_string()), ErrorClass::Pmem, &ranks);
}

#[test]
fn roots() {
    let folder = tempfile::tempdir().unwrap();
    let name = PersistentHints::name("n");
    let here = folder.path().to_str().unwrap();
    let none = folder.path().join("none");
    says(persistent(&none, &name), ErrorClass::Pmem, &[here, "make it first"]);
    says(persistent(Path::new(""), &name), ErrorClass::Pmem, &["empty", "name a folder"]);
    let holder = Root::open_alone(folder.path()).unwrap();
    let host = rustix::system::uname();
    let host = format!("on {}", host.nodename().to_str().unwrap());
    let process = format!("process {}", std::process::id());
    let words = [here, &process, &host, "choose another root"];
    says(persistent(folder.path(), &name), ErrorClass::FileInUse, &words);
    drop(holder);
}

/// Another program has been at the files of a root.
#[test]
fn files_that_another_program_has_changed() {
    for file in ["rma-root", "n/version.00000002", "n/part.0.00000002", "n/blocks.0"] {
        let folder = tempfile::tempdir().unwrap();
        let name = PersistentHints::name("n");
        let made = rma::local(1, |universe| {
            let world = universe.world();
            let root = Root::open(world, folder.path())?;
            let memory = PersistentMemory::open(&root, world, &name, BYTES)?;
            let memory = std::sync::Arc::new(memory);
            let window = world.window(BYTES, 1).create(memory.clone())?;
            window.local().store(0, 7u8)?;
            memory.commit(world)?;
            Ok::<_, Error>(window.free()?)
        });
        made.unwrap().into_iter().for_each(|made| made.unwrap());
        let path = folder.path().join(file);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, bytes.iter().map(|byte| byte ^ 1).collect::<Vec<_>>()).unwrap();
        let (class, text) = persistent(folder.path(), &name);
        says((class, text), ErrorClass::Pmem, &[file]);
    }
}
