//! What records of the store look like, byte by byte: `docs/checkpoint-format.md`.
//!
//! All integers are little-endian. A record is read whole, and is what its author wrote or refused:
//! it ends with an HMAC-SHA-256 by the key of the root, over all bytes before.
use hmac_sha256::HMAC;

/// Bytes of a block, the unit that versions share.
pub(crate) const BLOCK: usize = 16 << 10;
/// What this release writes and reads.
pub(crate) const FORMAT: u32 = 1;
pub(crate) const KEY_LEN: usize = 32;
/// Bytes of the record of a key, which a root has twice.
pub(crate) const KEY_RECORD: usize = 64;
/// Where the second one begins: in another sector, of whatever size.
pub(crate) const KEY_COPY: usize = 4096;

const MAGIC: &[u8; 8] = b"RMASTORE";
const KIND_KEY: u32 = 1;
const KIND_PART: u32 = 2;
const KIND_VERSION: u32 = 3;
const MAC_LEN: usize = 32;
const HEAD: usize = 16;
/// In the place of a slot: the block is all zeros.
const NO_SLOT: u64 = u64::MAX;
/// In the place of a rank: all of them.
const ALL_RANKS: u32 = u32::MAX;
const ENTRY: usize = 16;
const PART_REF: usize = 48;

pub(crate) type Key = [u8; KEY_LEN];
pub(crate) type Mac = [u8; MAC_LEN];

/// Why bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    Truncated,
    NoRecord,
    Format(u32),
    /// Bytes were changed, or were written with another root's key.
    Altered,
    /// A true record, of something else.
    Misplaced,
}

impl Flaw {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Truncated => "it is truncated",
            Self::NoRecord => "it is no record of the store",
            Self::Format(_) => "it is of another format; use the release that wrote it",
            Self::Altered => "its checksum does not match: bytes were altered",
            Self::Misplaced => "it belongs to another version, rank, window or root",
        }
    }
}

/// Where a version has the bytes of one block of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    slot: u64,
    pub(crate) crc: u32,
}

impl Block {
    pub(crate) const ZEROS: Self = Self { slot: NO_SLOT, crc: 0 };

    pub(crate) fn new(slot: u64, crc: u32) -> Self {
        Self { slot, crc }
    }

    /// In the file of blocks, counted in blocks; none if all bytes are zero.
    pub(crate) fn slot(&self) -> Option<u64> {
        Some(self.slot).filter(|slot| *slot != NO_SLOT)
    }
}

/// What a rank's part of a version consists of: the manifest of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) serial: u64,
    pub(crate) size: u64,
    pub(crate) blocks: Vec<Block>,
}

impl Part {
    /// All zeros.
    pub(crate) fn zeros(rank: u32, ranks: u32, size: u64) -> Self {
        let blocks = vec![Block::ZEROS; blocks_of(size)];
        Self { rank, ranks, serial: 0, size, blocks }
    }
}

/// How a version names a manifest of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartRef {
    pub(crate) serial: u64,
    pub(crate) size: u64,
    pub(crate) mac: Mac,
}

/// What a record of a version stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// A version.
    Kept,
    /// From here on, what the window lies on is what it holds: there are no transactions.
    Plain,
    /// Deleted; remembers that its number was used.
    Deleted,
}

/// Of what type a window's elements are, if that was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ElementType {
    /// As numpy writes it, with zeros behind.
    pub(crate) name: [u8; 8],
    pub(crate) size: u32,
}

/// The record that decides: with it there is a version, without it there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) number: u64,
    /// Rises with each version of a window, whatever their numbers.
    pub(crate) serial: u64,
    /// The highest number that was ever given.
    pub(crate) highest: u64,
    pub(crate) time_ns: u64,
    pub(crate) state: State,
    pub(crate) ranks: u32,
    /// The rank that made it by itself.
    pub(crate) alone: Option<u32>,
    pub(crate) element: ElementType,
    /// Of all ranks, or of that one.
    pub(crate) parts: Vec<PartRef>,
}

impl Version {
    /// That of a rank.
    pub(crate) fn part_of(&self, rank: u32) -> Option<&PartRef> {
        match self.alone {
            Some(alone) => self.parts.first().filter(|_| alone == rank),
            None => self.parts.get(rank as usize),
        }
    }
}

/// How many blocks so many bytes are.
pub(crate) fn blocks_of(size: u64) -> usize {
    size.div_ceil(BLOCK as u64) as usize
}

fn mac(key: &Key, bytes: &[u8]) -> Mac {
    HMAC::mac(bytes, key)
}

/// One word for bytes and a key, which other bytes or another key do not have, by chance or by
/// mistake.
pub(crate) fn tag(key: &Key, bytes: &[u8]) -> u64 {
    mac(key, bytes)[..8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u32) -> Self {
        let mut writer = Self(MAGIC.to_vec());
        writer.u32(FORMAT);
        writer.u32(kind);
        writer
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// Its bytes, and zeros up to a multiple of 8.
    fn name(&mut self, name: &str) {
        self.0.extend(name.as_bytes());
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }

    fn sealed(mut self, key: &Key) -> (Vec<u8>, Mac) {
        let mac = mac(key, &self.0);
        self.0.extend(mac);
        (self.0, mac)
    }
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    /// Of a record whose checksum is right.
    fn new(bytes: &'b [u8], kind: u32, key: &Key) -> Result<(Self, Mac), Flaw> {
        let body = bytes.len().checked_sub(MAC_LEN).filter(|len| *len >= HEAD);
        let (body, sum) = bytes.split_at(body.ok_or(Flaw::Truncated)?);
        let mut reader = Self(body);
        reader.head(kind)?;
        if !HMAC::verify(body, key, sum.try_into().map_err(|_| Flaw::Truncated)?) {
            return Err(Flaw::Altered);
        }
        Ok((reader, mac(key, body)))
    }

    fn head(&mut self, kind: u32) -> Result<(), Flaw> {
        if self.take(8)? != MAGIC {
            return Err(Flaw::NoRecord);
        }
        match self.u32()? {
            FORMAT => {}
            other => return Err(Flaw::Format(other)),
        }
        if self.u32()? == kind { Ok(()) } else { Err(Flaw::NoRecord) }
    }

    fn take(&mut self, len: usize) -> Result<&'b [u8], Flaw> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Flaw::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Flaw> {
        self.take(N)?.try_into().map_err(|_| Flaw::Truncated)
    }

    fn u32(&mut self) -> Result<u32, Flaw> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Flaw> {
        self.array().map(u64::from_le_bytes)
    }

    fn name(&mut self, len: u32) -> Result<&'b [u8], Flaw> {
        let len = len as usize;
        let padded = self.take(len.checked_next_multiple_of(8).ok_or(Flaw::Truncated)?)?;
        Ok(&padded[..len])
    }

    fn end(&self) -> Result<(), Flaw> {
        if self.0.is_empty() { Ok(()) } else { Err(Flaw::Altered) }
    }
}

/// The record of a key.
pub(crate) fn key_record(key: &Key) -> [u8; KEY_RECORD] {
    let mut writer = Writer::new(KIND_KEY);
    writer.0.extend(key);
    writer.0.resize(KEY_RECORD - 4, 0);
    let crc = crc32fast::hash(&writer.0);
    writer.u32(crc);
    let mut record = [0; KEY_RECORD];
    record.copy_from_slice(&writer.0);
    record
}

pub(crate) fn read_key(bytes: &[u8]) -> Result<Key, Flaw> {
    let (body, crc) = bytes.split_at_checked(KEY_RECORD - 4).ok_or(Flaw::Truncated)?;
    let mut reader = Reader(body);
    reader.head(KIND_KEY)?;
    let key = reader.array()?;
    if Reader(crc).u32()? == crc32fast::hash(body) { Ok(key) } else { Err(Flaw::Altered) }
}

/// The manifest of a part, and the checksum at its end.
pub(crate) fn part_record(part: &Part, name: &str, key: &Key) -> (Vec<u8>, Mac) {
    let mut writer = Writer::new(KIND_PART);
    writer.u32(part.rank);
    writer.u32(part.ranks);
    writer.u64(part.serial);
    writer.u64(part.size);
    writer.u32(BLOCK as u32);
    writer.u32(part.blocks.len() as u32);
    writer.u32(name.len() as u32);
    writer.u32(0);
    writer.name(name);
    for Block { slot, crc } in &part.blocks {
        writer.u64(*slot);
        writer.u32(*crc);
        writer.u32(0);
    }
    writer.sealed(key)
}

/// The manifest of a part of the window of that name, as `wanted` names it.
pub(crate) fn read_part(
    bytes: &[u8],
    (name, rank): (&str, u32),
    wanted: Option<&PartRef>,
    key: &Key,
) -> Result<Part, Flaw> {
    let (mut reader, mac) = Reader::new(bytes, KIND_PART, key)?;
    let (of, ranks, serial) = (reader.u32()?, reader.u32()?, reader.u64()?);
    let (size, block, count) = (reader.u64()?, reader.u32()?, reader.u32()? as usize);
    let len = reader.u32()?;
    _ = reader.u32()?;
    let is_it = wanted.is_none_or(|wanted| (wanted.serial, wanted.mac) == (serial, mac));
    if reader.name(len)? != name.as_bytes() || of != rank || !is_it {
        return Err(Flaw::Misplaced);
    }
    if block != BLOCK as u32 || count != blocks_of(size) || reader.0.len() != count * ENTRY {
        return Err(Flaw::NoRecord);
    }
    let mut blocks = Vec::with_capacity(count);
    for _ in 0..count {
        blocks.push(Block { slot: reader.u64()?, crc: reader.u32()? });
        _ = reader.u32()?;
    }
    reader.end()?;
    Ok(Part { rank, ranks, serial, size, blocks })
}

pub(crate) fn version_record(version: &Version, name: &str, key: &Key) -> Vec<u8> {
    let mut writer = Writer::new(KIND_VERSION);
    writer.u64(version.number);
    writer.u64(version.serial);
    writer.u64(version.highest);
    writer.u64(version.time_ns);
    writer.u32(match version.state {
        State::Kept => 0,
        State::Plain => 1,
        State::Deleted => 2,
    });
    writer.u32(version.ranks);
    writer.u32(version.alone.unwrap_or(ALL_RANKS));
    writer.u32(version.parts.len() as u32);
    writer.0.extend(version.element.name);
    writer.u32(version.element.size);
    writer.u32(name.len() as u32);
    writer.name(name);
    for PartRef { serial, size, mac } in &version.parts {
        writer.u64(*serial);
        writer.u64(*size);
        writer.0.extend(mac);
    }
    writer.sealed(key).0
}

pub(crate) fn read_version(bytes: &[u8], name: &str, key: &Key) -> Result<Version, Flaw> {
    let (mut reader, _) = Reader::new(bytes, KIND_VERSION, key)?;
    let (number, serial) = (reader.u64()?, reader.u64()?);
    let (highest, time_ns) = (reader.u64()?, reader.u64()?);
    let state = match reader.u32()? {
        0 => State::Kept,
        1 => State::Plain,
        2 => State::Deleted,
        _ => return Err(Flaw::NoRecord),
    };
    let ranks = reader.u32()?;
    let alone = Some(reader.u32()?).filter(|rank| *rank != ALL_RANKS);
    let count = reader.u32()? as usize;
    let element = ElementType { name: reader.array()?, size: reader.u32()? };
    let len = reader.u32()?;
    if reader.name(len)? != name.as_bytes() {
        return Err(Flaw::Misplaced);
    }
    if reader.0.len() != count * PART_REF {
        return Err(Flaw::NoRecord);
    }
    let mut parts = Vec::with_capacity(count);
    for _ in 0..count {
        parts.push(PartRef { serial: reader.u64()?, size: reader.u64()?, mac: reader.array()? });
    }
    reader.end()?;
    Ok(Version { number, serial, highest, time_ns, state, ranks, alone, element, parts })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = [7; 32];

    fn part() -> Part {
        let blocks = vec![Block::new(3, 5), Block::ZEROS];
        Part { rank: 1, ranks: 2, serial: 9, size: BLOCK as u64 + 1, blocks }
    }

    fn version() -> Version {
        let (_, mac) = part_record(&part(), "name", &KEY);
        let (alone, element) = (None, ElementType { name: *b"<f8\0\0\0\0\0", size: 8 });
        let parts = vec![PartRef { serial: 9, size: 7, mac }; 2];
        let (number, serial, highest, time_ns) = (3, 9, 4, 5);
        let state = State::Kept;
        Version { number, serial, highest, time_ns, state, ranks: 2, alone, element, parts }
    }

    /// Also of names that have one CRC-32.
    #[test]
    fn tags_tell_names_and_keys_apart() {
        assert_eq!(crc32fast::hash(b"plumless"), crc32fast::hash(b"buckeroo"));
        assert_eq!(tag(&KEY, b"plumless"), tag(&KEY, b"plumless"));
        assert_ne!(tag(&KEY, b"plumless"), tag(&KEY, b"buckeroo"));
        assert_ne!(tag(&KEY, b"plumless"), tag(&[8; 32], b"plumless"));
    }

    #[test]
    fn records_come_back() {
        let (bytes, mac) = part_record(&part(), "name", &KEY);
        let wanted = PartRef { serial: 9, size: 7, mac };
        assert_eq!(read_part(&bytes, ("name", 1), Some(&wanted), &KEY), Ok(part()));
        let bytes = version_record(&version(), "name", &KEY);
        assert_eq!(read_version(&bytes, "name", &KEY), Ok(version()));
        assert_eq!(read_key(&key_record(&KEY)), Ok(KEY));
    }

    /// Every bit counts, and so does every byte that is missing.
    #[test]
    fn what_was_altered_is_refused() {
        let (part_bytes, mac) = part_record(&part(), "name", &KEY);
        let wanted = PartRef { serial: 9, size: 7, mac };
        let version_bytes = version_record(&version(), "name", &KEY);
        let key_bytes = key_record(&KEY);
        type Read<'r> = &'r dyn Fn(&[u8]) -> bool;
        let read: [(&[u8], Read); 3] = [
            (&part_bytes, &|b| read_part(b, ("name", 1), Some(&wanted), &KEY).is_ok()),
            (&version_bytes, &|b| read_version(b, "name", &KEY).is_ok()),
            (&key_bytes, &|b| read_key(b).is_ok()),
        ];
        for (bytes, is_read) in read {
            assert!(is_read(bytes));
            for bit in 0..bytes.len() * 8 {
                let mut altered = bytes.to_vec();
                altered[bit / 8] ^= 1 << (bit % 8);
                assert!(!is_read(&altered), "bit {bit}");
            }
            (0..bytes.len()).for_each(|len| assert!(!is_read(&bytes[..len]), "{len} bytes"));
        }
    }

    #[test]
    fn true_records_of_something_else_are_refused() {
        let (bytes, mac) = part_record(&part(), "name", &KEY);
        let wanted = PartRef { serial: 9, size: 7, mac };
        let other = PartRef { serial: 9, size: 7, mac: [0; 32] };
        let read = |name, rank, wanted, key| read_part(&bytes, (name, rank), Some(wanted), key);
        assert_eq!(read("other", 1, &wanted, &KEY), Err(Flaw::Misplaced));
        assert_eq!(read("name", 0, &wanted, &KEY), Err(Flaw::Misplaced));
        assert_eq!(read("name", 1, &other, &KEY), Err(Flaw::Misplaced));
        assert_eq!(read("name", 1, &wanted, &[8; 32]), Err(Flaw::Altered));
        let bytes = version_record(&version(), "name", &KEY);
        assert_eq!(read_version(&bytes, "other", &KEY), Err(Flaw::Misplaced));
        assert_eq!(read_part(&bytes, ("name", 1), None, &KEY), Err(Flaw::NoRecord));
    }
}
