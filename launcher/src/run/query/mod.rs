//! Jobs that run can be asked: each launcher listens at an abstract socket, which is gone with it,
//! whatever ends it. Its name says which user's job it is, and the kernel says which user is at
//! either end.

mod find;
mod top;
mod view;
mod why;

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as Listener};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::geteuid;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Semaphore, oneshot};

pub use find::find;
pub use view::{JobView, RankView, Stage, Told, Usage, WaitView, WhomView};
pub(super) use view::{Seen, see};
pub(super) use why::{lines, quoted};
pub use {top::Top, why::Why};

use super::bootstrap;
use super::driver::Input;
use crate::codec::{wire_enum, wire_struct};
use crate::wire::{self, HELLO_MAX};

/// Names begin with that, the number of the user, and the number of the process.
const PREFIX: &str = "rma-run";
/// Callers that are answered at a time; more are turned away.
const CALLERS: usize = 8;
/// How long a question and its answer may take together.
const PATIENCE: Duration = Duration::from_secs(5);

/// A question.
#[derive(Debug, PartialEq)]
struct Query {
    /// Of the bootstrap, with which what is told changes.
    version: u16,
}

/// An answer.
#[derive(Debug, PartialEq)]
enum Answer {
    View {
        view: JobView,
    },
    /// The launcher is of another version.
    Version {
        launcher: u16,
    },
}

wire_struct!(Query { version });
wire_enum!(Answer { 0 = View { view: view }, 1 = Version { launcher: launcher } });

/// Why a job could not be asked.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// None of this user's jobs runs.
    #[error(
        "no job of yours runs on this machine (in this network namespace); \
         `rma-run -n N PROGRAM` starts one"
    )]
    NoJob,
    /// None of this user's jobs is the one asked for.
    #[error("no job of yours is called {job:?}, or has that process of rma-run; {}", listed(jobs))]
    NoSuchJob {
        /// The name, or process, asked for.
        job: String,
        /// Those that run.
        jobs: Vec<JobView>,
    },
    /// It is not said which of several.
    #[error(
        "several jobs run, say which by its name or the process of rma-run; {}{}",
        listed(jobs),
        silent.as_ref().map(|error| format!("\n  {error}")).unwrap_or_default()
    )]
    Several {
        /// Those that run.
        jobs: Vec<JobView>,
        /// Why one more was not asked.
        silent: Option<Box<QueryError>>,
    },
    /// The launcher does not answer.
    #[error(
        "process {launcher} of rma-run does not answer: {source}; it may be stopped, or about to \
         end"
    )]
    Silent {
        /// The launcher.
        launcher: u32,
        /// What the system says.
        source: io::Error,
    },
    /// The launcher is of another version.
    #[error(
        "process {launcher} of rma-run is of another version: it speaks bootstrap version \
         {theirs}, this one {}; ask with the rma-run that started the job",
        wire::VERSION
    )]
    Version {
        /// The launcher.
        launcher: u32,
        /// Its version.
        theirs: u16,
    },
    /// The system does not say which sockets there are.
    #[error("jobs are found in /proc/net/unix, which cannot be read: {0}; is /proc mounted?")]
    Sockets(#[source] io::Error),
}

crate::debug_as_display!(QueryError);

impl QueryError {
    /// What `rma-run` exits with.
    pub fn exit_code(&self) -> u8 {
        match self {
            QueryError::NoSuchJob { .. } | QueryError::Several { .. } => 2,
            _ => 1,
        }
    }
}

/// Jobs, to choose from.
fn listed(jobs: &[JobView]) -> String {
    let lines = jobs.iter().map(|job| format!("\n  {}", why::heading(job)));
    match jobs {
        [] => "none runs that answers".to_owned(),
        _ => format!("there are:{}", lines.collect::<String>()),
    }
}

/// Answers questions from now on, until the task is dropped; not where another process could not be
/// answered, either, since the system has no abstract sockets.
pub(super) fn serve(inputs: UnboundedSender<Input>) -> io::Result<()> {
    let random = wire::random()?;
    let digits: String = random.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let (user, process) = (geteuid().as_raw(), std::process::id());
    let name = format!("{PREFIX}/{user}/{process}/{digits}");
    let listener = Listener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    tokio::spawn(async move {
        let callers = Arc::new(Semaphore::new(CALLERS));
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(permit) = Arc::clone(&callers).try_acquire_owned() else { continue };
            let inputs = inputs.clone();
            tokio::spawn(async move {
                // A caller that goes, or says nothing, gets no answer.
                let _ = tokio::time::timeout(PATIENCE, answer(stream, inputs)).await;
                drop(permit);
            });
        }
    });
    Ok(())
}

async fn answer(mut stream: UnixStream, inputs: UnboundedSender<Input>) -> io::Result<()> {
    let caller = stream.peer_cred()?.uid();
    if caller != geteuid().as_raw() && caller != 0 {
        return Ok(());
    }
    let Query { version } = bootstrap::read(&mut stream, HELLO_MAX).await?;
    let answer = if version == wire::VERSION {
        let (to, view) = oneshot::channel();
        // The driver is gone only when the job is over, and so is this task soon.
        let _ = inputs.send(Input::Queried(to));
        let Ok(view) = view.await else { return Ok(()) };
        Answer::View { view }
    } else {
        Answer::Version { launcher: wire::VERSION }
    };
    stream.write_all(&wire::encode(&answer)?).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_travel() {
        let view = why::tests::view();
        let frame = wire::encode(&Answer::View { view }).unwrap();
        let back: Answer = wire::decode(&frame[4..]).unwrap();
        assert_eq!(back, Answer::View { view: why::tests::view() });
        for len in 0..frame.len() - 4 {
            assert!(wire::decode::<Answer>(&frame[4..4 + len]).is_err());
        }
    }
}
