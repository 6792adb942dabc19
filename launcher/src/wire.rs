//! What travels between a rank and its launcher; see the crate documentation for the picture.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use hmac_sha256::HMAC;

use crate::Job;
use crate::client::Fate;
use crate::codec::{Wire, wire_enum, wire_struct};
use crate::seal::SharedFrame;

/// First bytes of every bootstrap connection, sent by the launcher.
pub(crate) const MAGIC: [u8; 8] = *b"rma-boot";
/// Changes whenever a message does, or what ranks write into their bulletins.
pub(crate) const VERSION: u16 = 13;
/// Largest frame before the other side has proved its identity, in bytes.
pub(crate) const HELLO_MAX: usize = 1024;
/// Largest frame that ends the hello, in bytes: it tells of the job.
pub(crate) const REPLY_MAX: usize = 64 << 10;
/// Largest frame afterwards, in bytes.
pub(crate) const FRAME_MAX: usize = 16 << 20;
/// Bytes of the largest card of a rank.
pub(crate) const CARD_MAX: usize = 1024;
/// Ranks of a job on hosts, or of a launcher of others, at most.
pub(crate) const RANKS_MAX: u32 = 1 << 16;
/// Bytes that a message needs besides its payload, generously.
const OVERHEAD: usize = 64;
/// Those of a run besides what its ranks said: how many they are, and its length.
const RUN: usize = 8;

/// A number used once, so that no recorded hello can be played again.
pub(crate) type Nonce = [u8; 32];

/// The launcher's first frame.
#[derive(Debug, PartialEq)]
pub(crate) struct Challenge {
    pub(crate) magic: [u8; 8],
    pub(crate) version: u16,
    pub(crate) nonce: Nonce,
}

/// The rank's answer; `mac` proves that it knows the job's secret.
#[derive(Debug, PartialEq)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) rank: u32,
    pub(crate) pid: u32,
    pub(crate) nonce: Nonce,
    pub(crate) mac: [u8; 32],
}

/// How the hello ends; a caller without the secret learns that it is wrong, and no more.
#[derive(Debug, PartialEq)]
pub(crate) enum Reply {
    /// Accepted; `mac` proves the launcher to the rank, and covers `job`.
    Welcome { mac: [u8; 32], job: Job },
    /// It cannot join.
    Refused(Refusal),
}

/// Why a rank cannot join.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No such rank.
    #[error("the job has {size} ranks")]
    RankOutOfRange {
        /// Ranks of the job.
        size: u32,
    },
    /// The rank is on another host.
    #[error("it is on another host of the job; ranks {first} to {} are on this one", end - 1)]
    Elsewhere {
        /// First rank of the host.
        first: u32,
        /// The one behind its last.
        end: u32,
    },
    /// Two processes claim one rank.
    #[error(
        "another process is this rank already; a program that a rank starts is no rank: \
         start it without RMA_BOOTSTRAP, RMA_RANK and RMA_SECRET_FD in its environment"
    )]
    RankTaken,
    /// The secret is another job's.
    #[error("it does not know the secret of this job")]
    Secret,
    /// Different versions of this crate.
    #[error("the launcher speaks bootstrap version {launcher}; build both from one version")]
    Version {
        /// The launcher's version.
        launcher: u16,
    },
}

crate::debug_as_display!(Refusal);

/// Whether a rank that knows the secret may join; it has the rank from then on.
pub(crate) fn admit(
    hello: &Hello,
    here: Range<u32>,
    size: u32,
    taken: &mut [bool],
) -> Result<(), Refusal> {
    if hello.version != VERSION {
        return Err(Refusal::Version { launcher: VERSION });
    }
    let place = hello.rank.checked_sub(here.start);
    match place.and_then(|place| taken.get_mut(place as usize)) {
        None if hello.rank < size => Err(Refusal::Elsewhere { first: here.start, end: here.end }),
        None => Err(Refusal::RankOutOfRange { size }),
        Some(true) => Err(Refusal::RankTaken),
        Some(free) => {
            *free = true;
            Ok(())
        }
    }
}

/// A frame on its way to a rank, shared by all that get the same.
pub(crate) type Frame = Arc<SharedFrame>;

/// From a rank, after the hello.
#[derive(Debug, PartialEq)]
pub(crate) enum ToLauncher {
    /// My part of the next all-gather.
    Gather { mine: Vec<u8> },
    /// Something that the job's user may want to know; told once, whichever rank says it.
    Note { text: String },
    /// I leave; nothing follows.
    Leave {
        failed: bool,
        /// The first rank that it waited for in vain, because that had left in order, or failed.
        missed: Option<u32>,
    },
    /// After `Leave`, in a job on several hosts: all that I have sent has arrived, or never will.
    Departed { fate: Fate },
    /// Where I am reached; told to ranks that ask.
    Card { card: Vec<u8> },
    /// Where is that rank reached?
    Query { rank: u32 },
}

/// To a rank, after the hello; the first three answer one `Gather`.
#[derive(Debug, PartialEq)]
pub(crate) enum FromLauncher {
    /// Every rank's part, by rank: runs of ranks whose parts are the same.
    Gathered { runs: Vec<(u32, Vec<u8>)> },
    /// `rank` is gone, so the exchange cannot complete.
    Broken { rank: u32 },
    /// The parts are larger than a frame.
    TooLarge { total: u64 },
    /// `count` ranks from `first` on, of other hosts, have left so.
    Gone { first: u32, count: u32, fate: Fate },
    /// Answers one `Query`: what that rank has said of itself, or nothing if it has not.
    Card { rank: u32, card: Vec<u8> },
}

wire_struct!(Challenge { magic, version, nonce });
wire_struct!(Hello { version, rank, pid, nonce, mac });
wire_enum!(Reply { 0 = Welcome { mac: mac, job: job }, 1 = Refused { 0: why } });
wire_enum!(Refusal {
    0 = RankOutOfRange { size: size },
    1 = RankTaken {},
    2 = Version { launcher: launcher },
    3 = Secret {},
    4 = Elsewhere { first: first, end: end },
});
wire_enum!(ToLauncher {
    0 = Gather { mine: mine },
    1 = Note { text: text },
    2 = Leave { failed: failed, missed: missed },
    3 = Departed { fate: fate },
    4 = Card { card: card },
    5 = Query { rank: rank },
});
wire_enum!(FromLauncher {
    0 = Gathered { runs: runs },
    1 = Broken { rank: rank },
    2 = TooLarge { total: total },
    3 = Gone { first: first, count: count, fate: fate },
    4 = Card { rank: rank, card: card },
});

/// Whether an exchange of parts with these lengths fits into one frame, whatever they say.
pub(crate) fn gather_fits(parts: u64, bytes: u64) -> bool {
    let framing = parts.saturating_mul(RUN as u64);
    bytes.saturating_add(framing).saturating_add(OVERHEAD as u64) <= FRAME_MAX as u64
}

/// A proof that the sender knows the secret.
#[derive(Debug)]
pub(crate) struct Proof(pub(crate) [u8; 32]);

impl PartialEq for Proof {
    /// Takes as long wherever they differ.
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        pairs.fold(0, |differ, (a, b)| black_box(differ | (a ^ b))) == 0
    }
}

/// A proof over these parts, one behind the other.
pub(crate) fn mac(secret: &[u8; 32], parts: &[&[u8]]) -> Proof {
    let mut hasher = HMAC::new(secret);
    parts.iter().for_each(|part| hasher.update(part));
    Proof(hasher.finalize())
}

/// Proof of the rank, over everything it says in its hello.
pub(crate) fn rank_mac(secret: &[u8; 32], challenge: &Nonce, hello: &Hello) -> Proof {
    let parts: [&[u8]; 6] = [
        b"rma bootstrap 1: rank",
        challenge,
        &hello.nonce,
        &hello.rank.to_le_bytes(),
        &hello.pid.to_le_bytes(),
        &hello.version.to_le_bytes(),
    ];
    mac(secret, &parts)
}

/// Proof of the launcher, over both nonces and the job that it describes.
pub(crate) fn launcher_mac(
    secret: &[u8; 32],
    challenge: &Nonce,
    answer: &Nonce,
    job: &Job,
) -> Proof {
    mac(secret, &[b"rma bootstrap 1: launcher", answer, challenge, &job.to_bytes()])
}

/// 32 bytes that cannot be guessed.
pub(crate) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// A message with its length in front, ready to be written.
pub(crate) fn encode<T: Wire>(message: &T) -> io::Result<Vec<u8>> {
    encode_within(message, FRAME_MAX)
}

/// The same, of a message of at most `max` bytes.
pub(crate) fn encode_within<T: Wire>(message: &T, max: usize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    message.put(&mut frame);
    let len = frame.len() - 4;
    is_within(len, max)?;
    frame[..4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(frame)
}

/// The length that a frame announces, if it is at most `max`.
pub(crate) fn announced(prefix: [u8; 4], max: usize) -> io::Result<usize> {
    let len = u32::from_le_bytes(prefix) as usize;
    is_within(len, max).map(|()| len)
}

/// An error if a message of `len` bytes is longer than `max`.
pub(crate) fn is_within(len: usize, max: usize) -> io::Result<()> {
    if len > max { Err(too_long(len, max)) } else { Ok(()) }
}

/// The body of the frame at the beginning of `input`, if all of it is there.
pub(crate) fn whole(input: &[u8], max: usize) -> io::Result<Option<&[u8]>> {
    let Some((prefix, rest)) = input.split_first_chunk::<4>() else { return Ok(None) };
    Ok(rest.get(..announced(*prefix, max)?))
}

/// A message from the body of a frame; what is left over is an error.
pub(crate) fn decode<T: Wire>(mut body: &[u8]) -> io::Result<T> {
    match (T::take(&mut body), body) {
        (Some(message), []) => Ok(message),
        (Some(_), rest) => Err(invalid(format!("{} bytes after the end of a message", rest.len()))),
        (None, _) => Err(invalid("not a message of the bootstrap".to_owned())),
    }
}

/// Writes one frame.
pub(crate) fn write<T: Wire>(mut to: impl Write, message: &T) -> io::Result<()> {
    to.write_all(&encode(message)?)
}

/// Reads one frame of at most `max` bytes.
pub(crate) fn read<T: Wire>(from: impl Read, max: usize) -> io::Result<T> {
    decode(&read_body(from, max)?)
}

/// The same, without understanding it.
pub(crate) fn read_body(mut from: impl Read, max: usize) -> io::Result<Vec<u8>> {
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix)?;
    let mut body = vec![0; announced(prefix, max)?];
    from.read_exact(&mut body)?;
    Ok(body)
}

/// Whether the other side hung up, rather than not being there or talking nonsense.
pub(crate) fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

fn too_long(len: usize, max: usize) -> io::Error {
    invalid(format!("a frame of {len} bytes, where at most {max} are allowed"))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SettingSource;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn each_rank_joins_once() {
        let hello = |rank| Hello { rank, ..hello() };
        let mut taken = vec![false; 2];
        assert_eq!(admit(&hello(1), 0..2, 2, &mut taken), Ok(()));
        assert_eq!(admit(&hello(1), 0..2, 2, &mut taken), Err(Refusal::RankTaken));
        assert_eq!(admit(&hello(2), 0..2, 2, &mut taken), Err(Refusal::RankOutOfRange { size: 2 }));
        let old = Hello { version: 0, ..hello(0) };
        let refusal = Refusal::Version { launcher: VERSION };
        assert_eq!(admit(&old, 0..2, 2, &mut taken), Err(refusal));
        assert_eq!(admit(&hello(0), 0..2, 2, &mut taken), Ok(()));

        let (mut taken, elsewhere) = (vec![false; 2], Refusal::Elsewhere { first: 2, end: 4 });
        assert_eq!(admit(&hello(3), 2..4, 6, &mut taken), Ok(()));
        for rank in [1, 4] {
            assert_eq!(admit(&hello(rank), 2..4, 6, &mut taken), Err(elsewhere));
        }
    }

    fn hello() -> Hello {
        Hello { version: VERSION, rank: 3, pid: 77, nonce: [9; 32], mac: [0; 32] }
    }

    #[test]
    fn every_field_of_a_hello_is_covered_by_its_proof() {
        let (secret, challenge) = ([1; 32], [2; 32]);
        let proof = rank_mac(&secret, &challenge, &hello());
        assert_ne!(proof, rank_mac(&[0; 32], &challenge, &hello()));
        assert_ne!(proof, rank_mac(&secret, &[0; 32], &hello()));
        assert_ne!(proof, rank_mac(&secret, &challenge, &Hello { rank: 4, ..hello() }));
        assert_ne!(proof, rank_mac(&secret, &challenge, &Hello { pid: 78, ..hello() }));
        assert_ne!(proof, rank_mac(&secret, &challenge, &Hello { nonce: [8; 32], ..hello() }));
        assert_ne!(
            proof,
            rank_mac(&secret, &challenge, &Hello { version: VERSION + 1, ..hello() })
        );
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_anything_is_allocated() {
        let frame = u32::MAX.to_le_bytes();
        let error = read::<Hello>(&frame[..], HELLO_MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn bytes_after_a_message_are_refused() {
        let frame = encode(&ToLauncher::Leave { failed: true, missed: None }).unwrap();
        let mut body = frame[4..].to_vec();
        assert!(decode::<ToLauncher>(&body).is_ok());
        body.push(0);
        assert!(decode::<ToLauncher>(&body).is_err());
    }

    #[test]
    fn the_largest_exchange_that_is_let_through_fits_a_frame() {
        let parts = 3;
        let bytes = FRAME_MAX - OVERHEAD - parts * RUN;
        assert!(gather_fits(parts as u64, bytes as u64));
        assert!(!gather_fits(parts as u64, bytes as u64 + 1));
        let runs = [bytes - 2, 1, 1].map(|len| (1, vec![0; len])).to_vec();
        assert!(encode(&FromLauncher::Gathered { runs }).is_ok());
        assert!(!gather_fits(u64::MAX, u64::MAX));
    }

    /// Written and read again; what is cut short, or longer, is no message.
    fn travels<T: Wire + PartialEq + std::fmt::Debug>(message: T) {
        let frame = encode(&message).unwrap();
        let mut body = frame[4..].to_vec();
        for len in 0..body.len() {
            assert!(decode::<T>(&body[..len]).is_err(), "{message:?} of {len} bytes");
        }
        assert_eq!(decode::<T>(&body).unwrap(), message);
        body.push(0);
        assert!(decode::<T>(&body).is_err());
    }

    #[test]
    fn every_message_travels() {
        let file = SettingSource::File("a file".to_owned());
        let option = SettingSource::Option("--config".to_owned());
        let job = Job {
            rank: 1,
            size: 2,
            nodes: 3,
            cores: 4,
            explain: false,
            wait_timeout: Some(Duration::new(7, 999_999_999)),
            hints: vec![("key".to_owned(), "väl\u{fc}e".to_owned())],
            config: vec![
                ("one".to_owned(), "1".to_owned(), file),
                ("two".to_owned(), "2".to_owned(), option),
            ],
            progress_agent: true,
            host: None,
        };
        travels(Challenge { magic: MAGIC, version: VERSION, nonce: [7; 32] });
        travels(hello());
        travels(Reply::Welcome { mac: [1; 32], job });
        travels(Reply::Refused(Refusal::RankOutOfRange { size: 9 }));
        travels(Reply::Refused(Refusal::Secret));
        travels(Reply::Refused(Refusal::Elsewhere { first: 2, end: 4 }));
        travels(Reply::Refused(Refusal::RankTaken));
        travels(Reply::Refused(Refusal::Version { launcher: 1 }));
        travels(ToLauncher::Gather { mine: vec![1, 2, 3] });
        travels(ToLauncher::Note { text: "a note".to_owned() });
        travels(ToLauncher::Leave { failed: true, missed: Some(3) });
        for fate in [Fate::Departed, Fate::Holding, Fate::Failed] {
            travels(ToLauncher::Departed { fate });
            travels(FromLauncher::Gone { first: 3, count: 2, fate });
        }
        travels(FromLauncher::Gathered { runs: vec![(1, vec![1]), (7, vec![]), (2, vec![2, 3])] });
        travels(FromLauncher::Broken { rank: 4 });
        travels(ToLauncher::Card { card: vec![1, 2, 3] });
        travels(ToLauncher::Query { rank: 5 });
        travels(FromLauncher::Card { rank: 5, card: vec![4, 5] });
        travels(FromLauncher::TooLarge { total: u64::MAX });
    }

    #[test]
    fn a_value_has_one_form() {
        let no_bool = [2u8, 0, 0];
        assert!(decode::<ToLauncher>(&[&[2][..], &no_bool].concat()).is_err());
        let too_many_nanos = [0u64.to_le_bytes().to_vec(), 1_000_000_000u32.to_le_bytes().to_vec()];
        assert!(decode::<Duration>(&too_many_nanos.concat()).is_err());
        assert!(decode::<String>(&[1, 0, 0, 0, 0xff]).is_err(), "no UTF-8");
        assert!(decode::<Vec<Vec<u8>>>(&[0xff; 12]).is_err(), "more than is there");
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes: Vec<u8>) {
            let _ = read::<Challenge>(&bytes[..], HELLO_MAX);
            let _ = read::<Hello>(&bytes[..], HELLO_MAX);
            let _ = read::<Reply>(&bytes[..], HELLO_MAX);
            let _ = decode::<ToLauncher>(&bytes);
            let _ = decode::<FromLauncher>(&bytes);
        }

        #[test]
        fn what_is_written_is_what_is_read(mine: Vec<u8>) {
            let mut frame = Vec::new();
            write(&mut frame, &ToLauncher::Gather { mine: mine.clone() }).unwrap();
            let back: ToLauncher = read(&frame[..], FRAME_MAX).unwrap();
            prop_assert_eq!(back, ToLauncher::Gather { mine });
        }
    }
}
