//! A job whose ranks a launcher of others has started: `mpiexec` of hydra and `srun` by PMI-1 or
//! PMI-2, `mpirun` and `prterun` by PMIx. It tells each rank its number, how many there are and
//! which share a node, and carries where rank 0 listens; the bootstrap of this crate does the rest.

mod lines;
mod message;
mod places;
mod pmix;
#[cfg(feature = "server")]
pub(crate) mod server;

use std::ffi::OsString;
use std::net::TcpStream;
use std::ops::Range;
use std::os::unix::net::UnixStream;

use self::lines::{Dialect, Lines, PATIENCE, Stream};
use crate::codec::{Wire, wire_struct};
use crate::foreign::Vars;
use crate::start::StartError;
use crate::{PMI_VAR, inherited, wire};

/// Under which rank 0 puts its card.
const KEY: &str = "rma-bootstrap";

/// What `rma-run` sets besides, for programs of MPI.
const SERVED: [&str; 3] = ["PMI_FD", "PMI_RANK", "PMI_SIZE"];

/// The environment as launchers of others have set it: `rma-run`, if that serves PMI to this
/// process, is none of them, and tells ranks of this runtime more by other means.
pub(crate) fn of_others(vars: Vars<'_>) -> impl Fn(&str) -> Option<OsString> {
    let is_ours = vars(PMI_VAR).is_some_and(|name| {
        let descriptor = vars("PMI_FD");
        descriptor.is_some_and(|descriptor| inherited::is_or_was(&name, &descriptor))
    });
    move |name| if is_ours && SERVED.contains(&name) { None } else { vars(name) }
}

/// How a launcher of others is to be spoken to.
#[derive(Debug, Clone)]
pub struct Managed {
    way: Way,
    launcher: &'static str,
    /// The variable that says so, with its value.
    seen: String,
}

#[derive(Debug, Clone)]
enum Way {
    /// An inherited connection to a server of PMI.
    Descriptor { descriptor: i32, rank: u32, size: u32, dialect: Dialect },
    /// A server of PMI at a port, where this process has a name.
    Port { address: String, id: String },
    /// The library of PMIx.
    Library,
}

/// The launcher that started this process as one of several, if it can be spoken to.
///
/// # Errors
///
/// When it can, but its variables are not what they should be.
pub(crate) fn find(vars: Vars) -> Result<Option<Managed>, StartError> {
    let slurm = vars("SLURM_PROCID").is_some();
    let seen = |name: &str| {
        let value = vars(name).unwrap_or_default();
        format!("{name}={}", value.to_string_lossy().chars().take(60).collect::<String>())
    };
    let is_one = |name| vars(name).is_some_and(|size| size == "1");
    let pmi = match (slurm, vars("HYDI_CONTROL_FD").is_some()) {
        (_, true) => "mpiexec (hydra)",
        (true, false) => "srun",
        (false, false) => "a launcher (PMI)",
    };
    if vars("PMI_FD").is_some() && !is_one("PMI_SIZE") {
        let numbers = ["PMI_FD", "PMI_RANK", "PMI_SIZE"].map(|name| {
            let value = vars(name).ok_or(StartError::HalfPmi { seen: "PMI_FD", missing: name })?;
            let number: Option<i32> = value.to_str().and_then(|text| text.parse().ok());
            let number = number.filter(|number| *number >= 0).map(i32::cast_unsigned);
            number.ok_or_else(|| StartError::BadPmi { seen: seen(name) })
        });
        let [descriptor, rank, size] = numbers;
        let (descriptor, rank, size) = (descriptor?.cast_signed(), rank?, size?);
        // Only servers that speak PMI-2 give the job this name.
        let two = vars("PMI_JOBID").is_some();
        let dialect = if two { Dialect::Two } else { Dialect::One };
        let way = Way::Descriptor { descriptor, rank, size, dialect };
        return Ok(Some(Managed { way, launcher: pmi, seen: seen("PMI_FD") }));
    }
    if let Some(address) = vars("PMI_PORT").filter(|_| !is_one("PMI_SIZE")) {
        let missing = StartError::HalfPmi { seen: "PMI_PORT", missing: "PMI_ID" };
        let text = |value: OsString| value.to_string_lossy().into_owned();
        let id = text(vars("PMI_ID").ok_or(missing)?);
        // It stands in a line, and ends it.
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(StartError::BadPmi { seen: seen("PMI_ID") });
        }
        let way = Way::Port { address: text(address), id };
        return Ok(Some(Managed { way, launcher: pmi, seen: seen("PMI_PORT") }));
    }
    let sizes = ["OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"];
    let is_one = sizes.iter().find_map(|name| vars(name)).is_some_and(|size| size == "1");
    if vars("PMIX_RANK").is_some() && vars("PMIX_NAMESPACE").is_some() && !is_one {
        let ompi = vars("OMPI_COMM_WORLD_SIZE").is_some();
        let launcher = match (ompi, vars("PRTE_LAUNCHED").is_some(), slurm) {
            (true, _, _) => "mpirun (Open MPI)",
            (_, true, _) => "prterun",
            (_, _, true) => "srun",
            _ => "a launcher (PMIx)",
        };
        return Ok(Some(Managed { way: Way::Library, launcher, seen: seen("PMIX_RANK") }));
    }
    Ok(None)
}

impl Managed {
    /// Which launcher it is.
    pub fn launcher(&self) -> &'static str {
        self.launcher
    }

    /// Begins the session of this rank.
    pub(crate) fn open(&self) -> Result<Session, StartError> {
        let failed = |why| self.failed("beginning a session", why);
        let talk = match &self.way {
            Way::Descriptor { descriptor, rank, size, dialect } => {
                let stream =
                    inherited::socket(*descriptor).map_err(|why| failed(why.to_owned()))?;
                let stream = Stream::Inherited(UnixStream::from(stream));
                Lines::open(stream, *dialect, Some((*rank, *size)), "", PATIENCE).map(Talk::Lines)
            }
            Way::Port { address, id } => {
                let stream = TcpStream::connect(address);
                let stream = stream.map_err(|error| failed(format!("{address}: {error}")))?;
                let stream = Stream::Port(stream);
                Lines::open(stream, Dialect::One, None, id, PATIENCE).map(Talk::Lines)
            }
            Way::Library => pmix::Library::open().map(|library| Talk::Library(Box::new(library))),
        };
        Ok(Session { managed: self.clone(), talk: talk.map_err(failed)? })
    }

    fn failed(&self, doing: &'static str, why: String) -> StartError {
        StartError::Exchange { seen: self.seen.clone(), launcher: self.launcher, doing, why }
    }
}

/// What rank 0 tells the others by their launcher.
#[derive(Debug, PartialEq)]
pub(crate) struct Card {
    /// Of rank 0's host, as far as ranks are elsewhere, with the port.
    pub(crate) addresses: Vec<String>,
    pub(crate) secret: [u8; 32],
    /// Why there is no job.
    pub(crate) refusal: Option<String>,
}

wire_struct!(Card { addresses, secret, refusal });

/// The ranks of each node, or why they cannot be one job.
pub(crate) type Nodes = Result<Vec<Range<u32>>, String>;

/// A session of this rank with its launcher.
#[derive(Debug)]
pub(crate) struct Session {
    managed: Managed,
    talk: Talk,
}

#[derive(Debug)]
enum Talk {
    Lines(Lines),
    Library(Box<pmix::Library>),
}

impl Session {
    /// This rank, and how many there are.
    pub(crate) fn place(&self) -> (u32, u32) {
        match &self.talk {
            Talk::Lines(lines) => (lines.rank, lines.size),
            Talk::Library(library) => (library.rank(), library.size),
        }
    }

    /// Which launcher started the job.
    pub(crate) fn launcher(&self) -> &'static str {
        self.managed.launcher
    }

    /// **Collective.** At rank 0, the ranks of each node.
    pub(crate) fn nodes(&mut self) -> Result<Option<Nodes>, StartError> {
        let is_first = self.place().0 == 0;
        let nodes = match &mut self.talk {
            Talk::Lines(lines) => is_first.then(|| lines.nodes()),
            Talk::Library(library) => {
                let told = library.put_peers().and_then(|()| library.fence());
                told.map_err(|why| self.managed.failed("telling who shares a node", why))?;
                is_first.then(|| library.nodes())
            }
        };
        Ok(nodes)
    }

    /// **Collective.** Gives all ranks the card of rank 0.
    pub(crate) fn share(&mut self, card: Option<&Card>) -> Result<Card, StartError> {
        let shared = self.exchange(card);
        shared.map_err(|why| self.managed.failed("hearing from rank 0", why))
    }

    fn exchange(&mut self, card: Option<&Card>) -> Result<Card, String> {
        let text = card.map(to_hex);
        let found = match &mut self.talk {
            Talk::Lines(lines) => {
                text.iter().try_for_each(|text| lines.put(KEY, text))?;
                lines.fence()?;
                lines.get(KEY)?
            }
            Talk::Library(library) => {
                text.iter().try_for_each(|text| library.put(KEY, text))?;
                library.fence()?;
                library.get(KEY, 0)?
            }
        };
        from_hex(&found).ok_or_else(|| {
            "what rank 0 has put is of another version of this runtime; build all ranks from one"
                .to_owned()
        })
    }

    /// Has the launcher end all ranks.
    pub(crate) fn abort(&mut self) {
        match &mut self.talk {
            Talk::Lines(lines) => lines.abort(),
            Talk::Library(library) => library.abort(),
        }
    }

    /// Says that this rank ends in order.
    pub(crate) fn finish(&mut self) {
        match &mut self.talk {
            Talk::Lines(lines) => lines.finish(),
            Talk::Library(library) => library.finish(),
        }
    }
}

/// Letters and digits only, which no server takes for its own.
fn to_hex(card: &Card) -> String {
    let mut bytes = wire::VERSION.to_le_bytes().to_vec();
    card.put(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Card> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let bytes =
        pairs.iter().map(|[high, low]| u8::try_from(digit(*high)? * 16 + digit(*low)?).ok());
    let bytes: Vec<u8> = bytes.collect::<Option<_>>()?;
    let (version, body) = bytes.split_first_chunk()?;
    if u16::from_le_bytes(*version) != wire::VERSION {
        return None;
    }
    wire::decode(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(refusal: Option<&str>) -> Card {
        let addresses = vec!["10.0.0.1:4711".to_owned(), "127.0.0.1:4711".to_owned()];
        Card { addresses, secret: [0xa5; 32], refusal: refusal.map(str::to_owned) }
    }

    #[test]
    fn a_card_travels_as_hexadecimal_digits() {
        for card in [card(None), card(Some("why not; it = a sentence\n"))] {
            let text = to_hex(&card);
            assert!(text.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
            assert_eq!(from_hex(&text), Some(card));
            for end in 0..text.len() {
                assert_eq!(from_hex(&text[..end]), None);
            }
        }
        assert_eq!(from_hex("zz"), None);
        assert_eq!(from_hex("+1+1"), None);
        let other = format!("ffff{}", &to_hex(&card(None))[4..]);
        assert_eq!(from_hex(&other), None, "another version");
    }

    fn found(vars: &[(&str, &str)]) -> Result<Option<&'static str>, String> {
        let read = |name: &str| {
            vars.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        };
        let found = find(&read).map_err(|error| error.to_string())?;
        Ok(found.map(|managed| managed.launcher()))
    }

    #[test]
    fn launchers_are_known_by_what_they_set() {
        let hydra =
            [("PMI_FD", "6"), ("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("HYDI_CONTROL_FD", "7")];
        assert_eq!(found(&hydra), Ok(Some("mpiexec (hydra)")));
        let slurm = [("PMI_FD", "6"), ("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("SLURM_PROCID", "0")];
        assert_eq!(found(&slurm), Ok(Some("srun")));
        assert_eq!(found(&[("PMI_PORT", "a:1"), ("PMI_ID", "0")]), Ok(Some("a launcher (PMI)")));
        let pmix = [("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "1")];
        assert_eq!(found(&pmix), Ok(Some("a launcher (PMIx)")));
        let with = |name, value| found(&[pmix[0], pmix[1], (name, value)]);
        assert_eq!(with("OMPI_COMM_WORLD_SIZE", "4"), Ok(Some("mpirun (Open MPI)")));
        assert_eq!(with("PRTE_LAUNCHED", "1"), Ok(Some("prterun")));
        assert_eq!(with("SLURM_PROCID", "1"), Ok(Some("srun")));
    }

    #[test]
    fn one_process_is_alone() {
        assert_eq!(found(&[("PMI_FD", "6"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")]), Ok(None));
        let one = ("OMPI_COMM_WORLD_SIZE", "1");
        assert_eq!(found(&[("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "1"), one]), Ok(None));
        assert_eq!(found(&[]), Ok(None));
        // Of another launcher inside of that one.
        let nested =
            [("PMI_FD", "6"), ("PMI_SIZE", "1"), ("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "1")];
        assert_eq!(found(&nested), Ok(Some("a launcher (PMIx)")));
    }

    #[test]
    fn a_half_of_what_a_launcher_sets_is_named() {
        for (vars, named) in [
            (&[("PMI_FD", "6")][..], "PMI_RANK"),
            (&[("PMI_FD", "6"), ("PMI_RANK", "1")], "PMI_SIZE"),
            (&[("PMI_FD", "x"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")], "PMI_FD=x"),
            (&[("PMI_FD", "6"), ("PMI_RANK", "-1"), ("PMI_SIZE", "2")], "PMI_RANK=-1"),
            (&[("PMI_PORT", "host:1")], "PMI_ID"),
            (&[("PMI_PORT", "host:1"), ("PMI_ID", "1\ncmd=abort")], "PMI_ID=1"),
        ] {
            let error = found(vars).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn a_connection_that_is_closed_is_named() {
        let vars = |name: &str| {
            let value = match name {
                "PMI_FD" => "99999",
                "PMI_RANK" => "0",
                "PMI_SIZE" => "2",
                _ => return None,
            };
            Some(value.into())
        };
        let managed = find(&vars).unwrap().unwrap();
        let error = managed.open().unwrap_err().to_string();
        assert!(error.contains("PMI_FD=99999") && error.contains("closed"), "{error}");
    }
}
