//! Finding the launcher of a job, and its answer. Any user can take any name of a socket, so
//! nothing that listens, or answers, holds up a user who asks for longer than [`PATIENCE`].

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

use super::view::JobView;
use super::{Answer, PATIENCE, PREFIX, Query, QueryError};
use crate::wire::{self, FRAME_MAX};

/// Launchers that are asked at a time.
const AT_A_TIME: usize = 16;
/// How long a launcher that ended the connection is left alone.
const AGAIN: Duration = Duration::from_millis(10);

/// A launcher that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    /// The user that its name says.
    user: u32,
    launcher: u32,
    socket: String,
}

/// What comes of a question.
#[derive(Debug)]
enum Reply {
    Job(JobView),
    /// None, of a launcher that is the user's own, or that the superuser asked.
    Failed(QueryError),
    /// None, of such a launcher, which ended the connection.
    Closed(QueryError),
    /// More callers wait there than may, so that it is not known which user's process listens.
    Full(QueryError),
}

/// Launchers of that user's jobs, of all users' for the superuser, among the system's sockets.
fn launchers(sockets: &str, user: u32) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for line in sockets.lines() {
        // An abstract name begins with an @ here, and has no spaces if it is one of ours.
        let Some(socket) = line.split_ascii_whitespace().nth(7) else { continue };
        let Some(socket) = socket.strip_prefix('@') else { continue };
        let [PREFIX, owner, launcher, _] = *socket.split('/').collect::<Vec<_>>() else { continue };
        let (Ok(owner), Ok(launcher)) = (owner.parse::<u32>(), launcher.parse()) else { continue };
        if owner == user || user == 0 {
            found.push(Found { user: owner, launcher, socket: socket.to_owned() });
        }
    }
    // Each connection is a line, too.
    found.sort_by(|a, b| (a.launcher, &a.socket).cmp(&(b.launcher, &b.socket)));
    found.dedup();
    found
}

/// What a launcher sends until then, however little at a time.
struct Until<'a>(&'a UnixStream, Instant);

impl Read for Until<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let Until(stream, deadline) = *self;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut stream = stream;
        stream.read(to).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}

/// A connection to that abstract socket; an error at once where it would have to be waited for.
fn connected(socket: &str) -> rustix::io::Result<UnixStream> {
    let address = SocketAddrUnix::new_abstract_name(socket.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&stream, &address)?;
    Ok(stream.into())
}

/// Asks a launcher; `None` if another user's process listens there, or none any more. One that
/// ends the connection is asked again: it has too many callers, or is about to end.
fn query(found: &Found, deadline: Instant) -> Option<Reply> {
    loop {
        match query_once(found, deadline)? {
            Reply::Closed(_) if Instant::now() < deadline => thread::sleep(AGAIN),
            reply => return Some(reply),
        }
    }
}

fn query_once(found: &Found, deadline: Instant) -> Option<Reply> {
    let launcher = found.launcher;
    let silent = |source: io::Error| QueryError::Silent { launcher, source };
    let stream = match connected(&found.socket) {
        Ok(stream) => stream,
        Err(Errno::AGAIN) => {
            let source = io::Error::other("more callers wait there than may");
            return Some(Reply::Full(silent(source)));
        }
        Err(_) => return None,
    };
    let owner = socket_peercred(&stream).ok()?.uid;
    if owner.as_raw() != found.user && !owner.is_root() {
        return None;
    }
    // A question has room in any socket, so writing it does not wait.
    let answer = wire::write(&stream, &Query { version: wire::VERSION })
        .and_then(|()| stream.set_nonblocking(false))
        .and_then(|()| wire::read(Until(&stream, deadline), FRAME_MAX));
    Some(match answer {
        Ok(Answer::View { view }) if view.launcher == launcher && view.is_consistent() => {
            Reply::Job(view)
        }
        Ok(Answer::View { .. }) => {
            Reply::Failed(silent(io::Error::other("what it sent is not about a job of its own")))
        }
        Ok(Answer::Version { launcher: theirs }) => {
            Reply::Failed(QueryError::Version { launcher, theirs })
        }
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            Reply::Failed(silent(io::Error::other(format!("no answer within {PATIENCE:?}"))))
        }
        Err(error) => match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                Reply::Closed(silent(error))
            }
            _ => Reply::Failed(silent(error)),
        },
    })
}

/// Asks all of these, in no order, within that time.
fn query_all(found: &[Found], patience: Duration) -> Vec<Reply> {
    let (deadline, next) = (Instant::now() + patience, AtomicUsize::new(0));
    let work = || {
        let mine = std::iter::from_fn(|| found.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.filter_map(|found| query(found, deadline)).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let helpers: Vec<_> = (1..found.len().min(AT_A_TIME)).map_while(spawn).collect();
        let mut replies = work();
        for helper in helpers {
            replies.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        replies
    })
}

/// The job of that name, or that process of `rma-run`; or the only one of this user.
///
/// # Errors
///
/// When there is none, or several, and when its launcher does not answer.
pub fn find(job: Option<&str>) -> Result<JobView, QueryError> {
    let sockets = std::fs::read("/proc/net/unix").map_err(QueryError::Sockets)?;
    let found = launchers(&String::from_utf8_lossy(&sockets), geteuid().as_raw());
    if let Some(process) = job.and_then(|job| job.parse::<u32>().ok()) {
        let of_process: Vec<_> =
            found.iter().filter(|found| found.launcher == process).cloned().collect();
        let replies = query_all(&of_process, PATIENCE);
        if !replies.is_empty() {
            return only(replies);
        }
    }
    let replies = query_all(&found, PATIENCE);
    match job {
        Some(name) => called(name, replies),
        None => only(replies),
    }
}

/// The jobs that were told of, in order, and why others were not: of a launcher that is known to be
/// the user's, and of one that may be any user's.
fn sorted(replies: Vec<Reply>) -> (Vec<JobView>, Option<QueryError>, Option<QueryError>) {
    let (mut jobs, mut failed, mut full) = (Vec::new(), None, None);
    for reply in replies {
        match reply {
            Reply::Job(view) => jobs.push(view),
            Reply::Failed(error) | Reply::Closed(error) => failed = Some(error),
            Reply::Full(error) => full = Some(error),
        }
    }
    jobs.sort_by_key(|view| view.launcher);
    (jobs, failed, full)
}

/// The only job.
fn only(replies: Vec<Reply>) -> Result<JobView, QueryError> {
    let (mut jobs, failed, full) = sorted(replies);
    match (jobs.len(), failed) {
        (1, None) => Ok(jobs.remove(0)),
        (0, failed) => Err(failed.or(full).unwrap_or(QueryError::NoJob)),
        (_, failed) => Err(QueryError::Several { jobs, silent: failed.map(Box::new) }),
    }
}

/// The only job of that name.
fn called(name: &str, replies: Vec<Reply>) -> Result<JobView, QueryError> {
    let (jobs, failed, full) = sorted(replies);
    let is_called = |view: &JobView| view.name.as_deref() == Some(name);
    let (mut named, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_called);
    // A launcher that does not answer may be the one; not if a process was asked for, which would
    // have answered before.
    let failed = failed.or(full).filter(|_| name.parse::<u32>().is_err());
    match (named.len(), failed) {
        (1, _) => Ok(named.remove(0)),
        (0, Some(error)) => Err(error),
        (0, None) => Err(QueryError::NoSuchJob { job: name.to_owned(), jobs }),
        _ => Err(QueryError::Several { jobs: named, silent: None }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;

    use rustix::net::{bind, listen};

    use super::*;
    use crate::run::query::why::tests::view;

    const SOCKETS: &str = "Num       RefCount Protocol Flags    Type St Inode Path\n\
        0000: 00000002 00000000 00010000 0001 01 100 @rma-run/7/4711/ab\n\
        0000: 00000002 00000000 00010000 0001 01 102 @rma-run/8/4712/cd\n\
        0000: 00000003 00000000 00000000 0001 03 101 @rma-run/7/4711/ab\n\
        0000: 00000002 00000000 00010000 0001 01 103 @rma-run/7/12/ef\n\
        0000: 00000002 00000000 00010000 0001 01 104 /run/rma-run/7/1/ab\n\
        0000: 00000002 00000000 00010000 0001 01 105 @rma-run/x/1/ab\n\
        0000: 00000002 00000000 00010000 0001 01 106\n";

    /// Longer than anything here takes.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn launchers_are_found_by_the_names_of_their_sockets() {
        let of = |user| {
            let found = launchers(SOCKETS, user).into_iter();
            found.map(|found| (found.user, found.launcher)).collect::<Vec<_>>()
        };
        assert_eq!(of(7), [(7, 12), (7, 4711)]);
        assert_eq!(of(8), [(8, 4712)]);
        assert_eq!(of(9), []);
        assert_eq!(of(0), [(7, 12), (7, 4711), (8, 4712)]);
    }

    /// Listens as launcher 77 of this user would, which [`view`] is of.
    fn listens(test: &str, backlog: i32) -> (Found, OwnedFd) {
        let name = format!("rma-test/{}/{test}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&socket, &address).unwrap();
        listen(&socket, backlog).unwrap();
        (Found { user: geteuid().as_raw(), launcher: 77, socket: name }, socket)
    }

    /// What comes of a question that is answered so.
    fn answered(test: &str, patience: Duration, answer: impl FnOnce(UnixStream) + Send) -> Reply {
        let (found, socket) = listens(test, 8);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (stream, _) = UnixListener::from(socket).accept().unwrap();
                let query: Query = wire::read(&stream, FRAME_MAX).unwrap();
                assert_eq!(query.version, wire::VERSION);
                answer(stream);
            });
            query(&found, Instant::now() + patience).unwrap()
        })
    }

    #[track_caller]
    fn assert_failed(reply: &Reply, why: &str) {
        let Reply::Failed(error) = reply else { panic!("{reply:?}") };
        assert!(error.to_string().contains(why), "{error}");
    }

    #[test]
    fn an_answer_is_believed_if_it_is_about_a_job_of_the_launcher() {
        let sends = |test, view| {
            let frame = wire::encode(&Answer::View { view }).unwrap();
            answered(test, LONG, move |mut to| to.write_all(&frame).unwrap())
        };
        assert!(matches!(sends("right", view()), Reply::Job(got) if got == view()));
        let why = "not about a job of its own";
        assert_failed(&sends("other", JobView { launcher: 78, ..view() }), why);
        assert_failed(&sends("few", JobView { ranks: view().ranks[..3].into(), ..view() }), why);
    }

    /// The time is that of the whole answer.
    #[test]
    fn an_answer_that_trickles_in_is_not_waited_for() {
        let trickle = |mut to: UnixStream| {
            let mut frame = vec![0; 4 + FRAME_MAX];
            frame[..4].copy_from_slice(&(FRAME_MAX as u32).to_le_bytes());
            // Until the caller has enough.
            let _ = frame.iter().try_for_each(|byte| to.write_all(&[*byte]));
        };
        let reply = answered("trickle", Duration::from_millis(50), trickle);
        assert_failed(&reply, "does not answer: no answer within 5s");
    }

    #[test]
    fn a_launcher_that_turns_a_caller_away_is_asked_again() {
        let (found, socket) = listens("away", 8);
        thread::scope(|scope| {
            scope.spawn(|| {
                let listener = UnixListener::from(socket);
                for _ in 0..3 {
                    drop(listener.accept().unwrap());
                }
                let (stream, _) = listener.accept().unwrap();
                let _: Query = wire::read(&stream, FRAME_MAX).unwrap();
                wire::write(&stream, &Answer::View { view: view() }).unwrap();
            });
            let reply = query(&found, Instant::now() + LONG);
            assert!(matches!(&reply, Some(Reply::Job(got)) if *got == view()), "{reply:?}");
        });
        // It is gone.
        let reply = query(&found, Instant::now() + LONG);
        assert!(reply.is_none(), "{reply:?}");
    }

    #[test]
    fn a_launcher_that_ends_while_it_is_asked_is_none() {
        let (found, socket) = listens("ends", 8);
        thread::scope(|scope| {
            let asked = scope.spawn(|| query(&found, Instant::now() + LONG));
            let listener = UnixListener::from(socket);
            let caller = listener.accept().unwrap();
            drop(listener);
            drop(caller);
            assert!(asked.join().unwrap().is_none());
        });
    }

    #[test]
    fn a_launcher_that_lets_too_many_wait_is_not_waited_for() {
        let (found, _socket) = listens("full", 0);
        let waits: Vec<_> = std::iter::from_fn(|| connected(&found.socket).ok()).collect();
        assert!(!waits.is_empty());
        let reply = query(&found, Instant::now() + LONG).unwrap();
        assert!(matches!(reply, Reply::Full(QueryError::Silent { launcher: 77, .. })), "{reply:?}");
    }

    #[test]
    fn another_users_process_is_not_asked() {
        let (mut found, _socket) = listens("other-user", 8);
        found.user = geteuid().as_raw() + 1;
        let reply = query(&found, Instant::now());
        // What the superuser runs is believed.
        assert_eq!(reply.is_some(), geteuid().is_root());
    }

    #[test]
    fn all_are_asked_at_the_same_time() {
        let all: Vec<_> = (0..3 * AT_A_TIME).map(|at| listens(&format!("all-{at}"), 8)).collect();
        let found: Vec<_> = all.iter().map(|(found, _)| found.clone()).collect();
        let replies = query_all(&found, Duration::ZERO);
        assert_eq!(replies.len(), found.len());
        replies.iter().for_each(|reply| assert_failed(reply, "process 77 of rma-run"));
    }

    fn silent() -> QueryError {
        QueryError::Silent { launcher: 5, source: io::Error::other("stopped") }
    }

    fn named(name: &str, launcher: u32) -> Reply {
        Reply::Job(JobView { name: Some(name.to_owned()), launcher, ..view() })
    }

    #[test]
    fn a_job_is_looked_for_by_its_name() {
        let of = |name, replies| called(name, replies);
        let both = || vec![named("b", 2), named("a", 1), Reply::Failed(silent())];
        assert_eq!(of("a", both()).unwrap().launcher, 1);
        let twice = of("a", vec![named("a", 2), named("b", 3), named("a", 1)]);
        let Err(QueryError::Several { jobs, .. }) = twice else { panic!("{twice:?}") };
        assert_eq!(jobs.iter().map(|view| view.launcher).collect::<Vec<_>>(), [1, 2]);
        // The one that does not answer may be it.
        assert!(matches!(of("c", both()), Err(QueryError::Silent { launcher: 5, .. })));
        let full = of("c", vec![Reply::Full(silent())]);
        assert!(matches!(full, Err(QueryError::Silent { launcher: 5, .. })));
        // It is not: the process was asked before.
        assert!(
            matches!(of("6", both()), Err(QueryError::NoSuchJob { jobs, .. }) if jobs.len() == 2)
        );
        assert!(matches!(of("c", vec![named("a", 1)]), Err(QueryError::NoSuchJob { .. })));
    }

    #[test]
    fn the_only_job_needs_no_name() {
        assert!(matches!(only(vec![]), Err(QueryError::NoJob)));
        assert!(matches!(only(vec![Reply::Failed(silent())]), Err(QueryError::Silent { .. })));
        assert!(matches!(only(vec![Reply::Full(silent())]), Err(QueryError::Silent { .. })));
        // A launcher that lets too many wait, perhaps another user's, does not hide it.
        assert_eq!(only(vec![Reply::Full(silent()), named("a", 1)]).unwrap().launcher, 1);
        let listed = [
            (Reply::Failed(silent()), "process 5 of rma-run does not answer"),
            (named("b", 2), "job 2 (b)"),
        ];
        for (other, line) in listed {
            let several = only(vec![other, named("a", 1)]).unwrap_err();
            assert!(matches!(several, QueryError::Several { .. }), "{several:?}");
            let text = several.to_string();
            assert!(
                text.contains("\n  job 1 (a)") && text.contains(&format!("\n  {line}")),
                "{text}"
            );
        }
    }
}
