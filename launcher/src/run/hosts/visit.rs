//! Looking at hosts before there is a job: a remote shell starts `rma-run agent doctor` there, as
//! it would start an agent. What is said goes over its standard input and output, a frame each.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, kill_process_group, pidfd_open,
};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::bootstrap;
use super::super::doctor::{self, Asked, Finding, Visit, Visits};
use super::super::driver::Input;
use super::super::lines::{Tail, last_lines};
use super::super::machine::ENDING;
use super::super::output::lock;
use super::super::report::nonzero;
use super::super::signals;
use super::super::spawn::watch;
use super::super::stamp::now;
use super::link::{self, PARTING, ended, explain, greeting, status};
use super::list::HostPart;
use super::remote::{Remote, shown};
use super::voice::complain;
use crate::codec::wire_enum;
use crate::wire;

/// The word behind `agent` that asks for it.
pub(in super::super) const DOCTOR: &str = "doctor";
/// First line of what answers there.
const GREETING: &str = "rma-run agent doctor 1";
/// Hosts that are looked at at a time.
const AT_A_TIME: usize = 64;
/// Looks at the clock of a host, of which the quickest counts.
const LOOKS: u32 = 5;
/// A clock that is off by more is told of.
const OFF: Duration = Duration::from_secs(1);
/// Bytes of a frame at most.
const FRAME_MAX: usize = 1 << 20;

/// What a host is asked.
#[derive(Debug, PartialEq)]
enum Question {
    /// What time it is.
    Time,
    /// What it has for such a job.
    Examine { asked: Asked },
}

/// Its answer.
#[derive(Debug, PartialEq)]
enum Answer {
    /// Since 1970.
    Time {
        now: Duration,
    },
    Findings {
        findings: Vec<Finding>,
    },
}

wire_enum!(Question { 0 = Time {}, 1 = Examine { asked: asked } });
wire_enum!(Answer { 0 = Time { now: now }, 1 = Findings { findings: findings } });

/// Answers what stands at the other end of standard input and output; what to exit with.
pub(in super::super) fn answer() -> u8 {
    if rustix::termios::isatty(rustix::stdio::stdin()) {
        return complain("this is started by rma-run doctor --hosts, which speaks with it");
    }
    let greeted = io::stdout().write_all(format!("{GREETING}\n").as_bytes());
    let mut said = greeted.and_then(|()| io::stdout().flush());
    while said.is_ok() {
        let answer = match wire::read(io::stdin().lock(), FRAME_MAX) {
            Ok(Question::Time) => Answer::Time { now: now() },
            Ok(Question::Examine { asked }) => {
                Answer::Findings { findings: doctor::examine_for(&asked) }
            }
            // Nothing more is asked.
            Err(error) if wire::is_end(&error) => return 0,
            Err(error) => return complain(&format!("the doctor cannot be understood: {error}")),
        };
        said = wire::write(io::stdout(), &answer).and_then(|()| io::stdout().flush());
    }
    // The doctor is gone.
    1
}

/// Looks at hosts, and takes so long at most for each; a signal that asks for the end is what to
/// exit with.
pub(in super::super) fn visit(
    remote: &Remote,
    patience: Duration,
) -> io::Result<Result<Visits, u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let agent = std::env::current_exe()?;
    runtime.block_on(async {
        let (sender, mut inputs) = unbounded_channel();
        signals::listen(&sender)?;
        let all = all(remote, agent, patience);
        tokio::pin!(all);
        loop {
            tokio::select! {
                hosts = &mut all => return Ok(Ok(Visits::new(doctor::examine_launcher(), hosts))),
                Some(input) = inputs.recv() => match input {
                    Input::Signal(signal) if ENDING.contains(&signal) => {
                        return Ok(Err(nonzero(128 + signal.as_raw())));
                    }
                    // Fails only where it may not signal itself.
                    Input::Signal(Signal::TSTP) => _ = kill_process(getpid(), Signal::STOP),
                    _ => {}
                },
            }
        }
    })
}

async fn all(remote: &Remote, agent: PathBuf, patience: Duration) -> Vec<Visit> {
    let (permits, across) = (Arc::new(Semaphore::new(AT_A_TIME)), remote.hosts.len() > 1);
    let fabric = doctor::fabric_variables();
    let mut visits = JoinSet::new();
    for (at, part) in remote.hosts.iter().enumerate() {
        let HostPart { name, ranks, .. } = part.clone();
        let command = remote.command(&name, &agent, &format!("agent {DOCTOR}"), false);
        let permits = Arc::clone(&permits);
        let asked = Asked { ranks, across, fabric: fabric.clone() };
        visits.spawn(async move {
            // Fails when it is closed, which it never is.
            let _permit = permits.acquire_owned().await;
            let mut host = match Host::reach(command) {
                Ok(host) => host,
                Err(why) => return (at, Visit { host: name, outcome: Err(why) }),
            };
            let outcome = match timeout(patience, host.examine(asked)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(host.silent(patience)),
            };
            (at, Visit { host: name, outcome })
        });
    }
    let mut visits = visits.join_all().await;
    visits.sort_by_key(|(at, _)| *at);
    visits.into_iter().map(|(_, visit)| plain(visit)).collect()
}

/// A host, behind its remote shell.
struct Host {
    _shell: Shell,
    command: String,
    watched: AsyncFd<OwnedFd>,
    to: Option<Sender>,
    from: BufReader<Receiver>,
    /// What the remote shell complains of.
    complaints: JoinSet<()>,
    tail: Arc<Mutex<Tail>>,
    is_greeted: bool,
}

/// A remote shell, which leads a group. It is killed when this is dropped, with what it has started
/// here; what it has started elsewhere ends with its input.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        // Fails when the group has no process left. It is not reaped, so its number is its own.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

impl Host {
    fn reach(command: Vec<std::ffi::OsString>) -> Result<Host, String> {
        let failed = |error: io::Error| format!("{} cannot be started: {error}", shown(&command));
        let mut shell = Shell(link::start(&command).map_err(failed)?);
        let no_pipe = || failed(io::Error::other("no pipe"));
        let to = shell.0.stdin.take().ok_or_else(no_pipe)?;
        let from = shell.0.stdout.take().ok_or_else(no_pipe)?;
        let errors = shell.0.stderr.take().ok_or_else(no_pipe)?;
        let pidfd = pidfd_open(Pid::from_child(&shell.0), PidfdFlags::NONBLOCK);
        let watched = pidfd.map_err(io::Error::from).and_then(watch).map_err(failed)?;
        let to = Sender::from_owned_fd(to.into()).map_err(failed)?;
        let from = Receiver::from_owned_fd(from.into()).map_err(failed)?;
        let errors = Receiver::from_owned_fd(errors.into()).map_err(failed)?;
        let tail = Arc::new(Mutex::new(Tail::default()));
        let mut complaints = JoinSet::new();
        complaints.spawn(keep(errors, Arc::clone(&tail)));
        let (to, from) = (Some(to), BufReader::new(from));
        let command = shown(&command);
        Ok(Host { _shell: shell, command, watched, to, from, complaints, tail, is_greeted: false })
    }

    /// What it finds, and how its clock differs from that here.
    async fn examine(&mut self, asked: Asked) -> Result<Vec<Finding>, String> {
        let outcome = self.converse(asked).await;
        // Its end, which the other side notices.
        self.to = None;
        let _ = timeout(PARTING, ended(&self.watched)).await;
        match outcome {
            Ok(findings) => Ok(findings),
            Err(error) if wire::is_end(&error) => {
                let _ = timeout(PARTING, self.complaints.join_next()).await;
                let said = lock(&self.tail).text();
                Err(explain(&self.command, status(&self.watched), self.is_greeted, "", &said))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    async fn converse(&mut self, asked: Asked) -> io::Result<Vec<Finding>> {
        greeting(&mut self.from, GREETING).await?;
        self.is_greeted = true;
        let mut best: Option<Reading> = None;
        for _ in 0..LOOKS {
            let (sent, before) = (now(), Instant::now());
            let Answer::Time { now } = self.query(&Question::Time).await? else {
                return Err(io::Error::other("it was asked for the time, and told something else"));
            };
            let reading = Reading::new(sent, now, before.elapsed());
            if best.as_ref().is_none_or(|best| reading.within_us < best.within_us) {
                best = Some(reading);
            }
        }
        let Answer::Findings { mut findings } = self.query(&Question::Examine { asked }).await?
        else {
            return Err(io::Error::other("it was asked what it has, and told the time"));
        };
        findings.extend(best.map(|reading| reading.finding()));
        Ok(findings)
    }

    async fn query(&mut self, question: &Question) -> io::Result<Answer> {
        let Some(to) = &mut self.to else { return Err(io::ErrorKind::BrokenPipe.into()) };
        to.write_all(&wire::encode(question)?).await?;
        bootstrap::read(&mut self.from, FRAME_MAX).await
    }

    fn silent(&self, patience: Duration) -> String {
        let said = last_lines(&lock(&self.tail).text());
        let (command, patience) = (&self.command, patience.as_secs_f64());
        match self.is_greeted {
            true => format!("{command} has not told what it has in {patience} s (--timeout){said}"),
            false => format!("{command} has shown no agent in {patience} s (--timeout){said}"),
        }
    }
}

/// Leaves nothing in it that a terminal would obey: it is shown here, and comes from elsewhere. Why
/// a host was not reached may have several lines, with what its remote shell has printed.
fn plain(Visit { host, outcome }: Visit) -> Visit {
    let plain = |text: &str| text.replace(char::is_control, " ");
    let outcome = match outcome {
        Ok(mut findings) => {
            for Finding { topic, text, values, .. } in &mut findings {
                let values = values.iter_mut().flat_map(|(key, value)| [key, value]);
                [topic, text].into_iter().chain(values).for_each(|text| *text = plain(text));
            }
            Ok(findings)
        }
        Err(why) => Err(why.split('\n').map(plain).collect::<Vec<_>>().join("\n")),
    };
    Visit { host, outcome }
}

/// Keeps the end of what is printed there.
async fn keep(mut errors: impl AsyncRead + Unpin, tail: Arc<Mutex<Tail>>) {
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = errors.read(&mut piece).await {
        lock(&tail).push(&piece[..count]);
    }
}

/// How far the clock of a host is ahead of that here, in microseconds, give or take so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reading {
    offset_us: i64,
    within_us: u64,
}

impl Reading {
    /// Of a question that was sent at `sent`, and answered with `there` after so long.
    fn new(sent: Duration, there: Duration, took: Duration) -> Reading {
        let within = took / 2;
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let offset_us = micros(there).saturating_sub(micros(sent + within));
        Reading { offset_us, within_us: micros(within).unsigned_abs() + 1 }
    }

    fn finding(self) -> Finding {
        const TOPIC: &str = "time";
        let Reading { offset_us, within_us } = self;
        let ahead = if offset_us < 0 { "behind" } else { "ahead of" };
        let text = format!(
            "{}.{:06} s {ahead} here, give or take {}.{:06} s",
            offset_us.unsigned_abs() / 1_000_000,
            offset_us.unsigned_abs() % 1_000_000,
            within_us / 1_000_000,
            within_us % 1_000_000
        );
        let off = offset_us.unsigned_abs().saturating_sub(within_us);
        let is_off = u128::from(off) > OFF.as_micros();
        let finding = match is_off {
            true => doctor::poor(TOPIC, format!("{text}: have chrony or ntpd set the clocks")),
            false => doctor::good(TOPIC, text),
        };
        finding.with("offset_us", offset_us).with("within_us", within_us)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::doctor::Health;
    use super::*;

    #[test]
    fn a_clock_is_compared_in_the_middle_of_the_way() {
        let at = |ms: u64| Duration::from_secs(1_700_000_000) + Duration::from_millis(ms);
        let of = |there| Reading::new(at(0), there, Duration::from_millis(20));
        assert_eq!(of(at(10)), Reading { offset_us: 0, within_us: 10_001 });
        assert_eq!(of(at(510)).offset_us, 500_000);
        assert_eq!(of(at(0)).offset_us, -10_000);
        let near = of(at(1015)).finding();
        assert_eq!((near.health, near.value("offset_us")), (Health::Good, Some("1005000")));
        let far = of(at(3010)).finding();
        assert_eq!(far.health, Health::Poor);
        assert!(
            far.text.starts_with("3.000000 s ahead of here, give or take 0.010001 s"),
            "{far:?}"
        );
        let behind = Reading::new(at(3000), at(0), Duration::ZERO).finding();
        assert!(behind.text.starts_with("3.000000 s behind here"), "{behind:?}");
    }

    #[test]
    fn what_a_host_says_changes_no_terminal() {
        let odd = || "a\u{1b}]0;b\u{7}\u{9b}2J\r\nc".to_owned();
        let finding = Finding {
            topic: odd(),
            health: Health::Bad,
            text: odd(),
            values: vec![(odd(), odd())],
        };
        for (outcome, lines) in [(Ok(vec![finding]), 0), (Err(odd()), 1)] {
            let visit = plain(Visit { host: "h".to_owned(), outcome });
            let visits = Visits::new(Vec::new(), vec![visit]);
            let told = visits.text();
            let all = format!("{told}{}", visits.json());
            let odd: Vec<_> = all.matches(|c: char| c.is_control() && c != '\n').collect();
            assert!(odd.is_empty() && told.contains("a ]0;b  2J "), "{told:?}");
            let empty = Visit { host: "h".to_owned(), outcome: Err(String::new()) };
            let empty = Visits::new(Vec::new(), vec![empty]).text();
            assert_eq!(told.lines().count(), empty.lines().count() + lines, "{told:?}");
        }
    }

    #[test]
    fn questions_and_answers_travel() {
        let asked =
            Asked { ranks: 2, across: true, fabric: vec![(b"FI_X".into(), b"\xff".into())] };
        for question in [Question::Time, Question::Examine { asked }] {
            let frame = wire::encode(&question).unwrap();
            assert_eq!(wire::decode::<Question>(&frame[4..]).unwrap(), question);
        }
        let answer = Answer::Time { now: now() };
        let frame = wire::encode(&answer).unwrap();
        assert_eq!(wire::decode::<Answer>(&frame[4..]).unwrap(), answer);
    }
}
