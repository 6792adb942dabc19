//! Servers of PMI that do not do what they should: a rank that they have started says why it cannot
//! be one, soon and in little memory.

mod support;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use support::*;

/// What a server says, until the rank hangs up.
enum Words {
    /// That, and then its side of the connection ends.
    Once(Vec<u8>),
    /// That, again and again.
    ForEver(Vec<u8>),
}

impl Words {
    fn say<S: Read + Write>(self, mut to: S, end: impl FnOnce(&S, Shutdown) -> io::Result<()>) {
        match self {
            Words::ForEver(words) => while to.write_all(&words).is_ok() {},
            Words::Once(words) => {
                // A rank that has heard enough is gone.
                let said = to.write_all(&words).and_then(|()| end(&to, Shutdown::Write));
                let _ = said.and_then(|()| io::copy(&mut to, &mut io::sink()));
            }
        }
    }
}

/// A rank in little memory: it is refused where a server has it keep all that is said.
fn rank(variables: &[(&str, String)]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 600000 && exec \"$0\"", &rank_program()]);
    command.envs(variables.iter().map(|(name, value)| (*name, value)));
    command.stdin(Stdio::null()).output().unwrap()
}

/// A rank behind a port, whose server says that.
fn behind_port(words: Words) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = move || words.say(listener.accept().unwrap().0, TcpStream::shutdown);
    let server = std::thread::spawn(serve);
    let output = rank(&[("PMI_PORT", address), ("PMI_ID", "1".into())]);
    server.join().unwrap();
    output
}

/// Rank 1 of 2 at a descriptor, of PMI-2 if it has a name of the job.
fn at_descriptor(words: Words, is_two: bool) -> Output {
    let (ours, theirs) = UnixStream::pair().unwrap();
    fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
    let mut variables = vec![
        ("PMI_FD", theirs.as_raw_fd().to_string()),
        ("PMI_RANK", "1".to_owned()),
        ("PMI_SIZE", "2".to_owned()),
    ];
    if is_two {
        variables.push(("PMI_JOBID", "job".to_owned()));
    }
    let server = std::thread::spawn(move || words.say(ours, UnixStream::shutdown));
    let output = rank(&variables);
    drop(theirs);
    server.join().unwrap();
    output
}

#[track_caller]
fn refused(output: &Output, why: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(9), "{why}: {}{text}", stdout(output));
    assert!(text.contains("PMI_") && text.contains(why), "{why}: {text}");
    assert!(text.len() < 1000, "{text}");
}

const PORT: &str = "cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=1\ncmd=set debug=0\n";
const ONE: &str = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n\
                   cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n\
                   cmd=my_kvsname kvsname=k\n";
const TWO: &str = "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n";

fn once(words: &str) -> Words {
    Words::Once(words.as_bytes().to_vec())
}

#[test]
fn a_port_that_speaks_no_pmi() {
    for (words, why) in [
        ("", "hung up"),
        ("\n", "no message"),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "no message"),
        ("cmd=initack rc=0\ncmd=set size=-4\n", "size"),
        ("cmd=initack rc=0\ncmd=set size=99999999999\n", "size"),
        ("cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=-1\n", "rank"),
        ("cmd=initack rc=1\n", "initack failed"),
        (PORT, "hung up"),
    ] {
        refused(&behind_port(once(words)), why);
    }
    let words = format!("{PORT}{ONE}").replace("set rank=1", "set rank=4");
    refused(&behind_port(once(&words)), "rank 4 of 4");
    for endless in [&b"x"[..], b"\xff\xfe", b"cmd=initack ", &[0; 4096]] {
        refused(&behind_port(Words::ForEver(endless.to_vec())), "has no end");
    }
    refused(&behind_port(Words::ForEver(b"cmd=initack\n".to_vec())), "came instead of");
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = rank(&[("PMI_PORT", unused.to_string()), ("PMI_ID", "1".into())]);
    refused(&output, "refused");
}

#[test]
fn a_descriptor_that_speaks_no_pmi_1() {
    let many = "cmd=barrier_out\n".repeat(9);
    for (words, why) in [
        ("", "hung up"),
        ("cmd=response_to_init rc=-1\n", "failed with"),
        ("cmd=response_to_init pmi_version=2 rc=0\n", "no PMI-1"),
        (&ONE.replace("vallen_max=1024", "vallen_max=-1"), "vallen_max"),
        (&ONE.replace("vallen_max=1024", "vallen_max=8"), "hung up"),
        (ONE, "hung up"),
        (&format!("{ONE}cmd=barrier_out\ncmd=get_result rc=1 msg=none\n"), "get_result failed"),
        (&format!("{ONE}cmd=barrier_out\ncmd=get_result rc=0 value=beef\n"), "another version"),
        (&format!("{ONE}{many}"), "came instead of"),
    ] {
        refused(&at_descriptor(once(words), false), why);
    }
    refused(&at_descriptor(Words::ForEver(vec![b' '; 999]), false), "has no end");
}

#[test]
fn a_descriptor_that_speaks_no_pmi_2() {
    let frame = |body: &str| format!("{TWO}{:>6}{body}", body.len());
    let begun = |fields: &str| frame(&format!("cmd=fullinit-response;rc=0;{fields}appnum=0;"));
    for (words, why) in [
        (TWO.to_owned(), "hung up"),
        (format!("{TWO}   "), "hung up"),
        (format!("{TWO}     9cmd=a;"), "hung up"),
        (format!("{TWO}-00009cmd=a;"), "no length"),
        (format!("{TWO}     0cmd=a;"), "0 bytes"),
        (format!("{TWO}999999cmd=a;"), "999999 bytes"),
        (format!("{TWO}     3cmd=a;"), "no value"),
        (frame("cmd=fullinit-response;rc=14;errmsg=no;"), "failed with"),
        (frame("cmd=kvs-get-response;rc=0;"), "came instead of"),
        (begun("rank=1;"), "size"),
        (begun("rank=1;size=-2;"), "size"),
        (begun("rank=-1;size=2;"), "rank"),
        (begun("rank=0;size=2;") + "    37cmd=job-getid-response;rc=0;jobid=j1;", "0 of 2"),
        (begun("rank=1;size=3;") + "    37cmd=job-getid-response;rc=0;jobid=j1;", "1 of 3"),
    ] {
        refused(&at_descriptor(once(&words), true), why);
    }
    refused(&at_descriptor(Words::ForEver(vec![b'9'; 999]), true), "has no end");
}
