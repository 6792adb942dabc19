//! Misuse that the compiler refuses. The expected messages stand beside the programs; after a
//! change of compiler, `TRYBUILD=overwrite cargo test -p rma --test compile_fail` renews them.

/// What looks like those programs and is right. With a program that must pass, trybuild would
/// build what `rma` stands on where it only checks that now.
#[allow(dead_code)]
#[path = "ui/allowed.rs"]
mod allowed;

#[test]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    for case in std::fs::read_dir("tests/ui").expect("the folder of programs") {
        let path = case.expect("an entry of it").path();
        let is_program = path.extension().is_some_and(|extension| extension == "rs");
        if is_program && !path.ends_with("allowed.rs") {
            cases.compile_fail(path);
        }
    }
}
