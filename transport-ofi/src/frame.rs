//! What is in front of each message: whose job it is of, who sent it, and what it is.

/// Bytes in front of a message.
pub(crate) const HEADER: usize = 16;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of the core.
    Data,
    /// The sender leaves: how many of those it sent here follows, a `u64`, and its address. Asks
    /// for `Heard`.
    Farewell,
    /// All of those have arrived.
    Heard,
    /// Is memory of the key that follows still reached? Asks for `KeyTold`.
    KeyQuery,
    /// Of the key that follows: a byte behind it, 1 if it is.
    KeyTold,
    /// The sender's address follows, so that it can be answered.
    Here,
}

/// What stands in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// A random number of the job: what does not have it is of another one.
    pub(crate) job: u64,
    pub(crate) from: u32,
    pub(crate) kind: Kind,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let kind: u32 = match self.kind {
            Kind::Data => 1,
            Kind::Farewell => 2,
            Kind::Heard => 3,
            Kind::KeyQuery => 4,
            Kind::KeyTold => 5,
            Kind::Here => 6,
        };
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&self.job.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.from.to_le_bytes());
        bytes[12..].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    /// The header of a message of a job, and what follows. `None` if it is of another job, or of
    /// no rank among `size`.
    pub(crate) fn parse(message: &[u8], job: u64, size: u32) -> Option<(Self, &[u8])> {
        let (head, rest) = message.split_first_chunk::<HEADER>()?;
        let (its, head) = head.split_first_chunk::<8>()?;
        let (from, kind) = head.split_first_chunk::<4>()?;
        let its = u64::from_le_bytes(*its);
        let kind = match u32::from_le_bytes(kind.try_into().ok()?) {
            1 => Kind::Data,
            2 => Kind::Farewell,
            3 => Kind::Heard,
            4 => Kind::KeyQuery,
            5 => Kind::KeyTold,
            6 => Kind::Here,
            _ => return None,
        };
        let header = Self { job: its, from: u32::from_le_bytes(*from), kind };
        (its == job && header.from < size).then_some((header, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::{HEADER, Header, Kind};

    #[test]
    fn a_header_is_what_it_was() {
        let of_keys = [Kind::KeyQuery, Kind::KeyTold];
        for kind in [Kind::Data, Kind::Farewell, Kind::Heard, Kind::Here].into_iter().chain(of_keys)
        {
            let header = Header { job: 0x0123_4567_89ab_cdef, from: 6, kind };
            let mut message = header.to_bytes().to_vec();
            message.extend(b"rest");
            assert_eq!(Header::parse(&message, header.job, 7), Some((header, &b"rest"[..])));
            assert_eq!(Header::parse(&message, header.job + 1, 7), None, "another job");
            assert_eq!(Header::parse(&message, header.job, 6), None, "no rank of it");
            assert_eq!(Header::parse(&message[..HEADER - 1], header.job, 7), None);
            message[12] = 9;
            assert_eq!(Header::parse(&message, header.job, 7), None, "no kind");
        }
    }
}
