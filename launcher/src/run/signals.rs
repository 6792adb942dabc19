//! The launcher's own signals.

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedSender;

use super::driver::Input;
use super::spawn;

/// Passed on to every rank.
const FORWARDED: [Signal; 8] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::TSTP,
];

/// Delivers this process' signals to `inputs` from now on, except those that its parent
/// wanted ignored (`nohup`, a shell's background job): ranks inherit that. A mask is inherited by
/// accident only, and undone.
pub(super) fn listen(inputs: &UnboundedSender<Input>) -> std::io::Result<()> {
    let ignored = ignored();
    for kind in FORWARDED {
        let number = kind.as_raw();
        if ignored & (1 << (number - 1)) != 0 {
            continue;
        }
        let mut stream = signal(SignalKind::from_raw(number))?;
        let inputs = inputs.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if inputs.send(Input::Signal(kind)).is_err() {
                    return;
                }
            }
        });
    }
    spawn::unblock(&FORWARDED);
    spawn::unblock(&[Signal::CHILD]);
    let mut child = signal(SignalKind::child())?;
    let inputs = inputs.clone();
    tokio::spawn(async move {
        while child.recv().await.is_some() {
            if inputs.send(Input::ChildEnded).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Signals that this process ignores, bit n-1 for signal n; none if that cannot be told.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// A signal's name, such as `SIGSEGV`.
pub(super) fn name(number: i32) -> String {
    const NAMES: [(Signal, &str); 24] = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::TSTP, "SIGTSTP"),
        (Signal::TTIN, "SIGTTIN"),
        (Signal::TTOU, "SIGTTOU"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::VTALARM, "SIGVTALRM"),
        (Signal::PROF, "SIGPROF"),
        (Signal::IO, "SIGIO"),
        (Signal::SYS, "SIGSYS"),
    ];
    let known = NAMES.iter().find(|(signal, _)| signal.as_raw() == number);
    known.map_or_else(|| format!("SIG{number}"), |(_, name)| (*name).to_owned())
}
