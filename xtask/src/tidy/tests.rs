//! Every check fires on the smallest text that breaks its rule, and is quiet next to it.

use super::*;
use serde_json::json;

fn source(path: &str, text: &str) -> Source {
    Source { path: path.into(), text: text.into() }
}

/// Rule and line of all that one file breaks.
fn broken(path: &str, text: &str) -> Vec<(&'static str, usize)> {
    let sources = [source(path, text)];
    let (files, mut findings) = read(&sources);
    findings.extend(files.iter().flat_map(check));
    findings.iter().map(|finding| (finding.rule, finding.line)).collect()
}

#[test]
fn long_files_are_refused_and_large_ones_warned_about() {
    let lines = |count| "//! x\n".repeat(count);
    assert_eq!(broken("src/lib.rs", &lines(800)), []);
    assert_eq!(broken("src/lib.rs", &lines(801)), [("file-length", 801)]);
    let warned = |count| {
        let sources = [source("src/lib.rs", &lines(count))];
        size::warning(&read(&sources).0[0]).is_some()
    };
    assert_eq!([500, 501, 800, 801].map(warned), [false, true, true, false]);
}

#[test]
fn long_functions_are_refused_wherever_they_are() {
    let body = |lines: usize| format!("{{\n{}}}", "f();\n".repeat(lines - 2));
    for (before, after) in
        [("", ""), ("impl S { ", " }"), ("trait T { ", " }"), ("fn outer() { ", " }")]
    {
        let text = |lines| format!("{before}fn long() {}{after}\n", body(lines));
        let nested = before.contains("outer");
        assert_eq!(broken("src/a.rs", &text(70)), [], "{before}");
        let expected = vec![("function-length", 1); if nested { 2 } else { 1 }];
        assert_eq!(broken("src/a.rs", &text(71)), expected, "{before}");
    }
}

#[test]
fn long_lines_are_refused_unless_a_url_makes_them_long() {
    let line = |columns: usize| format!("// {}\n", "é".repeat(columns - 3));
    assert_eq!(broken("src/a.rs", &line(100)), []);
    assert_eq!(broken("src/a.rs", &line(101)), [("line-length", 1)]);
    let url = format!("// see https://example.org/{}\n", "a".repeat(120));
    assert_eq!(broken("src/a.rs", &url), []);
    assert_eq!(
        broken("src/a.rs", &format!("{url}{} http://x.org\n", line(120).trim_end())),
        [("line-length", 2)]
    );
}

#[test]
fn text_that_is_not_rust_is_a_finding() {
    assert_eq!(broken("src/a.rs", "\nfn {"), [("syntax", 2)]);
}

#[test]
fn the_core_touches_no_system_environment_or_clock() {
    for text in [
        "fn f() { std::env::args(); }",
        "use std::time::Instant;",
        "use std::{fmt, time::{Duration, SystemTime}};",
        "use std::time::*;",
        "use std::time as t; fn f() { t::Duration::ZERO; } fn g() -> t::Instant { x }",
        "use std::fs::File;",
        "fn f(s: std::net::TcpStream) {}",
        "fn f() { std::thread::sleep(d); }",
        "fn f() { assert!(std::env::args().len() == 1); }",
        "fn f() { rustix::mm::munmap(); }",
        "fn f() -> libc::c_int { 0 }",
        "fn f() { println!(); }",
        "#[cfg(any(test, unix))] use std::time::Instant;",
        "#[cfg(not(test))] use std::time::Instant;",
    ] {
        assert_eq!(broken("rma-core/src/a.rs", text), [("core-purity", 1)], "{text}");
    }
    for text in [
        "use std::time::Duration;",
        "use std::thread::yield_now;",
        "use crate::env::var;",
        "fn f(libc: u8) {}",
        "#[cfg(test)] use std::time::Instant;",
        "#[cfg(all(test, not(loom)))] mod tests { use std::time::Instant; }",
        "#[test] fn f() { std::time::Instant::now(); }",
        "//! `std::env::var` is not read here",
    ] {
        assert_eq!(broken("rma-core/src/a.rs", text), [], "{text}");
    }
}

#[test]
fn only_the_launcher_reads_the_environment() {
    for text in [
        "fn f() { std::env::var(n); }",
        "use std::env::var_os;",
        "use std::env; fn f() { env::vars(); }",
        "fn f() { println!(\"{:?}\", std::env::var(n)); }",
    ] {
        assert_eq!(broken("transport-shm/src/a.rs", text), [("environment", 1)], "{text}");
        assert_eq!(broken("examples/a.rs", text), [("environment", 1)], "{text}");
        for path in ["launcher/src/a.rs", "conformance/src/a.rs", "tests/a.rs", "src/tests/a.rs"] {
            assert_eq!(broken(path, text), [], "{path}: {text}");
        }
    }
    assert_eq!(broken("examples/a.rs", "use std::env; fn f() { env::args(); }"), []);
}

#[test]
fn libraries_do_not_end_the_process() {
    for text in ["fn f() { std::process::abort(); }", "use std::process::{Command, exit};"] {
        assert_eq!(broken("src/a.rs", text), [("process-end", 1)], "{text}");
        assert_eq!(broken("launcher/src/a.rs", text), [("process-end", 1)], "{text}");
        for path in ["examples/a.rs", "launcher/src/bin/a.rs", "launcher/src/main.rs"] {
            assert_eq!(broken(path, text), [], "{path}: {text}");
        }
    }
}

#[test]
fn the_core_and_transports_have_no_globals() {
    for text in [
        "static mut A: u8 = 0;",
        "static A: std::sync::atomic::AtomicU64 = x;",
        "static A: [Mutex<u8>; 2] = x;",
        "fn f() { static A: OnceLock<u8> = OnceLock::new(); }",
        "thread_local! { static A: u8 = 0; }",
        "lazy_static::lazy_static! { static ref A: u8 = 0; }",
    ] {
        for path in ["rma-core/src/a.rs", "transport-sim/src/a.rs"] {
            assert_eq!(broken(path, text), [("global", 1)], "{text}");
        }
        assert_eq!(broken("launcher/src/a.rs", text), [], "{text}");
        assert_eq!(broken("rma-core/src/a.rs", &format!("#[cfg(test)] mod t {{ {text} }}")), []);
    }
    assert_eq!(broken("rma-core/src/a.rs", "static A: &[&str] = &[];"), []);
}

#[test]
fn unfinished_work_and_ignored_tests_are_refused() {
    for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")] {
        assert_eq!(broken("src/a.rs", &format!("\n// {word}: x\n")), [("unfinished", 2)]);
        assert_eq!(broken("src/a.rs", &format!("// A{word}S\n")), []);
    }
    for text in [
        "#[test] #[ignore] fn f() {}",
        "#[test] #[ignore = \"slow\"] fn f() {}",
        "proptest! { #[test] #[ignore] fn f() {} }",
        "/// ```ignore",
        "//! ```rust,ignore",
    ] {
        assert_eq!(broken("src/a.rs", &format!("{text}\nfn g() {{}}")), [("ignored-test", 1)]);
    }
    assert_eq!(broken("src/a.rs", "/// ```no_run\nfn g() {}"), []);
}

#[test]
fn tests_do_not_sleep() {
    let text = "use std::thread; fn f() { thread::sleep(d); }";
    for path in ["tests/a.rs", "launcher/tests/a.rs", "conformance/src/a.rs"] {
        assert_eq!(broken(path, text), [("sleep", 1)], "{path}");
    }
    assert_eq!(broken("launcher/src/a.rs", text), []);
    let inside = format!("#[cfg(test)] mod tests {{ {text} }}");
    assert_eq!(broken("launcher/src/a.rs", &inside), [("sleep", 1)]);
    assert_eq!(broken("launcher/src/a.rs", "#[test] fn f() { libc::usleep(1); }"), [("sleep", 1)]);
}

#[test]
fn a_module_behind_cfg_test_is_test_code_in_its_own_file_too() {
    let sources = [
        source("launcher/src/lib.rs", "#[cfg(test)]\nmod checks;\nmod real;"),
        source("launcher/src/checks.rs", "fn f() { std::thread::sleep(d); }"),
        source("launcher/src/checks/deep.rs", "fn f() { std::thread::sleep(d); }"),
        source("launcher/src/real.rs", "fn f() { std::thread::sleep(d); }"),
    ];
    let (files, _) = read(&sources);
    let found: Vec<_> = files.iter().flat_map(check).map(|finding| finding.path).collect();
    assert_eq!(found, ["launcher/src/checks.rs", "launcher/src/checks/deep.rs"]);
    assert_eq!(module_stem("src/a.rs", "b"), "src/a/b");
    assert_eq!(module_stem("src/a/mod.rs", "b"), "src/a/b");
}

#[test]
fn words_that_were_replaced_are_in_no_name() {
    for name in ["mail", "has_mail", "MailFlag", "MAIL_BYTES", "SyncBoard", "LockAsk", "Gate"] {
        let text = format!("\nfn f() {{ g!(|x| [x.{name}]) }}");
        assert_eq!(broken("src/a.rs", &text), [("word", 2)], "{name}");
    }
    let texts = ["// mail", "/// Who asks?", "const A: &str = \"mail\";"];
    for text in texts {
        assert_eq!(broken("src/a.rs", &format!("{text}\nfn f() {{}}")), [], "{text}");
    }
    for name in ["email", "task", "mask", "whole", "gateway", "Shaper", "MASK", "asked", "whose"] {
        assert_eq!(broken("src/a.rs", &format!("fn {name}() {{}}")), [], "{name}");
    }
    assert_eq!(broken("src/a.rs", "fn who_asks_nobody() {}"), [("word", 1); 3]);
}

#[test]
fn comments_name_their_actors() {
    for text in ["// Nobody asks.", "    /// For whoever waits.", "//! somebody's"] {
        assert_eq!(broken("src/a.rs", &format!("{text}\nfn f() {{}}")), [("word", 1)], "{text}");
    }
    let fine =
        ["// A user who asks.", "const A: &str = \"nobody\";", "const B: u8 = 0; // for a rank"];
    for text in fine {
        assert_eq!(broken("src/a.rs", &format!("{text}\nfn g() {{}}")), [], "{text}");
    }
}

#[test]
fn strings_name_no_folder_of_one_machine() {
    for folder in ["tmp", "home", "root", "work"] {
        for text in [format!("/{folder}"), format!("/{folder}/x"), format!("at /{folder}/x")] {
            let code = format!("fn f() {{ g({text:?}); }}");
            assert_eq!(broken("src/a.rs", &code), [("absolute-path", 1)], "{text}");
            let code = format!("fn f() {{ println!({text:?}); }}");
            assert_eq!(broken("src/a.rs", &code), [("absolute-path", 1)], "{text}");
        }
        for text in [format!("a/{folder}"), format!("/{folder}ing"), format!("{{x}}/{folder}")] {
            let code = format!("fn f() {{ g({text:?}); }}");
            assert_eq!(broken("src/a.rs", &code), [], "{text}");
        }
        assert_eq!(broken("src/a.rs", &format!("/// in /{folder}/x\nfn f() {{}}")), []);
    }
}

fn room(path: &'static str) -> crate::rooms::Room {
    crate::rooms::Room { path, reason: "test" }
}

const NONE: [usize; 0] = [];

/// Lines of what breaks the rule on unsafe code.
fn unsafe_lines(rooms: &[crate::rooms::Room], text: &str) -> Vec<usize> {
    let sources = [source("src/a.rs", text)];
    let (files, findings) = read(&sources);
    assert_eq!(findings, []);
    rooms_check::check(rooms, &files).iter().map(|finding| finding.line).collect()
}

#[test]
fn unsafe_code_stays_in_its_rooms() {
    for text in [
        "fn f() { unsafe { g() } }",
        "unsafe fn f() {}",
        "unsafe impl Send for S {}",
        "unsafe trait T {}",
        "impl S { unsafe fn f() {} }",
        "trait T { unsafe fn f(); }",
        "unsafe extern \"C\" { fn f(); }",
        "#[unsafe(no_mangle)] fn f() {}",
        "fn f() { assert!(unsafe { g() }); }",
        "macro_rules! m { () => { unsafe { g() } } }",
        "#![allow(unsafe_code)]",
        "#[allow(clippy::all, unsafe_code)] fn f() {}",
        "#[cfg(test)] mod t { fn f() { unsafe { g() } } }",
    ] {
        assert_eq!(unsafe_lines(&[], &format!("\n{text}")), [2], "{text}");
    }
    assert_eq!(unsafe_lines(&[], "//! unsafe { }\nfn f() { g(\"unsafe\"); }"), NONE);
    assert_eq!(unsafe_lines(&[], "type F = unsafe fn();"), NONE);
}

#[test]
fn a_room_exists_carries_the_attribute_and_is_needed() {
    let code = "unsafe impl Send for S {}";
    let attribute = "#![allow(unsafe_code)]";
    let rooms = [room("src/a.rs")];
    assert_eq!(unsafe_lines(&rooms, &format!("{attribute}\n{code}")), NONE);
    assert_eq!(unsafe_lines(&rooms, &format!("#[allow(unsafe_code)]\n{code}")), NONE);
    assert_eq!(unsafe_lines(&rooms, code), [1], "no attribute");
    assert_eq!(unsafe_lines(&rooms, attribute), [1], "no unsafe code");
    assert_eq!(unsafe_lines(&[room("src/b.rs")], "fn f() {}"), [1], "no such file");
}

#[test]
fn an_exception_covers_its_rule_in_its_file_and_must_be_needed() {
    let finding =
        |rule, path: &str| Finding { rule, path: path.into(), line: 1, message: "".into() };
    let found = vec![finding("sleep", "a.rs"), finding("sleep", "b.rs"), finding("global", "a.rs")];
    let exception = |rule, path| Exception { rule, path, reason: "test" };
    let rules = |exceptions: &[Exception]| -> Vec<_> {
        let left = excuse(exceptions, found.clone()).into_iter();
        left.map(|finding| (finding.rule, finding.path)).collect()
    };
    let left = [("sleep", "b.rs".to_string()), ("global", "a.rs".to_string())];
    assert_eq!(rules(&[exception("sleep", "a.rs")]), left);
    let stale = ("exception", "xtask/src/rooms.rs".to_string());
    assert!(rules(&[exception("sleep", "c.rs")]).contains(&stale));
}

/// One package that depends on `dependency`, in a workspace that also has the rest.
fn arrow(package: &str, dependency: serde_json::Value) -> Vec<String> {
    let others = ["rma-core", "rma", "rma-transport-shm", "rma-transport-sim", "rma-launcher"];
    let others = others.iter().filter(|name| **name != package);
    let mut packages: Vec<_> =
        others.map(|name| json!({"name": name, "dependencies": [], "features": {}})).collect();
    packages.push(json!({"name": package, "dependencies": [dependency], "features": {}}));
    let found = arrows::check(&json!({ "packages": packages }));
    found.into_iter().map(|finding| finding.message).collect()
}

#[test]
fn arrows_point_down() {
    let normal = |on: &str| json!({"name": on, "kind": null, "optional": false});
    for (package, on) in [
        ("rma-core", "rma-transport-shm"),
        ("rma-transport-shm", "rma-transport-sim"),
        ("rma-transport-shm", "rma"),
        ("rma-launcher", "rma-transport-shm"),
        ("rma-conformance", "rma"),
        ("rma-conformance", "rma-transport-sim"),
        ("rma", "rma-bench"),
        ("xtask", "rma-core"),
    ] {
        let mut found = arrow(package, normal(on));
        found.retain(|message| message.contains(&format!("{package} must not depend on {on}")));
        assert_eq!(found.len(), usize::from(on != "rma-bench"), "{package} on {on}");
        let build = json!({"name": on, "kind": "build", "optional": false});
        assert_eq!(arrow(package, build).len(), found.len(), "{package} on {on}");
        let dev = json!({"name": on, "kind": "dev", "optional": false});
        assert_eq!(arrow(package, dev), Vec::<String>::new(), "{package} on {on}");
    }
    for (package, on) in [
        ("rma", "rma-core"),
        ("rma", "rma-launcher"),
        ("rma-launcher", "rma-transport-ofi"),
        ("rma-transport-shm", "rma-core"),
        ("rma-conformance", "rma-core"),
        ("rma-bench", "rma"),
        ("rma-bench", "rma-transport-shm"),
        ("rma-core", "bytemuck"),
    ] {
        assert_eq!(arrow(package, normal(on)), Vec::<String>::new(), "{package} on {on}");
    }
    assert_eq!(arrow("rma-new", normal("rma-core")).len(), 1);
    assert_eq!(arrows::check(&json!({"packages": []})).len(), 1);
}

#[test]
fn tokio_stays_in_the_server_half_of_the_launcher() {
    let tokio = |kind: Option<&str>, optional: bool| {
        let name = "tokio";
        json!({"name": name, "kind": kind, "optional": optional})
    };
    assert_eq!(arrow("rma-launcher", tokio(None, true)), Vec::<String>::new());
    assert_eq!(arrow("rma-launcher", tokio(None, false)).len(), 1);
    assert_eq!(arrow("rma", tokio(None, true)).len(), 1);
    assert_eq!(arrow("rma-transport-shm", tokio(Some("dev"), false)).len(), 1);
    let with_feature = |feature: &str| {
        let features = json!({ feature: ["dep:tokio"] });
        let package = json!({"name": "rma-launcher", "dependencies": [], "features": features});
        arrows::check(&json!({ "packages": [package] })).len()
    };
    assert_eq!([with_feature("server"), with_feature("client")], [0, 1]);
    assert_eq!(arrows::tokio_in_tree("rma v0.1.0\ntokio v1.40.0\n").len(), 1);
    assert_eq!(arrows::tokio_in_tree("rma v0.1.0\ntokio-util v0.7.0\n").len(), 0);
}

#[test]
fn waits_have_names_and_names_have_cases() {
    let check = |core: &str, cases: &str| -> Vec<(String, usize)> {
        let sources = [
            source("rma-core/src/a.rs", core),
            source("conformance/src/waits.rs", &format!("fn all() {{ {cases} }}")),
        ];
        let (files, _) = read(&sources);
        waits::check(&files).into_iter().map(|finding| (finding.path, finding.line)).collect()
    };
    let named = "fn f() {\n    // wait: queue\n    g.wait_until(w, d);\n}\n";
    assert_eq!(check(named, "case(\"queue\", q)"), []);
    let core = |line| vec![("rma-core/src/a.rs".to_owned(), line)];
    assert_eq!(check("fn f() {\n    g.wait_until(w, d);\n}\n", ""), core(2));
    assert_eq!(check(named, ""), core(3));
    let stale = vec![("conformance/src/waits.rs".to_owned(), 1)];
    assert_eq!(check("fn f() {}", "far(\"order\", q)"), stale);
}

#[test]
fn rooms_know_those_below_only() {
    let table = "## Inside rma-core\n\n| room | holds |\n| --- | --- |\n| `high/`, `mid.rs` | x |\n\
                | `low/` | y |\n\n| `no/` | room |\n";
    let found = |files: &[(&str, &str)]| {
        let sources: Vec<Source> = files.iter().map(|(path, text)| source(path, text)).collect();
        let (files, _) = read(&sources);
        let findings = floors::check(table, &files);
        findings.iter().map(|it| (it.path.clone(), it.line)).collect::<Vec<_>>()
    };
    let rooms = |low: &str, mid: &str, high: &str| {
        found(&[
            ("rma-core/src/lib.rs", "mod high; mod low; mod mid; use high::*; use low::*;"),
            ("rma-core/src/low/a.rs", low),
            ("rma-core/src/mid.rs", mid),
            ("rma-core/src/high/mod.rs", high),
        ])
    };
    let at = |path: &str, line: usize| vec![(format!("rma-core/src/{path}"), line)];
    assert_eq!(rooms("", "use crate::low::A;", "use crate::{mid, low};"), []);
    assert_eq!(rooms("\nuse crate::mid::A;", "", ""), at("low/a.rs", 2));
    assert_eq!(rooms("", "fn f() { crate::high::g(); }", ""), at("mid.rs", 1));
    assert_eq!(rooms("use crate::Window;", "", ""), at("low/a.rs", 1), "whose is it?");
    assert_eq!(rooms("#[cfg(test)] mod t { use crate::high::A; }", "", ""), []);
    // A method that a room above gives to a type of this one.
    let low = "struct S; fn f(s: S) { s.g(); }";
    assert_eq!(rooms(low, "impl S { fn g(&self) {} }", ""), at("low/a.rs", 1));
    assert_eq!(rooms(low, "struct T; impl T { fn g(&self) {} }", ""), [], "of another type");
    assert_eq!(rooms("struct S; impl S { fn g(&self) {} }", "fn f(s: S) { s.g(); }", ""), []);
    assert_eq!(rooms("struct S;", "struct S;", ""), at("mid.rs", 1), "a name has one meaning");
    assert_eq!(rooms("struct S;", "#[cfg(test)] mod t { struct S; }", ""), []);
    // The table and the folders are the same.
    let page = || ("docs/architecture.md".to_owned(), 1);
    assert_eq!(found(&[("rma-core/src/low/a.rs", "")]), [page(), page()]);
    let more = found(&[
        ("rma-core/src/low/a.rs", ""),
        ("rma-core/src/mid.rs", ""),
        ("rma-core/src/high/a.rs", ""),
        ("rma-core/src/new.rs", ""),
    ]);
    assert_eq!(more, [page()]);
}

#[test]
fn pages_name_files_that_are_there() {
    let sources = [source("rma-core/src/window/mod.rs", ""), source("tests/local.rs", "")];
    let found = |text: &str| {
        let findings = pages::check(&[source("docs/a.md", text)], &sources);
        findings.iter().map(|it| it.line).collect::<Vec<usize>>()
    };
    assert_eq!(found("see `window/mod.rs`, `tests/local.rs` and `local.rs`"), [0; 0]);
    assert_eq!(found("x\n`window/far.rs`\n`low/mod.rs`, `cal.rs`"), [2, 3, 3]);
    assert_eq!(found("window/far.rs `memory/{copy,atomic}.rs` `tests/NAME.rs`"), [0; 0]);
}

#[test]
fn a_file_that_stands_in_several_rooms_is_a_listed_topic() {
    let page = "### Topics of several rooms\n\n| file | rooms | of what |\n| --- | --- | --- |\n\
                | `lock` | `high/`, `low/` | x |\n";
    let found = |paths: &[&str]| {
        let sources: Vec<Source> = paths.iter().map(|path| source(path, "")).collect();
        let (files, _) = read(&sources);
        topics::check(page, &files).into_iter().map(|it| it.message).collect::<Vec<_>>()
    };
    let lock = ["rma-core/src/high/lock.rs", "rma-core/src/low/deeper/lock.rs"];
    assert_eq!(found(&lock), <[String; 0]>::default());
    let once =
        ["mod.rs", "rows_tests.rs", "rows.rs"].map(|name| format!("rma-core/src/low/{name}"));
    let again = ["mod.rs", "rows_tests.rs"].map(|name| format!("rma-core/src/high/{name}"));
    let elsewhere = ["xtask/src/rows.rs".to_owned()];
    let fine = once.iter().chain(&again).chain(&elsewhere).map(String::as_str);
    let fine: Vec<&str> = lock.into_iter().chain(fine).collect();
    assert_eq!(found(&fine), <[String; 0]>::default());
    for (paths, says) in [
        (vec![lock[0]], "lock.rs stands in several rooms (none), the table"),
        ([&lock[..], &["rma-core/src/mid/lock.rs"]].concat(), "(high/, low/, mid/)"),
        (
            [&lock[..], &["rma-core/src/low/a.rs", "rma-core/src/mid/a.rs"]].concat(),
            "a.rs stands in several rooms (low/, mid/), the table",
        ),
    ] {
        let messages = found(&paths);
        assert!(messages.len() == 1 && messages[0].contains(says), "{messages:?}");
    }
}
