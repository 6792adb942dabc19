//! Roots that earlier releases wrote, and this one: read, checked and managed by `rma-store`.
//!
//! A new format gets its root by a run of `heat` with `--checkpoint storage/tests/format/N`.
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format").join(name)
}

/// A copy of the root of a format, which may be changed.
fn root(format: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    fs::copy(stored(format).join("rma-root"), copy.path().join("rma-root")).unwrap();
    fs::create_dir(copy.path().join("heat")).unwrap();
    for file in fs::read_dir(stored(format).join("heat")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join("heat").join(file.file_name())).unwrap();
    }
    copy
}

fn store(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rma-store")).args(arguments).output().unwrap()
}

fn says(arguments: &[&str]) -> String {
    let output = store(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn fails(arguments: &[&str], code: i32) -> String {
    let output = store(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// Of which there are files here.
const FORMATS: &[&str] = &["1"];

#[test]
fn roots_of_earlier_releases_are_read() {
    for format in FORMATS {
        let copy = root(format);
        let path = copy.path().to_str().unwrap();
        assert!(says(&["list", path]).contains("heat        2   1168         1       3  2026-"));
        assert_eq!(says(&["verify", path]), "\"heat\" version 3: intact\n");
        let out = copy.path().join("out.npy");
        says(&["export", path, "heat", "3", out.to_str().unwrap()]);
        assert!(fs::read(out).unwrap() == fs::read(stored(&format!("{format}.npy"))).unwrap());
    }
}

#[test]
fn versions_are_managed() {
    let copy = root("1");
    let path = copy.path().to_str().unwrap();
    let shown = says(&["show", path, "heat", "--json"]);
    let json =
        r#"{"name": "heat", "ranks": 2, "bytes": 1168, "element": "<f8", "transactions": true"#;
    assert!(shown.starts_with(json), "{shown}");
    assert_eq!(says(&["restore", path, "heat", "3", "--json"]), "{\"version\": 4}\n");
    assert_eq!(says(&["diff", path, "heat", "3", "4"]), "no difference\n");
    says(&["delete", path, "heat", "3"]);
    assert!(fails(&["delete", path, "heat", "4"], 1).contains("the only one"));
    let raw = copy.path().join("raw");
    let raw = raw.to_str().unwrap();
    says(&["export", path, "heat", "4", raw, "--rank", "1"]);
    let npy = fs::read(stored("1.npy")).unwrap();
    assert_eq!(fs::read(raw).unwrap(), npy[128 + 584..]);
    let used = says(&["du", path, "--json"]);
    assert!(used.contains("\"window\": 1168, \"blocks\": 65536"), "{used}");
    says(&["delete", path, "heat"]);
    assert_eq!(says(&["list", path, "--json"]), "[]\n");
    assert!(fails(&["show", path, "heat"], 1).contains("no such window"));
}

/// What programs read of each command.
#[test]
fn each_command_speaks_json() {
    let copy = root("1");
    let path = copy.path().to_str().unwrap();
    let says = |arguments: &[&str]| says(&[arguments, &["--json"]].concat());
    let window = says(&["show", path, "heat"]);
    assert_eq!(says(&["list", path]), format!("[{}]\n", window.trim_end()));
    let version = "\"versions\": [{\"version\": 3, \"time\": 17";
    assert!(window.contains(version) && window.ends_with("\"damaged\": []}\n"), "{window}");
    let intact = r#"[{"window": "heat", "what": "version 3", "flaw": null}]"#;
    assert_eq!(says(&["verify", path]).trim_end(), intact);
    assert_eq!(says(&["restore", path, "heat", "3"]), "{\"version\": 4}\n");
    assert_eq!(says(&["diff", path, "heat", "3", "4"]), "[]\n");
    let out = copy.path().join("out \"1\".npy");
    let out = out.to_str().unwrap();
    let exported = says(&["export", path, "heat", "4", out]);
    let told = format!("{{\"file\": {:?}, \"bytes\": {}}}\n", out, 128 + 1168);
    assert_eq!(exported, told);
    let used = says(&["du", path]);
    assert!(used.starts_with(r#"[{"name": "heat", "window": 1168, "blocks": "#), "{used}");
    let deleted = |version| format!("{{\"deleted\": \"heat\", \"version\": {version}}}\n");
    assert_eq!(says(&["delete", path, "heat", "3"]), deleted("3"));
    assert_eq!(says(&["delete", path, "heat"]), deleted("null"));
    assert_eq!(says(&["list", path]), "[]\n");
}

#[test]
fn damage_is_named() {
    for file in ["blocks.1", "part.0.00000004", "version.00000004"] {
        let copy = root("1");
        let path = copy.path().to_str().unwrap();
        let broken = copy.path().join("heat").join(file);
        let mut bytes = fs::read(&broken).unwrap();
        bytes[100] ^= 1;
        fs::write(&broken, bytes).unwrap();
        let said = fails(&["verify", path], 1);
        assert!(said.contains("damaged") && said.contains(file), "{file}: {said}");
        let out = copy.path().join("out");
        fails(&["export", path, "heat", "3", out.to_str().unwrap()], 1);
        assert!(!out.exists(), "bytes that are no version");
    }
}

#[test]
fn arguments_that_mean_nothing_are_refused() {
    let copy = root("1");
    let path = copy.path().to_str().unwrap();
    for (arguments, what) in [
        (&["list"][..], "takes other arguments"),
        (&["lists", path], "no command"),
        (&["show", path, "heat", "--xml"], "no option"),
        (&["delete", path, "heat", "newest"], "no number"),
        (&["export", path, "heat", "3", "x", "--rank"], "a number"),
    ] {
        assert!(fails(arguments, 2).contains(what), "{arguments:?}");
    }
    for name in ["", "..", "a/b"] {
        assert!(fails(&["show", path, name], 1).contains("name"), "{name:?}");
    }
    let missing = copy.path().join("missing");
    assert!(fails(&["list", missing.to_str().unwrap()], 1).contains("no such folder"));
    let no_root = copy.path().join("heat");
    assert!(fails(&["list", no_root.to_str().unwrap()], 1).contains("it is no root"));
    assert!(says(&["--help"]).contains("usage: rma-store"));
    let name = std::ffi::OsStr::from_bytes(b"\xff");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rma-store"));
    let output = command.arg("show").arg(path).arg(name).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "not UTF-8");
}
