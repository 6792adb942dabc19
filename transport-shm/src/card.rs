//! What ranks tell each other about their segments: where the roster is at the start, a card there,
//! a descriptor for each region, and for each extent of a file. Everything is checked before it is
//! used.

use core::ops::Range;

use bytemuck::{Pod, Zeroable, bytes_of, cast, try_pod_read_unaligned};
use rma_core::transport::Descriptor;
use rustix::process::Pid;

use crate::control::control_len;
use crate::heap::{ARENA_BYTES, GRAIN, Place};
use crate::segment::Identity;

/// "rma-shm", and the version of everything that ranks share: change it with any layout.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"rma-shm\x03");

/// What all ranks must have alike, said in the exchange at the start.
#[derive(Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct TagBytes {
    magic: u64,
    size: u32,
    control_len: u32,
}

/// What rank 0 says there besides: where the roster is.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct NoticeBytes {
    tag: TagBytes,
    pid: i32,
    descriptor: i32,
    device: u64,
    inode: u64,
}

fn tag(size: u32) -> TagBytes {
    TagBytes { magic: MAGIC, size, control_len: control_len() as u32 }
}

/// What a rank but the first says.
pub(crate) fn tag_bytes(size: u32) -> Vec<u8> {
    bytes_of(&tag(size)).to_vec()
}

fn check(found: TagBytes, size: u32) -> Result<(), &'static str> {
    let TagBytes { magic, size: found_size, control_len } = found;
    if magic != MAGIC {
        return Err("it is of another program or version");
    }
    if found_size != size {
        return Err("it counts another number of ranks");
    }
    if control_len != tag(size).control_len {
        return Err("its control segment has another length");
    }
    Ok(())
}

/// Whether that was said by a rank of this job, or what is wrong with it.
pub(crate) fn check_tag(bytes: &[u8], size: u32) -> Result<(), &'static str> {
    check(try_pod_read_unaligned(bytes).map_err(|_| "its length is wrong")?, size)
}

/// Where rank 0 has the roster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) pid: Pid,
    pub(crate) descriptor: i32,
    pub(crate) roster: Identity,
}

impl Notice {
    pub(crate) fn to_bytes(self, size: u32) -> Vec<u8> {
        let (pid, descriptor) = (self.pid.as_raw_nonzero().get(), self.descriptor);
        let Identity { device, inode, .. } = self.roster;
        bytes_of(&NoticeBytes { tag: tag(size), pid, descriptor, device, inode }).to_vec()
    }

    /// Reads what rank 0 said of a roster that must be `len` long; or says what is wrong with it.
    pub(crate) fn parse(bytes: &[u8], size: u32, len: u64) -> Result<Self, &'static str> {
        let said: NoticeBytes = try_pod_read_unaligned(bytes).map_err(|_| "its length is wrong")?;
        check(said.tag, size)?;
        let NoticeBytes { pid, descriptor, device, inode, .. } = said;
        let (pid, descriptor) = process(pid, descriptor)?;
        Ok(Self { pid, descriptor, roster: Identity { device, inode, len } })
    }
}

/// A number of a process, and one of a descriptor of it.
fn process(pid: i32, descriptor: i32) -> Result<(Pid, i32), &'static str> {
    let pid = Some(pid).filter(|&pid| pid > 0).and_then(Pid::from_raw);
    let pid = pid.ok_or("its process number is none")?;
    if descriptor < 0 {
        return Err("its descriptor number is none");
    }
    Ok((pid, descriptor))
}

/// Words of a card in the roster.
pub(crate) const CARD_WORDS: usize = 4;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct CardBytes {
    pid: i32,
    descriptor: i32,
    device: u64,
    inode: u64,
    address: u64,
}

/// How to find the control segment of a rank, and with it all others of that process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) pid: Pid,
    pub(crate) descriptor: i32,
    pub(crate) control: Identity,
    /// Where the owner has mapped its control segment.
    pub(crate) address: u64,
}

impl Card {
    pub(crate) fn to_words(self) -> [u64; CARD_WORDS] {
        let (pid, descriptor) = (self.pid.as_raw_nonzero().get(), self.descriptor);
        let Identity { device, inode, .. } = self.control;
        cast(CardBytes { pid, descriptor, device, inode, address: self.address })
    }

    /// The card of `rank`, if these words are one.
    pub(crate) fn from_words(words: [u64; CARD_WORDS], rank: u32, size: u32) -> Option<Self> {
        let CardBytes { pid, descriptor, device, inode, address } = cast(words);
        let (pid, descriptor) = process(pid, descriptor).ok()?;
        let control = Identity { device, inode, len: control_len() as u64 };
        Some(Self { rank, size, pid, descriptor, control, address })
    }
}

const MARK: u32 = 1 << 31;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct PlaceBytes {
    /// Of a segment, its id; of another file, its device.
    id: u64,
    inode: u64,
    segment_len: u64,
    offset: u64,
    len: u64,
    /// Not negative; the top bit says that the segment is an arena, or the file is mapped with
    /// `MAP_SYNC`.
    descriptor: u32,
    magic: u32,
}

const PLACE_MAGIC: u32 = u32::from_le_bytes(*b"seg\x01");
const FILE_MAGIC: u32 = u32::from_le_bytes(*b"fil\x02");

/// A region of a peer, in range of its segment, or an extent of a file that it has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerPlace {
    /// Of a file that is no segment: its device.
    pub(crate) device: Option<u64>,
    pub(crate) id: u64,
    pub(crate) descriptor: i32,
    pub(crate) is_arena: bool,
    /// Of a file that is no segment: it is mapped with `MAP_SYNC`, or not at all.
    pub(crate) is_synchronous: bool,
    pub(crate) inode: u64,
    pub(crate) segment_len: u64,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

pub(crate) fn describe(place: &Place<'_>) -> Descriptor {
    let mark = if place.is_arena { MARK } else { 0 };
    let bytes = PlaceBytes {
        id: place.id,
        inode: place.segment.identity.inode,
        segment_len: place.segment.identity.len,
        offset: (place.offset as u64),
        len: (place.len as u64),
        descriptor: (place.segment.descriptor().cast_unsigned() | mark),
        magic: PLACE_MAGIC,
    };
    Descriptor(cast(bytes))
}

/// Describes bytes of a file that this process has open as `number`.
pub(crate) fn describe_file(
    file: Identity,
    number: i32,
    range: Range<u64>,
    synchronous: bool,
) -> Descriptor {
    let mark = if synchronous { MARK } else { 0 };
    let bytes = PlaceBytes {
        id: file.device,
        inode: file.inode,
        segment_len: file.len,
        offset: range.start,
        len: range.end - range.start,
        descriptor: number.cast_unsigned() | mark,
        magic: FILE_MAGIC,
    };
    Descriptor(cast(bytes))
}

/// None: this is no descriptor, or what it describes does not lie in its segment or file.
pub(crate) fn read(descriptor: &Descriptor) -> Option<PeerPlace> {
    let place: PlaceBytes = cast(descriptor.0);
    let (segment_len, offset, len) = (place.segment_len, place.offset, place.len);
    let is_file = place.magic == FILE_MAGIC;
    let is_marked = place.descriptor & MARK != 0;
    let (is_arena, is_synchronous) = (is_marked && !is_file, is_marked && is_file);
    let fits = offset.checked_add(len).is_some_and(|end| end <= segment_len)
        && segment_len > 0
        && isize::try_from(segment_len).is_ok()
        && offset.is_multiple_of(GRAIN as u64)
        && (!is_arena || segment_len == ARENA_BYTES as u64);
    if !fits || (!is_file && place.magic != PLACE_MAGIC) {
        return None;
    }
    Some(PeerPlace {
        device: is_file.then_some(place.id),
        id: place.id,
        descriptor: (place.descriptor & !MARK).cast_signed(),
        is_arena,
        is_synchronous,
        inode: place.inode,
        segment_len,
        offset: usize::try_from(offset).ok()?,
        len: usize::try_from(len).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Heap;
    use crate::memory_limits::MemoryLimits;

    const SIZE: u32 = 4;

    fn card() -> Card {
        let control = Identity { device: 5, inode: 77, len: control_len() as u64 };
        let pid = Pid::from_raw(123).unwrap();
        Card { rank: 2, size: SIZE, pid, descriptor: 9, control, address: 0x1000 }
    }

    #[test]
    fn a_card_survives_the_journey() {
        for descriptor in [0, 9] {
            let card = Card { descriptor, ..card() };
            assert_eq!(Card::from_words(card.to_words(), 2, SIZE), Some(card));
        }
        assert_eq!(Card::from_words([0; CARD_WORDS], 2, SIZE), None, "no rank wrote it");
        let negative = Card { descriptor: -1, ..card() };
        assert_eq!(Card::from_words(negative.to_words(), 2, SIZE), None);
    }

    #[test]
    fn what_ranks_say_at_the_start_is_told_apart() {
        let roster = Identity { device: 5, inode: 77, len: 8192 };
        let notice = Notice { pid: Pid::from_raw(123).unwrap(), descriptor: 0, roster };
        let (bytes, tag) = (notice.to_bytes(SIZE), tag_bytes(SIZE));
        assert_eq!(Notice::parse(&bytes, SIZE, 8192), Ok(notice));
        assert_eq!(check_tag(&tag, SIZE), Ok(()));
        assert!(Notice::parse(&bytes, 5, 8192).is_err() && check_tag(&tag, 5).is_err());
        assert!(Notice::parse(&tag, SIZE, 8192).is_err() && check_tag(&bytes, SIZE).is_err());
        assert!(Notice::parse(&[], SIZE, 8192).is_err() && check_tag(&[], SIZE).is_err());
        for at in 0..tag.len() {
            let mut tag = tag.clone();
            tag[at] ^= 1;
            assert!(check_tag(&tag, SIZE).is_err(), "byte {at}");
        }
        // Whatever one field says: no panic, and never a process or descriptor below its range.
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                if let Ok(notice) = Notice::parse(&bytes, SIZE, 8192) {
                    assert!(notice.descriptor >= 0 && notice.pid.as_raw_nonzero().get() > 0);
                }
            }
        }
    }

    #[test]
    fn regions_survive_the_journey() {
        let heap = Heap::new(MemoryLimits::discover());
        for len in [0, 8, 70_000] {
            let (_first, region) = (heap.allocate(1, 1), heap.allocate(len, 64).unwrap());
            let place = region.place();
            let read = read(&describe(&place)).unwrap();
            assert_eq!((read.id, read.offset, read.len), (place.id, place.offset, len));
            assert_eq!(read.descriptor, place.segment.descriptor());
            assert_eq!(read.inode, place.segment.identity.inode);
            assert_eq!(read.segment_len, place.segment.identity.len);
            assert_eq!(read.is_arena, len <= 64 << 10);
        }
    }

    #[test]
    fn extents_of_files_survive_the_journey() {
        let file = Identity { device: 5, inode: 77, len: 20_000 };
        for synchronous in [false, true] {
            let read = |range| read(&describe_file(file, 9, range, synchronous));
            let place = read(4096..20_000).unwrap();
            assert_eq!((place.device, place.inode, place.descriptor), (Some(5), 77, 9));
            assert_eq!((place.segment_len, place.offset, place.len), (20_000, 4096, 15_904));
            assert_eq!((place.is_synchronous, place.is_arena), (synchronous, false));
            assert!(read(4096..20_001).is_none() && read(u64::MAX - 63..u64::MAX).is_none());
        }
    }

    #[test]
    fn ranges_outside_of_the_segment_are_refused() {
        let place = |offset: u64, len: u64, segment_len: u64, descriptor: u32| {
            let bytes = PlaceBytes {
                id: 1,
                inode: 2,
                segment_len,
                offset,
                len,
                descriptor,
                magic: PLACE_MAGIC,
            };
            read(&Descriptor(cast(bytes)))
        };
        assert!(place(64, 4032, 4096, 3).is_some());
        assert!(place(4096, 0, 4096, 3).is_some());
        assert!(place(64, 4033, 4096, 3).is_none());
        assert!(place(u64::MAX - 63, 64, 4096, 3).is_none());
        assert!(place(64, u64::MAX, 4096, 3).is_none());
        assert!(place(0, 1 << 63, 1 << 63, 3).is_none());
        assert!(place(1, 1, 4096, 3).is_none(), "not aligned");
        assert!(place(0, 0, 0, 3).is_none());
        assert!(place(0, 1, 4096, MARK | 3).is_none(), "no arena has that length");
        assert!(read(&Descriptor([0; Descriptor::LEN])).is_none());
        assert!(read(&Descriptor([0xff; Descriptor::LEN])).is_none());
    }
}
