//! Another process that counts what a thread of this one does, by stopping it at each step of it.
//!
//! The thread raises a signal that means nothing to a process that is not traced: the first ends
//! its free run, the second what is counted.
use crate::Result;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::{PTracer, set_ptracer};
use std::io::{BufRead, BufReader, Lines, StdinLock, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Ignored, if no process traces.
const MARK: Signal = Signal::SIGURG;
/// Asks this program to trace a thread.
const OPTION: &str = "--trace";

/// What is counted.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum What {
    /// Instructions outside the kernel; one that repeats itself is one.
    Steps,
    /// System calls.
    Calls,
    /// Instructions that let nothing overtake the stores before them.
    Fences,
}

impl What {
    const STEPS: &str = "steps";
    const CALLS: &str = "calls";
    const FENCES: &str = "fences";

    fn name(self) -> &'static str {
        match self {
            Self::Steps => Self::STEPS,
            Self::Calls => Self::CALLS,
            Self::Fences => Self::FENCES,
        }
    }
}

/// The process that traces the thread that started it.
pub(super) struct Tracer {
    child: Child,
    /// None once it is told to end.
    input: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Tracer {
    /// None where tracing is not permitted.
    pub(super) fn start() -> Option<Self> {
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        let mut command = Command::new(std::env::current_exe().ok()?);
        command.args([OPTION, &thread]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().ok()?;
        // Refused where no tracer has to be permitted; if it is needed, tracing fails without.
        _ = set_ptracer(PTracer::ProcessID(rustix::process::Pid::from_child(&child)));
        let input = child.stdin.take();
        let answers = BufReader::new(child.stdout.take()?).lines();
        let mut tracer = Self { child, input, answers };
        let is_there = tracer.say("begin").and_then(|()| tracer.answer());
        is_there.is_ok().then_some(tracer)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().ok_or("the tracer has ended")?;
        Ok(writeln!(input, "{line}")?)
    }

    fn answer(&mut self) -> Result<String> {
        Ok(self.answers.next().ok_or("the tracer has ended")??)
    }

    /// Does the work, and says what of it was counted, with some that comes with each count.
    pub(super) fn count(&mut self, what: What, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        self.say(what.name())?;
        raise(MARK)?;
        let done = work();
        raise(MARK)?;
        done?;
        let answer = self.answer()?;
        let count: u64 = answer.parse()?;
        // It stops at both ends of a call.
        Ok(if what == What::Calls { count / 2 } else { count })
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // It looks for the next question when the thread stops, finds none and ends.
        self.input = None;
        _ = raise(MARK);
        _ = self.child.wait();
    }
}

/// Traces a thread of the process that started this one, as it is asked to, until it ends.
pub(crate) fn serve(thread: i32) -> Result<()> {
    let thread = Pid::from_raw(thread);
    let mut questions = stdin().lines();
    questions.next().transpose()?;
    ptrace::seize(thread, Options::PTRACE_O_TRACESYSGOOD)?;
    println!("traced");
    loop {
        match wait(thread)? {
            WaitStatus::Stopped(_, MARK) => match question(&mut questions)? {
                Some(what) => match count(thread, what)? {
                    Some(count) => println!("{count}"),
                    None => return Ok(()),
                },
                None => return Ok(ptrace::detach(thread, None)?),
            },
            WaitStatus::Stopped(_, signal) => ptrace::cont(thread, signal)?,
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Ok(()),
            _ => ptrace::cont(thread, None)?,
        }
    }
}

fn wait(thread: Pid) -> Result<WaitStatus> {
    Ok(waitpid(thread, Some(WaitPidFlag::__WALL))?)
}

fn question(questions: &mut Lines<StdinLock<'_>>) -> Result<Option<What>> {
    match questions.next().transpose()?.as_deref() {
        None => Ok(None),
        Some(What::STEPS) => Ok(Some(What::Steps)),
        Some(What::CALLS) => Ok(Some(What::Calls)),
        Some(What::FENCES) => Ok(Some(What::Fences)),
        Some(other) => Err(format!("asked to count `{other}`").into()),
    }
}

/// Counts until the next mark, and lets the thread go; none if it has ended.
fn count(thread: Pid, what: What) -> Result<Option<u64>> {
    let (mut count, mut at, mut signal) = (0, None, None);
    loop {
        match what {
            What::Steps | What::Fences => ptrace::step(thread, signal.take())?,
            What::Calls => ptrace::syscall(thread, signal.take())?,
        }
        match wait(thread)? {
            WaitStatus::Stopped(_, MARK) => {
                ptrace::cont(thread, None)?;
                return Ok(Some(count));
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                let next = next_instruction(thread)?;
                let is_new = next.is_none() || next != at;
                let is_counted = what == What::Steps || is_fence(thread, next)?;
                count += u64::from(is_new && is_counted);
                at = next;
            }
            WaitStatus::PtraceSyscall(_) => count += 1,
            WaitStatus::Stopped(_, other) => signal = Some(other),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Ok(None),
            _ => {}
        }
    }
}

/// Where the thread is: a repeated string instruction stays there for several steps.
#[cfg(target_arch = "x86_64")]
fn next_instruction(thread: Pid) -> Result<Option<u64>> {
    Ok(Some(ptrace::getregs(thread)?.rip))
}

/// No instruction repeats itself.
#[cfg(not(target_arch = "x86_64"))]
fn next_instruction(_thread: Pid) -> Result<Option<u64>> {
    Ok(None)
}

/// Whether the instruction at `at` is one.
fn is_fence(thread: Pid, at: Option<u64>) -> Result<bool> {
    let Some(at) = at else { return Ok(false) };
    let code = ptrace::read(thread, at as ptrace::AddressType)?;
    Ok(is_fence_of_x86(code.to_le_bytes()))
}

/// `mfence`, an instruction with a `lock` prefix, or `xchg` with memory.
fn is_fence_of_x86(code: [u8; 8]) -> bool {
    const LOCK: u8 = 0xf0;
    let is_prefix =
        |byte: &&u8| matches!(**byte, 0x66 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65);
    let code = &code[code.iter().take_while(is_prefix).count()..];
    let opcode = match code {
        [LOCK, ..] => return true,
        [0x40..=0x4f, opcode @ ..] => opcode,
        opcode => opcode,
    };
    match opcode {
        [0x0f, 0xae, 0xf0, ..] => true,
        [0x86 | 0x87, operands, ..] => *operands < 0xc0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_fence_of_x86;

    #[test]
    fn fences_are_told_from_others() {
        let padded = |code: &[u8]| {
            let mut bytes = [0x90; 8];
            bytes[..code.len()].copy_from_slice(code);
            is_fence_of_x86(bytes)
        };
        assert!(padded(&[0x0f, 0xae, 0xf0]), "mfence");
        assert!(padded(&[0xf0, 0x83, 0x4c, 0x24, 0xc0, 0x00]), "lock or [rsp - 64], 0");
        assert!(padded(&[0x64, 0xf0, 0x48, 0x0f, 0xc1, 0x07]), "lock xadd fs:[rdi], rax");
        assert!(padded(&[0x48, 0x87, 0x07]), "xchg [rdi], rax");
        assert!(!padded(&[0x48, 0x87, 0xc7]), "xchg rdi, rax");
        assert!(!padded(&[0x0f, 0xae, 0xf8]), "sfence");
        assert!(!padded(&[0x48, 0x89, 0xf0]), "mov rax, rsi");
    }
}
