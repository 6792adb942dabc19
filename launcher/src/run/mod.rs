//! Running a job: what `rma-run` does, as a library for test helpers.
//!
//! ```no_run
//! use rma_launcher::run::{Output, Spec, run};
//!
//! let mut spec = Spec::new("hostname", 4);
//! spec.output = Output::Capture;
//! let report = run(&spec)?;
//! assert_eq!(report.exit_code(), 0);
//! # Ok::<(), rma_launcher::run::RunError>(())
//! ```

mod arrivals;
mod bootstrap;
mod capacity;
mod config;
mod cpus;
pub mod doctor;
mod driver;
mod files;
mod groups;
mod hosts;
mod input;
mod introduce;
mod lines;
mod look;
mod machine;
mod output;
mod pattern;
mod pmi;
mod processes;
mod program;
pub mod query;
mod report;
mod signals;
mod spawn;
mod spec;
mod stamp;
mod start;
mod strangers;
mod summary;
mod topology;
mod warden;

pub use crate::pmi::server::PmiFault;
pub use capacity::Shortage;
pub use config::read_config;
#[doc(hidden)]
pub use groups::of_memory as memory_group;
pub use hosts::{
    Connections, Fill, HostPart, HostSecret, HostSlots, Join, JoinError, JoinPort, JoinedHosts,
    Remote, agent, join, parse_hosts, place, read_hosts,
};
pub use pattern::FilePattern;
pub use report::{Ending, Failure, How, LostOutput, RankOutput, Report, RunError};
pub use spec::{Bind, MapBy, OnFailure, Output, Program, Readers, Spec, Stdin};
pub use warden::{NAME as WARDEN_NAME, warden};

/// Runs a job from start to end, in the calling thread; returns when every process is gone.
///
/// Must not be called from within an asynchronous runtime. The ranks end with the calling process
/// if that ends first, by a signal for example.
///
/// # Errors
///
/// When the job could not be started; what happens to a job that runs is in the [`Report`].
pub fn run(spec: &Spec) -> Result<Report, RunError> {
    driver::run(spec)
}

/// Looks whether a job could be started, as far as that can be told without any host.
///
/// # Errors
///
/// Those of [`run`] that come before all else: a program is not found, or a setting cannot be used.
pub fn check(spec: &Spec) -> Result<(), RunError> {
    driver::check(spec).map(drop)
}

/// What says that this process is one of several that another launcher has started, if it is: the
/// variable, and its value. Each would run a job of its own.
pub fn one_of_several() -> Option<(&'static str, String)> {
    let vars = |name: &str| std::env::var_os(name);
    crate::foreign::one_of_several(&crate::pmi::of_others(&vars))
}
