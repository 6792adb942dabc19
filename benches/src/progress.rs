//! How far a long run is, on standard error: one line that is written over on a terminal.
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// A run of several jobs.
pub(crate) struct Progress {
    start: Instant,
    done: usize,
    jobs: usize,
}

impl Progress {
    pub(crate) fn new(jobs: usize) -> Self {
        Self { start: Instant::now(), done: 0, jobs }
    }

    /// Says which job begins.
    pub(crate) fn next(&mut self, job: &str) {
        let line = line(self.done, self.jobs, self.start.elapsed(), job);
        if stderr().is_terminal() {
            eprint!("\r\x1b[K{line}");
            let _ = stderr().flush();
        } else {
            eprintln!("{line}");
        }
        self.done += 1;
    }

    /// All jobs are over.
    pub(crate) fn end(&self) {
        if stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}

fn line(done: usize, jobs: usize, took: Duration, job: &str) -> String {
    let took = took.as_secs();
    // Jobs differ in length: no more than a first idea, once some are over.
    let left = match done {
        0..2 => String::new(),
        _ => format!(", about {} s left", took * (jobs - done) as u64 / done as u64),
    };
    format!("[{} of {jobs}] {job} ({took} s so far{left})", done + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_guessed_from_what_is_done() {
        let took = Duration::from_secs(10);
        assert_eq!(line(0, 4, Duration::ZERO, "a"), "[1 of 4] a (0 s so far)");
        assert_eq!(line(2, 4, took, "b"), "[3 of 4] b (10 s so far, about 10 s left)");
    }
}
