//! A connection to a server of PMI-1 or PMI-2.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::message::{self, LONGEST, Message, PREFIX, frame, line};
use super::places::{self, MAPPING};

/// How long a server may take for an answer that waits for no other rank.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Which language is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// PMI-1.
    One,
    /// PMI-2.
    Two,
}

/// The stream to the server.
#[derive(Debug)]
pub(super) enum Stream {
    /// That this process inherited.
    Inherited(UnixStream),
    /// To a port.
    Port(TcpStream),
}

impl Stream {
    fn limit(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Inherited(stream) => stream.set_read_timeout(limit),
            Stream::Port(stream) => stream.set_read_timeout(limit),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Inherited(stream) => stream.read(bytes),
            Stream::Port(stream) => stream.read(bytes),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Inherited(stream) => stream.write_all(bytes),
            Stream::Port(stream) => stream.write_all(bytes),
        }
    }
}

/// A session with a server.
#[derive(Debug)]
pub(super) struct Lines {
    stream: Stream,
    dialect: Dialect,
    /// What was read, and not yet understood.
    input: Vec<u8>,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// The name of the space of keys (PMI-1), or of the job (PMI-2).
    space: String,
    /// Bytes of a value at most.
    longest: usize,
    patience: Duration,
    /// When the answer that is read now has to be here, unless it waits for other ranks.
    until: Option<Instant>,
}

/// What failed, and how.
type Answer<T> = Result<T, String>;

impl Lines {
    /// Begins a session. Behind a port, `id` names this process; else rank and size are known.
    /// An answer takes no longer than `patience`, unless it waits for other ranks.
    pub(super) fn open(
        stream: Stream,
        dialect: Dialect,
        place: Option<(u32, u32)>,
        id: &str,
        patience: Duration,
    ) -> Answer<Lines> {
        let (rank, size) = place.unwrap_or_default();
        let mut lines = Lines {
            stream,
            dialect,
            input: Vec::new(),
            rank,
            size,
            space: String::new(),
            longest: LONGEST,
            patience,
            until: Some(Instant::now() + patience),
        };
        if place.is_none() {
            lines.introduce(id)?;
        }
        let (version, subversion) = match dialect {
            Dialect::One => ("1", "1"),
            Dialect::Two => ("2", "0"),
        };
        let versions = [("pmi_version", version), ("pmi_subversion", subversion)];
        lines.write(&line("init", &versions))?;
        let answer = lines.read_line()?.answering("response_to_init")?;
        if answer.get("pmi_version").is_some_and(|theirs| theirs != version) {
            return Err(format!("the server speaks no PMI-{version}"));
        }
        match dialect {
            Dialect::One => lines.begin_one()?,
            Dialect::Two => lines.begin_two()?,
        }
        if let Some((rank, size)) = place
            && (rank, size) != (lines.rank, lines.size)
        {
            let (other, others) = (lines.rank, lines.size);
            return Err(format!(
                "the server says that this is rank {other} of {others}, and the environment \
                 {rank} of {size}"
            ));
        }
        if lines.rank >= lines.size {
            return Err(format!("rank {} of {} ranks", lines.rank, lines.size));
        }
        Ok(lines)
    }

    /// Says which process this is, and hears which rank that is.
    fn introduce(&mut self, id: &str) -> Answer<()> {
        self.write(&line("initack", &[("pmiid", id)]))?;
        self.read_line()?.answering("initack")?;
        self.size = self.read_line()?.answering("set")?.number("size")?;
        self.rank = self.read_line()?.answering("set")?.number("rank")?;
        self.read_line()?.answering("set").map(drop)
    }

    fn begin_one(&mut self) -> Answer<()> {
        let maxes = self.request("get_maxes", &[], "maxes")?;
        // One is the zero at its end.
        self.longest = (maxes.number("vallen_max")? as usize).saturating_sub(1);
        let named = self.request("get_my_kvsname", &[], "my_kvsname")?;
        self.space = named.get("kvsname").unwrap_or_default().to_owned();
        Ok(())
    }

    fn begin_two(&mut self) -> Answer<()> {
        let rank = self.rank.to_string();
        let fields = [("pmijobid", ""), ("pmirank", &*rank), ("threaded", "FALSE")];
        let begun = self.request("fullinit", &fields, "fullinit-response")?;
        (self.rank, self.size) = (begun.number("rank")?, begun.number("size")?);
        // Of PMI2_MAX_VALLEN, one is the zero at its end.
        self.longest = 1023;
        let named = self.request("job-getid", &[], "job-getid-response")?;
        self.space = named.get("jobid").unwrap_or_default().to_owned();
        Ok(())
    }

    /// Has ranks find `value` under `key` after the next fence.
    pub(super) fn put(&mut self, key: &str, value: &str) -> Answer<()> {
        if value.len() > self.longest {
            return Err(format!(
                "the server takes values of {} bytes, and {} are needed",
                self.longest,
                value.len()
            ));
        }
        let space = self.space.clone();
        let put = [("key", key), ("value", value)];
        match self.dialect {
            Dialect::One => {
                self.request("put", &[("kvsname", &*space), put[0], put[1]], "put_result")?
            }
            Dialect::Two => self.request("kvs-put", &put, "kvs-put-response")?,
        };
        Ok(())
    }

    /// Waits for all ranks.
    pub(super) fn fence(&mut self) -> Answer<()> {
        // It waits for the other ranks.
        self.until = None;
        match self.dialect {
            Dialect::One => self.query("barrier_in", &[], "barrier_out")?,
            Dialect::Two => self.query("kvs-fence", &[], "kvs-fence-response")?,
        };
        Ok(())
    }

    /// What a rank has put under `key`.
    pub(super) fn get(&mut self, key: &str) -> Answer<String> {
        let space = self.space.clone();
        let answer = match self.dialect {
            Dialect::One => {
                self.request("get", &[("kvsname", &space), ("key", key)], "get_result")?
            }
            Dialect::Two => {
                let fields = [("jobid", &*space), ("srcid", "-1"), ("key", key)];
                self.request("kvs-get", &fields, "kvs-get-response")?
            }
        };
        found(&answer, key)
    }

    /// The ranks of each node.
    pub(super) fn nodes(&mut self) -> Answer<Vec<Range<u32>>> {
        let mapping = match self.dialect {
            Dialect::One => self.get(MAPPING)?,
            Dialect::Two => {
                let answer = self.request(
                    "info-getjobattr",
                    &[("key", MAPPING)],
                    "info-getjobattr-response",
                )?;
                found(&answer, MAPPING)?
            }
        };
        places::rows(&places::nodes(&mapping, self.size)?)
    }

    /// Has the launcher end all ranks.
    pub(super) fn abort(&mut self) {
        let abort = match self.dialect {
            Dialect::One => line("abort", &[("exitcode", "1")]),
            Dialect::Two => frame("abort", &[("isworld", "TRUE"), ("msg", "a rank is lost")]),
        };
        // If that fails, the launcher is gone, and with it what would end them.
        let _ = self.write(&abort);
    }

    /// Says that this rank ends in order.
    pub(super) fn finish(&mut self) {
        // If that fails, the launcher is gone, and needs to know nothing.
        let _ = match self.dialect {
            Dialect::One => self.request("finalize", &[], "finalize_ack"),
            Dialect::Two => self.request("finalize", &[], "finalize-response"),
        };
    }

    fn request(&mut self, cmd: &str, fields: &[(&str, &str)], answer: &str) -> Answer<Message> {
        self.until = Some(Instant::now() + self.patience);
        self.query(cmd, fields, answer)
    }

    fn query(&mut self, cmd: &str, fields: &[(&str, &str)], answer: &str) -> Answer<Message> {
        match self.dialect {
            Dialect::One => {
                self.write(&line(cmd, fields))?;
                self.read_line()?.answering(answer)
            }
            Dialect::Two => {
                self.write(&frame(cmd, fields))?;
                self.read_frame()?.answering(answer)
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Answer<()> {
        self.stream.write_all(bytes).map_err(said)
    }

    fn read_line(&mut self) -> Answer<Message> {
        loop {
            if let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
                let rest = self.input.split_off(end + 1);
                return Message::of_line(&std::mem::replace(&mut self.input, rest));
            }
            self.read_more()?;
        }
    }

    fn read_frame(&mut self) -> Answer<Message> {
        loop {
            if let Some((prefix, body)) = self.input.split_first_chunk::<PREFIX>() {
                let length = message::announced(*prefix)?;
                if let Some((body, rest)) = body.split_at_checked(length) {
                    let message = Message::of_frame(body);
                    self.input = rest.to_vec();
                    return message;
                }
            }
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> Answer<()> {
        if self.input.len() > LONGEST + PREFIX {
            return Err(format!("{} has no end", message::shown(&self.input)));
        }
        let mut bytes = [0; 4096];
        loop {
            let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(format!("no answer came within {} s", self.patience.as_secs_f64()));
            }
            self.stream.limit(left).map_err(said)?;
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err("the server hung up".to_owned()),
                Ok(count) => {
                    self.input.extend_from_slice(&bytes[..count]);
                    return Ok(());
                }
                // `WouldBlock`: the time is up.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(error) => return Err(said(error)),
            }
        }
    }
}

fn found(answer: &Message, key: &str) -> Answer<String> {
    let value = answer.get("value").filter(|_| answer.get("found") != Some("FALSE"));
    value.map(str::to_owned).ok_or_else(|| format!("the server knows no {key}"))
}

#[allow(clippy::needless_pass_by_value)] // for `map_err`
fn said(error: io::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a session with a server that says `words`, whatever it is asked, and then no more.
    fn with(
        dialect: Dialect,
        place: Option<(u32, u32)>,
        words: &str,
    ) -> (Answer<Lines>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(words.as_bytes()).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        (Lines::open(Stream::Inherited(ours), dialect, place, "7", PATIENCE), theirs)
    }

    const ONE: &str = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n\
                       cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n\
                       cmd=my_kvsname kvsname=kvs_1\n";
    const TWO: &str = "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n\
                       50    cmd=fullinit-response;rc=0;rank=1;size=2;appnum=0;\
                       \x20   37cmd=job-getid-response;rc=0;jobid=j1;";

    #[test]
    fn a_session_of_pmi_1_begins_and_gets() {
        let words = format!(
            "{ONE}rc=0 value=beef cmd=get_result\ncmd=get_result rc=0 value=(vector,(0,2,1))\n"
        );
        let (lines, theirs) = with(Dialect::One, Some((1, 2)), &words);
        let mut lines = lines.unwrap();
        assert_eq!((lines.rank, lines.size, &*lines.space), (1, 2, "kvs_1"));
        assert_eq!(lines.get("rma").unwrap(), "beef");
        assert_eq!(lines.nodes().unwrap(), [0..1, 1..2]);
        let error = lines.put("rma", &"x".repeat(1024)).unwrap_err();
        assert!(error.contains("1023") && error.contains("1024"), "{error}");
        drop(lines);
        let mut asked = String::new();
        (&theirs).read_to_string(&mut asked).unwrap();
        assert_eq!(
            asked,
            "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=get_my_kvsname\n\
             cmd=get kvsname=kvs_1 key=rma\ncmd=get kvsname=kvs_1 key=PMI_process_mapping\n"
        );
    }

    #[test]
    fn a_process_behind_a_port_hears_its_rank() {
        let words =
            format!("cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=3\ncmd=set debug=0\n{ONE}");
        let lines = with(Dialect::One, None, &words).0.unwrap();
        assert_eq!((lines.rank, lines.size), (3, 4));
    }

    #[test]
    fn a_session_of_pmi_2_begins() {
        let lines = with(Dialect::Two, Some((1, 2)), TWO).0.unwrap();
        assert_eq!((lines.rank, lines.size, &*lines.space), (1, 2, "j1"));
    }

    #[test]
    fn servers_that_are_silent_are_errors_wherever_they_stop() {
        const SHORT: Duration = Duration::from_millis(20);
        for (dialect, words) in [(Dialect::One, ONE), (Dialect::Two, TWO)] {
            for end in [0, 10, words.len() / 2, words.len() - 1] {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                theirs.write_all(&words.as_bytes()[..end]).unwrap();
                let stream = Stream::Inherited(ours);
                let error = Lines::open(stream, dialect, Some((1, 2)), "", SHORT).err().unwrap();
                assert!(error.contains("no answer came within 0.02 s"), "{end}: {error}");
            }
        }
    }

    #[test]
    fn servers_that_talk_nonsense_are_errors() {
        let long = "x".repeat(LONGEST * 2);
        for (words, why) in [
            ("", "hung up"),
            ("HTTP/1.1 400 Bad Request\r\n\r\n", "no message"),
            ("cmd=response_to_init rc=-1 msg=version\n", "version"),
            ("cmd=response_to_init pmi_version=9 rc=0\n", "no PMI-1"),
            ("cmd=response_to_init rc=0\ncmd=maxes\n", "vallen_max"),
            (&long, "no end"),
        ] {
            let error = with(Dialect::One, Some((0, 1)), words).0.err().unwrap();
            assert!(error.contains(why), "{error}");
        }
        let other = with(Dialect::Two, Some((0, 2)), TWO).0.err().unwrap();
        assert!(other.contains("rank 1 of 2, and the environment 0 of 2"), "{other}");
        let error = with(Dialect::One, Some((2, 2)), ONE).0.err().unwrap();
        assert!(error.contains("rank 2 of 2"), "{error}");
        let cut = &TWO[..TWO.len() - 5];
        assert!(with(Dialect::Two, Some((1, 2)), cut).0.err().unwrap().contains("hung up"));
    }
}
