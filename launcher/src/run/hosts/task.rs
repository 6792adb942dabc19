//! What agents are told to do.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::super::report::RunError;
use super::super::spec::{Program, Readers, Spec};
use super::super::{pmi, program};
use super::Remote;
use super::talk::{Print, Prints, Task, TaskProgram};
use crate::{BOOTSTRAP_VAR, JOB_VAR, PMI_VAR, RANK_VAR, SECRET_VAR};

/// Variables that ranks on other hosts get from this environment, besides those of `--env`: by the
/// beginning of their names.
const PASSED: [&str; 3] = ["RMA_", "FI_", "RUST_BACKTRACE"];
/// But for those that each rank has its own of.
const OWN: [&str; 9] = [
    BOOTSTRAP_VAR,
    PMI_VAR,
    RANK_VAR,
    SECRET_VAR,
    JOB_VAR,
    "RMA_SIZE",
    "RMA_NODE",
    "RMA_LOCAL_RANK",
    "RMA_LOCAL_SIZE",
];

/// What all agents are told alike, but for their programs, and all programs.
pub(super) fn of_all(
    spec: &Spec,
    remote: &Remote,
    name: &str,
    programs: &[program::Found],
    input: Option<Readers>,
) -> Result<(Task, Vec<TaskProgram>), RunError> {
    let system = |what| move |source| RunError::System { what, source };
    let own = Print::of(Path::new("/proc/self/exe")).map_err(system("reading rma-run"))?;
    let mut prints = Prints::default();
    let programs = programs.iter().map(|(program, file)| task_program(program, file, &mut prints));
    let programs = programs.collect::<Result<_, _>>()?;
    let task = Task {
        name: String::new(),
        hosts: remote.hosts.iter().map(|part| part.name.clone()).collect(),
        host: 0,
        first: 0,
        ranks: 0,
        job: spec.job(remote.hosts.len() as u32),
        programs: Vec::new(),
        bind: spec.bind,
        map_by: spec.map_by,
        kill_after: spec.kill_after,
        silence: remote.silence,
        input,
        launcher_print: own,
        copies: remote.copy,
        pmi: pmi::offer(spec, name, remote.hosts.iter().map(|part| part.ranks)),
    };
    Ok((task, programs))
}

fn task_program(
    program: &Program,
    file: &Path,
    prints: &mut Prints,
) -> Result<TaskProgram, RunError> {
    let system = |what| move |source| RunError::System { what, source };
    let unreadable = system("reading the program");
    let file = std::path::absolute(file).map_err(unreadable)?;
    let dir = program.dir.clone().map_or_else(std::env::current_dir, std::path::absolute);
    let dir = dir.map_err(system("asking for the current folder"))?;
    let bytes = |text: &OsString| text.as_bytes().to_vec();
    Ok(TaskProgram {
        first: program.first,
        program: file.as_os_str().as_bytes().to_vec(),
        called: bytes(&program.program),
        args: program.args.iter().map(bytes).collect(),
        dir: dir.as_os_str().as_bytes().to_vec(),
        env: environment(program),
        print: prints.of(&file).map_err(unreadable)?,
    })
}

/// Those that have ranks among these.
pub(super) fn with_ranks(programs: &[TaskProgram], ranks: &Range<u32>) -> Vec<TaskProgram> {
    let ends = programs.iter().skip(1).map(|next| next.first).chain([u32::MAX]);
    let those = programs.iter().zip(ends);
    let those = those.filter(|(program, end)| program.first < ranks.end && *end > ranks.start);
    those.map(|(program, _)| program.clone()).collect()
}

/// The environment by rule, and what the user says.
fn environment(program: &Program) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let passed = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        PASSED.iter().any(|start| name.starts_with(start)) && !OWN.contains(&&*name)
    });
    let passed = passed.map(|(name, value)| (name.into_vec(), Some(value.into_vec())));
    let said = program.env.iter().map(|(name, value)| {
        (name.as_bytes().to_vec(), value.as_ref().map(|value| value.as_bytes().to_vec()))
    });
    passed.chain(said).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_gets_the_programs_of_its_ranks() {
        let print = Print { len: 0, sum: 0 };
        let of = |first: u32| TaskProgram {
            first,
            program: Vec::new(),
            called: Vec::new(),
            args: Vec::new(),
            dir: Vec::new(),
            env: Vec::new(),
            print,
        };
        let programs = [of(0), of(3), of(5)];
        let firsts = |ranks: Range<u32>| -> Vec<u32> {
            with_ranks(&programs, &ranks).iter().map(|program| program.first).collect()
        };
        assert_eq!(firsts(0..3), [0]);
        assert_eq!(firsts(0..4), [0, 3]);
        assert_eq!(firsts(3..5), [3]);
        assert_eq!(firsts(2..6), [0, 3, 5]);
        assert_eq!(firsts(7..9), [5]);
    }
}
