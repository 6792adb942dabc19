//! Launchers of others, as their processes see them in the environment.

use std::ffi::OsString;

use crate::start::StartError;

/// Reads one environment variable.
pub(crate) type Vars<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// A launcher of others: variables that only its processes see, and those that say how many
/// processes there are.
struct Foreign {
    launcher: &'static str,
    marks: &'static [&'static str],
    sizes: &'static [&'static str],
    /// What starts the same processes as one job.
    instead: &'static str,
}

const RMA_RUN: &str = "`rma-run -n N PROGRAM`";
/// The number of a task that blaunch has started, and how many slots its job has.
const LSF_TASK: &str = "LSF_PM_TASKID";
const LSF_SIZE: &str = "LSB_DJOB_NUMPROC";

const FOREIGN: &[Foreign] = &[
    Foreign {
        launcher: "Open MPI's mpirun",
        marks: &["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"],
        sizes: &["OMPI_COMM_WORLD_SIZE"],
        instead: "`rma-run -n N PROGRAM`, or with an mpirun that sets PMIX_RANK and PMIX_NAMESPACE",
    },
    Foreign {
        launcher: "MVAPICH's mpirun",
        marks: &["MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"],
        sizes: &["MV2_COMM_WORLD_SIZE"],
        instead: "`rma-run -n N PROGRAM`, or with `mpiexec -n N PROGRAM` of hydra",
    },
    // Before PMI: srun sets both kinds, and its name helps more. A batch script has a
    // SLURM_PROCID too; there, a count of tasks above 1 means that ranks were asked for.
    Foreign {
        launcher: "Slurm",
        marks: &["SLURM_PROCID"],
        sizes: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        instead: "`srun --mpi=pmi2 PROGRAM` or `srun --mpi=pmix PROGRAM` (`srun --mpi=list` shows \
                  which there are), or with `rma-run -n N PROGRAM`",
    },
    Foreign {
        launcher: "an MPI launcher (PMI)",
        marks: &["PMI_SIZE", "PMI_RANK", "PMI_FD", "PMI_PORT", "PMI_ID"],
        sizes: &["PMI_SIZE"],
        instead: "`rma-run -n N PROGRAM`, or with a launcher that sets PMI_FD, PMI_RANK and \
                  PMI_SIZE, or PMI_PORT and PMI_ID (`mpiexec` of hydra)",
    },
    Foreign {
        launcher: "an MPI launcher (PMIx)",
        marks: &["PMIX_RANK", "PMIX_NAMESPACE"],
        sizes: &["OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"],
        instead: "`rma-run -n N PROGRAM`, or with a launcher that sets both PMIX_RANK and \
                  PMIX_NAMESPACE (`prterun`, `srun --mpi=pmix`)",
    },
    Foreign {
        launcher: "an MPI launcher",
        marks: &["MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        sizes: &["PMI_SIZE"],
        instead: RMA_RUN,
    },
    Foreign {
        launcher: "PALS",
        marks: &["PALS_RANKID", "PALS_LOCAL_RANKID"],
        sizes: &["PALS_SIZE", "PMI_SIZE"],
        instead: RMA_RUN,
    },
    Foreign {
        launcher: "ALPS aprun",
        marks: &["ALPS_APP_PE"],
        sizes: &["PMI_SIZE"],
        instead: RMA_RUN,
    },
    Foreign {
        launcher: "Flux",
        marks: &["FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"],
        sizes: &["FLUX_JOB_SIZE"],
        instead: "`flux run -o pmi=simple PROGRAM`, or with `rma-run -n N PROGRAM`",
    },
    Foreign {
        launcher: "jsrun",
        marks: &["JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"],
        sizes: &["JSM_NAMESPACE_SIZE"],
        instead: RMA_RUN,
    },
    Foreign {
        launcher: "PRRTE's prterun",
        marks: &["PRTE_LAUNCHED"],
        sizes: &[],
        instead: "`prterun -n N PROGRAM`, which sets PMIX_RANK and PMIX_NAMESPACE (a wrapper must \
                  not remove them), or with `rma-run -n N PROGRAM`",
    },
    // The shell of a job is its first task.
    Foreign {
        launcher: "a PBS task manager (pbsdsh)",
        marks: &["PBS_TASKNUM"],
        sizes: &["PBS_TASKNUM"],
        instead: "`rma-run PROGRAM` in the job's script, which takes hosts and ranks from \
                  PBS_NODEFILE",
    },
    Foreign {
        launcher: "LSF's blaunch",
        marks: &[LSF_TASK],
        sizes: &[LSF_SIZE],
        instead: "`rma-run PROGRAM` in the job's script, which takes hosts and ranks from \
                  LSB_DJOB_HOSTFILE",
    },
];

/// Refuses if one of several processes that another launcher started would take itself for the only
/// one.
pub(crate) fn refuse(vars: Vars) -> Result<(), StartError> {
    for foreign in FOREIGN {
        let seen: Vec<&str> =
            foreign.marks.iter().copied().filter(|name| vars(name).is_some()).collect();
        let Some(mark) = seen.first() else { continue };
        let size = foreign.sizes.iter().find_map(|name| vars(name).map(|value| (*name, value)));
        let (variable, value) = match size {
            Some((_, size)) if size == "1" => continue,
            Some(size) => size,
            // A batch or interactive shell without a number of tasks is one process.
            None if *mark == "SLURM_PROCID" && vars(mark).is_some_and(|value| value == "0") => {
                continue;
            }
            None => (*mark, vars(mark).unwrap_or_default()),
        };
        return Err(StartError::ForeignLauncher {
            variable,
            value: value.to_string_lossy().chars().take(60).collect(),
            launcher: foreign.launcher,
            instead: foreign.instead,
            without: seen.iter().map(|name| format!("-u {name}")).collect::<Vec<_>>().join(" "),
        });
    }
    Ok(())
}

/// What says that each of several processes would start a job of its own: the variable, and its
/// value. In the script of a batch job, which is one process, nothing does.
#[cfg(feature = "server")]
pub(crate) fn one_of_several(vars: Vars) -> Option<(&'static str, String)> {
    const SIZES: [&str; 7] = [
        "SLURM_STEP_NUM_TASKS",
        "PMI_SIZE",
        "OMPI_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_SIZE",
        "PALS_SIZE",
        "FLUX_JOB_SIZE",
        "JSM_NAMESPACE_SIZE",
    ];
    const NUMBERS: [&str; 5] = ["PMI_ID", "PMIX_RANK", "PALS_RANKID", "PBS_TASKNUM", "ALPS_APP_PE"];
    let text = |name| vars(name).map(|value| value.to_string_lossy().into_owned());
    let number = |name| text(name).and_then(|value| value.parse::<u32>().ok());
    let sizes = SIZES.map(|name| number(name).map(|size| (name, size)));
    if let Some((name, size)) = sizes.into_iter().flatten().find(|(_, size)| *size > 1) {
        return Some((name, size.to_string()));
    }
    // As a program decides it: blaunch numbers all of its tasks, and the script of a job has none.
    if text(LSF_SIZE).is_none_or(|size| size != "1")
        && let Some(task) = text(LSF_TASK)
    {
        return Some((LSF_TASK, task));
    }
    // One of one, then, whatever its number is.
    if sizes.iter().any(Option::is_some) {
        return None;
    }
    // The first task of PBS is the script.
    let is_first = |name, value| value == u32::from(name == "PBS_TASKNUM");
    NUMBERS.iter().find_map(|name| {
        let value = number(name)?;
        (!is_first(*name, value)).then(|| (*name, value.to_string()))
    })
}
