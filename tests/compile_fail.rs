//! Misuse that the compiler refuses. The expected messages stand beside the programs; after a
//! change of compiler, `TRYBUILD=overwrite cargo test -p rma --test compile_fail` renews them.

#[test]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/allowed.rs");
    for case in std::fs::read_dir("tests/ui").expect("the folder of programs") {
        let path = case.expect("an entry of it").path();
        let is_program = path.extension().is_some_and(|extension| extension == "rs");
        if is_program && !path.ends_with("allowed.rs") {
            cases.compile_fail(path);
        }
    }
}
