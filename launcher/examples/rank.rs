//! The smallest rank: joins its job, exchanges a few bytes, leaves. Its first argument names
//! something to do wrong, which this crate's tests use.

use std::io::{BufRead, Write};
use std::process::exit;

use rma_launcher::{Client, Job, Start, StartError, detect};

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        exit(9);
    }
}

fn run() -> Result<(), StartError> {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let settings = match detect(&|name| std::env::var_os(name))? {
        Start::Launched(settings) => settings,
        Start::Managed(managed) => {
            let client = Client::join(&managed)?;
            let Job { rank, size, .. } = client.job();
            say(&format!("managed rank {rank} of {size}"));
            client.leave(false);
            return Ok(());
        }
        Start::Alone => {
            println!("alone");
            return Ok(());
        }
    };
    if mode == "never-join" && settings.rank() == 1 {
        return Ok(());
    }
    let client = Client::connect(&settings)?;
    let job = client.job().clone();
    match mode.as_str() {
        "job" => {
            say(&format!("cores {} explain {} wait {:?}", job.cores, job.explain, job.wait_timeout))
        }
        "join-twice" if job.rank == 0 => match Client::connect(&settings) {
            Err(StartError::Refused { why, .. }) => say(&format!("refused: {why}")),
            other => panic!("{other:?}"),
        },
        "never-leave" if job.rank == 1 => exit(0),
        "fail" if job.rank == 1 => {
            client.leave(true);
            // The others fail because of it, and may well be faster.
            std::thread::sleep(std::time::Duration::from_millis(100));
            exit(7);
        }
        "hang-after-failing" if job.rank == 1 => {
            client.leave(true);
            loop {
                std::thread::park();
            }
        }
        "wait" => wait_for_rank_0(&job),
        "miss" => {
            say(&format!("rank {} pid {} is up", job.rank, std::process::id()));
            if job.rank == 0 {
                loop {
                    std::thread::park();
                }
            }
            // Once the test writes there.
            std::fs::read(std::env::args().nth(2).expect("a pipe")).expect("a pipe");
            client.missed(0);
            client.leave(true);
            exit(1);
        }
        _ => {}
    }
    for round in 0..3u32 {
        exchange(&client, &job, round)?;
    }
    say(&format!("rank {} of {}", job.rank, job.size));
    client.leave(false);
    Ok(())
}

/// Ranks exchange only after a line was written to rank 0.
fn wait_for_rank_0(job: &Job) {
    let address = std::env::var(rma_launcher::BOOTSTRAP_VAR).unwrap_or_default();
    say(&format!("pid {} at {address}", std::process::id()));
    if job.rank == 0 {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).expect("standard input");
    }
}

fn exchange(client: &Client, job: &Job, round: u32) -> Result<(), StartError> {
    let mine = |rank: u32| format!("{rank} in {round}").repeat(rank as usize % 3).into_bytes();
    let all = client.all_gather(&mine(job.rank))?;
    let parts = all.into_iter().flat_map(|(count, part)| vec![part; count as usize]);
    assert!(parts.eq((0..job.size).map(mine)));
    Ok(())
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("standard output");
}
