//! What each rank tells the others of its provider, before anything is sent. Ranks in a row that
//! say the same are told of once, so that all is one profile, and that of rank 0.

use crate::sys::Atomics;

/// What a rank tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// It can be reached.
    Open {
        /// What the job's key is made of, of rank 0; of others, zeros.
        seed: Seed,
        provider: String,
        /// Bytes of an address.
        address_len: u16,
        /// Whether its memory is reached, too.
        has_memory: bool,
        /// What its provider combines there.
        atomics: Atomics,
    },
    /// It cannot, and why.
    Closed(String),
}

/// A random number that no other job has.
pub(crate) type Seed = [u8; 32];

const OPEN: u8 = 1;
const CLOSED: u8 = 2;

impl Profile {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Open { seed, provider, address_len, has_memory, atomics } => {
                let mut bytes = vec![OPEN, u8::from(*has_memory)];
                bytes.extend(atomics.to_bytes());
                bytes.extend(seed);
                bytes.extend(address_len.to_le_bytes());
                bytes.extend(provider.as_bytes());
                bytes
            }
            Self::Closed(why) => [&[CLOSED], why.as_bytes()].concat(),
        }
    }

    /// `None` if they are none.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (&OPEN, rest) => {
                let (has_memory, rest) = rest.split_first()?;
                let (atomics, rest) = rest.split_first_chunk()?;
                let (seed, rest) = rest.split_first_chunk()?;
                let (address_len, name) = rest.split_first_chunk()?;
                Some(Self::Open {
                    seed: *seed,
                    provider: str::from_utf8(name).ok()?.to_owned(),
                    address_len: u16::from_le_bytes(*address_len),
                    has_memory: *has_memory == 1,
                    atomics: Atomics::from_bytes(*atomics),
                })
            }
            (&CLOSED, why) => Some(Self::Closed(String::from_utf8_lossy(why).into_owned())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Profile;
    use crate::sys::Atomics;

    #[test]
    fn a_profile_is_what_it_was() {
        let (seed, provider) = ([7; 32], "tcp;ofi_rxm".to_owned());
        let atomics = Atomics::from_bytes([1, 2, 3, 4, 5, 6]);
        let open = Profile::Open { seed, provider, address_len: 300, has_memory: true, atomics };
        let closed = Profile::Closed("no libfabric".to_owned());
        for profile in [open.clone(), closed] {
            assert_eq!(Profile::parse(&profile.to_bytes()), Some(profile));
        }
        let bytes = open.to_bytes();
        for len in 0..bytes.len() - "tcp;ofi_rxm".len() {
            assert_eq!(Profile::parse(&bytes[..len]), None, "{len} bytes of it");
        }
        assert_eq!(Profile::parse(&[3, 1, 2]), None);
    }
}
