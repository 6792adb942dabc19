//! `rma-run join`: this host joins a job whose launcher waits for it, and is its agent here.

use std::io::{self, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::super::bootstrap;
use super::super::driver::{Input, until};
use super::super::look;
use super::super::machine::ENDING;
use super::super::report::nonzero;
use super::super::signals;
use super::agent::{Ends, Whereabouts, serve};
use super::hello::{self, Challenge, Hello, HostSecret, MAGIC, Refusal, Reply, Welcome};
use super::talk::VERSION;
use crate::notes::Notes;
use crate::seal::{self, Opener, Sealer, Side, With};
use crate::wire::{self, HELLO_MAX, Proof, REPLY_MAX};

/// How long one address may take to answer, and a launcher to end its hello.
const ANSWERED_IN: Duration = Duration::from_secs(10);
/// What a process exits with that was called in a wrong way.
const MISUSED: u8 = 2;
/// From one try to the next.
const PAUSE: Duration = Duration::from_millis(250);

/// A job that a host joins.
#[derive(Debug, Clone)]
pub struct Join {
    /// Where its launcher waits, as HOST:PORT.
    pub launcher: String,
    /// The secret of both.
    pub secret: HostSecret,
    /// What this host is called, if it is not the name of the machine.
    pub name: Option<String>,
    /// Ranks that it takes; as many as others that do not say so, if it does not say so.
    pub slots: Option<u32>,
    /// Where ranks of other hosts reach those of this one, if it is not by the address of the
    /// connection to the launcher.
    pub address: Option<IpAddr>,
    /// How long it is tried.
    pub timeout: Duration,
}

/// Joins a job, and starts its ranks of this host; returns what to exit with once it is over: 0 if
/// the launcher has ended it.
pub fn join(join: &Join) -> u8 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(joined(join));
            // This host does not wait for a name that is being looked up still.
            runtime.shutdown_background();
            code
        }
        Err(error) => complain(&format!("starting the event loop failed: {error}")),
    }
}

fn complain(why: &str) -> u8 {
    // With nowhere to complain to, the exit status must do.
    let _ = writeln!(io::stderr(), "rma-run join: {why}");
    1
}

async fn joined(join: &Join) -> u8 {
    let name = join.name.clone().unwrap_or_else(look::host);
    if !hello::is_name(&name) {
        let own = if join.name.is_none() { ", which this machine is called," } else { "" };
        complain(&format!("{name:?}{own} is no name of a host: {}", Refusal::Name));
        return MISUSED;
    }
    let (sender, mut inputs) = unbounded_channel();
    if let Err(error) = signals::listen(&sender) {
        return complain(&format!("watching for signals failed: {error}"));
    }
    let (stream, welcome, seals) = match entered(join, &name, &mut inputs).await {
        Ok(entered) => entered,
        Err(code) => return code,
    };
    complain(&format!(
        "joined the job of {} as host {}, and wait for the others",
        join.launcher, welcome.name
    ));
    let own = stream.local_addr().map(|address| address.ip()).ok();
    let own = own.filter(|address| !address.is_loopback());
    let address = join.address.or(own).map(|address| address.to_string());
    match ends(stream, seals, welcome.silence, Whereabouts::Known(address)) {
        Ok(ends) => serve(ends, (sender, inputs)).await,
        Err(error) => complain(&format!("the connection cannot be used: {error}")),
    }
}

fn ends(
    stream: TcpStream,
    seals: (Sealer, Opener),
    silence: Duration,
    address: Whereabouts,
) -> io::Result<Ends> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(Ends {
        from: Box::new(stream.try_clone()?),
        to: Box::new(stream),
        seals,
        has_joined: true,
        patience: silence,
        address,
    })
}

type Entered = (TcpStream, Welcome, (Sealer, Opener));

/// Tries until it is let in; else what to exit with.
async fn entered(
    join: &Join,
    name: &str,
    inputs: &mut UnboundedReceiver<Input>,
) -> Result<Entered, u8> {
    let deadline = Some(Instant::now() + join.timeout);
    let (mut last, mut told) = (String::from("nobody answers"), Notes::default());
    loop {
        tokio::select! {
            entered = attempt(join, name) => match entered {
                Ok(entered) => return Ok(entered),
                // Whatever it is, any host on the network can have said it.
                Err(why) => last = why,
            },
            () = until(deadline) => return Err(in_vain(join, &last)),
            code = ended(inputs) => return Err(code),
        }
        let within = join.timeout.as_secs_f64();
        if told.is_new(&last) {
            complain(&format!("{last}; it is tried again for {within} s in all (--timeout)"));
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = until(deadline) => return Err(in_vain(join, &last)),
            code = ended(inputs) => return Err(code),
        }
    }
}

fn in_vain(join: &Join, last: &str) -> u8 {
    let within = join.timeout.as_secs_f64();
    complain(&format!(
        "no job could be joined within {within} s (--timeout): {last}; is `rma-run serve` waiting \
         for hosts there?"
    ))
}

/// Waits for a signal that asks for the end; what to exit with.
async fn ended(inputs: &mut UnboundedReceiver<Input>) -> u8 {
    while let Some(input) = inputs.recv().await {
        if let Input::Signal(signal) = input
            && ENDING.contains(&signal)
        {
            complain(&format!("got {}: no job was joined", signals::name(signal.as_raw())));
            return nonzero(128 + signal.as_raw());
        }
    }
    std::future::pending().await
}

/// Tries once; else why it is not let in.
async fn attempt(join: &Join, name: &str) -> Result<Entered, String> {
    let to = &join.launcher;
    let failed = |error: io::Error| format!("{to}: {error}");
    let late = |_| format!("{to}: no answer in {} s", ANSWERED_IN.as_secs());
    let found = tokio::net::lookup_host(to.as_str()).await.map_err(failed)?;
    let mut last = format!("{to} has no address");
    for address in found {
        let connected = tokio::time::timeout(ANSWERED_IN, TcpStream::connect(address)).await;
        let stream = match connected.map_err(late) {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                last = failed(error);
                continue;
            }
            Err(why) => {
                last = why;
                continue;
            }
        };
        return tokio::time::timeout(ANSWERED_IN, enter(join, name, stream)).await.map_err(late)?;
    }
    Err(last)
}

async fn enter(join: &Join, name: &str, mut stream: TcpStream) -> Result<Entered, String> {
    let to = &join.launcher;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => {
            format!("what listens at {to} is no `rma-run serve`: {error}")
        }
        _ => format!("{to} has closed the connection: {error}"),
    };
    stream.set_nodelay(true).map_err(failed)?;
    let challenge: Challenge = bootstrap::read(&mut stream, HELLO_MAX).await.map_err(failed)?;
    if challenge.magic != MAGIC {
        return Err(format!("what listens at {to} is no `rma-run serve`"));
    }
    let refused = |why: Refusal| format!("{to} refuses this host: {why}");
    if challenge.version != VERSION {
        return Err(refused(Refusal::Version { launcher: challenge.version }));
    }
    let nonce = wire::random().map_err(failed)?;
    let name = name.to_owned();
    let mut hello = Hello { version: VERSION, name, slots: join.slots, nonce, mac: [0; 32] };
    hello.mac = hello::host_mac(&join.secret, &challenge.nonce, &hello).0;
    bootstrap::write(&mut stream, &hello).await.map_err(failed)?;
    let welcome = match bootstrap::read(&mut stream, REPLY_MAX).await.map_err(failed)? {
        Reply::Refused(why) => return Err(refused(why)),
        Reply::Welcome(welcome) => welcome,
    };
    let proof = hello::launcher_mac(&join.secret, &challenge.nonce, &nonce, &welcome);
    if proof != Proof(welcome.mac) {
        return Err(format!(
            "what listens at {to} does not know the secret, so it is not the launcher of this job"
        ));
    }
    let seals = seal::pair(&join.secret.0.0, With::Host, [&challenge.nonce, &nonce], Side::Other);
    Ok((stream, welcome, seals))
}
