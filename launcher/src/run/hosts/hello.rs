//! How a host joins a job: what it and the launcher say to each other until each has proved that it
//! knows the secret, which never travels.
//!
//! ```text
//! launcher                                                   host
//!   | -- Challenge { magic "rma-join", version, nonce L } ---> |
//!   | <-- Hello { version, name, slots, nonce H, mac } ------- |  mac: HMAC-SHA-256 over L and the
//!   |                                                          |  rest
//!   | -- Welcome { name, silence, mac }  or  Refused --------> |  mac: over H, L and the rest
//! ```
//!
//! What follows is sealed by keys of this one connection, see [`crate::seal`].

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use hmac_sha256::HMAC;

use super::super::pattern::is_folder;
use crate::codec::{Wire, wire_enum, wire_struct};
use crate::start::Secret;
use crate::wire::{self, Nonce, Proof};

/// First bytes of a launcher that hosts may join.
pub(super) const MAGIC: [u8; 8] = *b"rma-join";
/// Bytes of a host's name at most.
const NAME_MAX: usize = 64;
/// Bytes of a file with a secret at least: an eavesdropper on a hello may try all shorter ones.
const SECRET_MIN: usize = 32;
/// And at most.
const SECRET_MAX: usize = 4096;

/// What the launcher of a job and the hosts that join it know, and no other process does.
#[derive(Debug, Clone)]
pub struct HostSecret(pub(super) Secret);

impl HostSecret {
    /// Reads it from a file, whose bytes are what counts, but for spaces and ends of lines around
    /// them.
    ///
    /// # Errors
    ///
    /// A sentence that names the file: it cannot be read, others may read it, or it is too short.
    pub fn read(path: &Path) -> Result<HostSecret, String> {
        let shown = path.display();
        let failed = |error| format!("secret of {shown}: cannot be read: {error}");
        let file = std::fs::File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(format!("secret of {shown}: it is not a file"));
        }
        let mode = metadata.mode() & 0o7777;
        // Kubernetes gives a secret to a user other than root by a group.
        let is_of_root = metadata.uid() == 0 && !rustix::process::geteuid().is_root();
        let allowed = if is_of_root { 0o740 } else { 0o700 };
        if mode & 0o777 & !allowed != 0 {
            return Err(format!(
                "secret of {shown}: others may read it (mode {mode:04o}): `chmod 600 {shown}`, and \
                 draw a new one if they have"
            ));
        }
        let mut bytes = Vec::new();
        file.take(SECRET_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        let bytes = bytes.trim_ascii();
        if bytes.len() < SECRET_MIN || bytes.len() > SECRET_MAX {
            return Err(format!(
                "secret of {shown}: it has {} bytes, not {SECRET_MIN} to {SECRET_MAX}: \
                 `(umask 077; head -c 32 /dev/urandom | base64 > {shown})`",
                bytes.len()
            ));
        }
        Ok(HostSecret(Secret(HMAC::mac(bytes, b"rma join 1: secret"))))
    }
}

/// The launcher's first frame.
#[derive(Debug, PartialEq)]
pub(super) struct Challenge {
    pub(super) magic: [u8; 8],
    pub(super) version: u32,
    pub(super) nonce: Nonce,
}

/// The host's answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// What it calls itself.
    pub(super) name: String,
    /// Ranks that it takes, if that is said.
    pub(super) slots: Option<u32>,
    pub(super) nonce: Nonce,
    pub(super) mac: [u8; 32],
}

/// A host that has joined.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Welcome {
    /// What it is called in this job.
    pub(super) name: String,
    /// A launcher that says nothing for so long is gone.
    pub(super) silence: Duration,
    pub(super) mac: [u8; 32],
}

/// How the hello ends.
#[derive(Debug, PartialEq)]
pub(super) enum Reply {
    Welcome(Welcome),
    Refused(Refusal),
}

/// Why a host cannot join. Nothing proves that the launcher has said so.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("it has another secret: give both the same file")]
    Secret,
    #[error("it speaks version {launcher} of agents: install the same rma-run on all hosts")]
    Version { launcher: u32 },
    #[error(
        "a name has 1 to 64 letters, digits, dots, dashes and underscores, and is not . or ..: set \
         --name"
    )]
    Name,
}

crate::debug_as_display!(Refusal);

wire_struct!(Challenge { magic, version, nonce });
wire_struct!(Hello { version, name, slots, nonce, mac });
wire_struct!(Welcome { name, silence, mac });
wire_enum!(Reply { 0 = Welcome { 0: welcome }, 1 = Refused { 0: why } });
wire_enum!(Refusal {
    0 = Secret {},
    1 = Version { launcher: launcher },
    2 = Name {},
});

/// Whether a host may be called that: names are shown, and looked up.
pub(super) fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_odd = name.starts_with('-') || is_folder(name);
    !is_odd && (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_letter)
}

/// Proof of a host that was challenged with that nonce.
pub(super) fn host_mac(secret: &HostSecret, launcher: &Nonce, hello: &Hello) -> Proof {
    let hello = Hello { mac: [0; 32], ..hello.clone() };
    wire::mac(&secret.0.0, &[b"rma join 1: host", launcher, &hello.to_bytes()])
}

/// Proof of the launcher, to the host with that nonce.
pub(super) fn launcher_mac(
    secret: &HostSecret,
    launcher: &Nonce,
    host: &Nonce,
    welcome: &Welcome,
) -> Proof {
    let welcome = Welcome { mac: [0; 32], ..welcome.clone() };
    wire::mac(&secret.0.0, &[b"rma join 1: launcher", host, launcher, &welcome.to_bytes()])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn secret(byte: u8) -> HostSecret {
        HostSecret(Secret([byte; 32]))
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let read = |bytes: &[u8], mode| {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            HostSecret::read(&path).map(|secret| secret.0.0)
        };
        let (bytes, line) = ([b'x'; 32], [&[b'x'; 32][..], b"\n"].concat());
        assert_eq!(read(&bytes, 0o600).unwrap(), read(&line, 0o400).unwrap());
        assert_ne!(read(&bytes, 0o600).unwrap(), read(&[b'y'; 32], 0o600).unwrap());
        for mode in [0o644, 0o640, 0o604, 0o620, 0o660] {
            let error = read(&bytes, mode).unwrap_err();
            assert!(error.contains(&format!("(mode {mode:04o})")), "{error}");
            assert!(error.contains("chmod 600"), "{error}");
        }
        for len in [0, 31, 4097] {
            let error = read(&vec![b'x'; len], 0o600).unwrap_err();
            assert!(error.contains("/dev/urandom"), "{error}");
        }
        for path in [dir.path(), Path::new("/no/such/secret")] {
            let error = HostSecret::read(path).unwrap_err();
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }

    #[test]
    fn all_that_is_said_is_covered_by_proofs() {
        let (launcher, host) = ([1; 32], [2; 32]);
        let hello =
            Hello { version: 1, name: "a".into(), slots: Some(2), nonce: host, mac: [0; 32] };
        let proof = host_mac(&secret(1), &launcher, &hello);
        assert_eq!(
            proof,
            host_mac(&secret(1), &launcher, &Hello { mac: [9; 32], ..hello.clone() })
        );
        assert_ne!(proof, host_mac(&secret(2), &launcher, &hello));
        assert_ne!(proof, host_mac(&secret(1), &[0; 32], &hello));
        for other in [
            Hello { version: 2, ..hello.clone() },
            Hello { name: "b".into(), ..hello.clone() },
            Hello { slots: None, ..hello.clone() },
            Hello { nonce: [3; 32], ..hello.clone() },
        ] {
            assert_ne!(proof, host_mac(&secret(1), &launcher, &other));
        }
        let welcome = Welcome { name: "a".into(), silence: Duration::from_secs(9), mac: [0; 32] };
        let proof = launcher_mac(&secret(1), &launcher, &host, &welcome);
        assert_ne!(proof, launcher_mac(&secret(2), &launcher, &host, &welcome));
        assert_ne!(proof, launcher_mac(&secret(1), &host, &launcher, &welcome));
        let other = Welcome { name: "b".into(), ..welcome.clone() };
        assert_ne!(proof, launcher_mac(&secret(1), &launcher, &host, &other));
        let other = Welcome { silence: Duration::ZERO, ..welcome };
        assert_ne!(proof, launcher_mac(&secret(1), &launcher, &host, &other));
    }

    #[test]
    fn names_are_words() {
        assert!(is_name("node-1.example_x"));
        for bad in ["", "-o", ".", "..", "a b", "a\u{1b}[2J", "ä", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
