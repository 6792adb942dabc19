//! Segments on the running kernel.
#![allow(unsafe_code)] // room: writes and reads mapped bytes

use super::*;
use rustix::io::FdFlags;

fn limits() -> MemoryLimits {
    MemoryLimits::discover()
}

fn me() -> Pid {
    rustix::process::getpid()
}

fn segment(len: usize) -> Segment {
    Segment::create("rma-test", len, len as u64, &limits(), false).unwrap()
}

#[test]
fn a_peer_sees_the_same_bytes() {
    let own = segment(10_000);
    assert_eq!(own.span.len() % rustix::param::page_size(), 0);
    let peer = import(me(), own.descriptor(), own.identity, true).unwrap();
    assert_ne!(peer.base(), own.span.base());
    // SAFETY: both mappings are longer, and this thread is alone with them.
    unsafe { own.span.at(9_999).write(7) };
    // SAFETY: as above.
    assert_eq!(unsafe { peer.at(9_999).read() }, 7);
    // SAFETY: as above.
    assert_eq!(unsafe { peer.at(9_998).read() }, 0);
    drop(own);
    // SAFETY: as above; the peer's mapping outlives the owner's.
    assert_eq!(unsafe { peer.at(9_999).read() }, 7);
}

/// `len` bytes at `offset` of a segment.
fn piece(of: &Segment, offset: usize, len: usize) -> Piece {
    let (descriptor, file, is_synchronous) = (of.descriptor(), of.identity, false);
    Piece { descriptor, file, is_segment: true, is_synchronous, offset, len }
}

#[test]
fn pieces_lie_side_by_side() {
    let (first, second) = (segment(8192), segment(8192));
    let pieces = [piece(&second, 4096, 4096), piece(&first, 0, 5000)];
    let (span, len) = import_side_by_side(me(), &pieces).unwrap();
    assert_eq!((len, span.len()), (9096, 4096 + 8192));
    for (at, own) in [(0, second.span.at(4096)), (4095, second.span.at(8191))] {
        // SAFETY: both mappings are longer, and this thread is alone with them.
        unsafe { own.write(at as u8 | 1) };
        // SAFETY: as above.
        assert_eq!(unsafe { span.at(at).read() }, at as u8 | 1);
    }
    // SAFETY: as above.
    unsafe { span.at(9095).write(9) };
    // SAFETY: as above.
    assert_eq!(unsafe { first.span.at(4999).read() }, 9);
}

#[test]
fn pieces_that_lie_are_refused() {
    let own = segment(8192);
    let refused = |pieces: &[Piece]| import_side_by_side(me(), pieces).map(drop).unwrap_err();
    let apart = |pieces: &[Piece]| matches!(refused(pieces), OpenError::Apart(_));
    let (page, all) = (piece(&own, 0, 4096), piece(&own, 0, 8192));
    assert!(apart(&[]));
    assert!(apart(&[Piece { len: 0, ..page }]));
    assert!(apart(&[Piece { offset: 64, ..page }]));
    assert!(apart(&[Piece { len: 4000, ..page }, page]), "the second begins inside of a page");
    let not_there =
        OpenError::System { call: "mmap with MAP_SYNC", errno: Errno::OPNOTSUPP.raw_os_error() };
    assert_eq!(refused(&[page, Piece { is_synchronous: true, ..page }]), not_there);
    let huge = Piece { len: isize::MAX as usize & !4095, ..page };
    assert!(apart(&[huge, huge, huge]));
    let file = Identity { inode: own.identity.inode ^ 1, ..own.identity };
    let longer = Identity { len: 12_288, ..own.identity };
    for is_segment in [true, false] {
        let page = Piece { is_segment, ..page };
        assert_eq!(refused(&[page, Piece { file, ..page }]), OpenError::Different);
        assert_eq!(refused(&[Piece { file: longer, ..page }, page]), OpenError::Different);
        assert_eq!(refused(&[page, Piece { descriptor: -1, ..page }]), OpenError::Different);
    }
    // What is no segment may grow, and has no seals.
    let file = memfd("rma-test").unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    let (descriptor, identity) = (file.as_raw_fd(), identify(file.as_fd()).unwrap());
    let piece = |is_segment| Piece { descriptor, file: identity, is_segment, ..all };
    assert_eq!(refused(&[piece(true)]), OpenError::Different);
    rustix::fs::ftruncate(&file, 12_288).unwrap();
    assert!(import_side_by_side(me(), &[piece(false), all]).is_ok());
}

#[test]
fn the_seals_hold() {
    let own = segment(8192);
    let file = own.file.as_ref().unwrap();
    let seals = rustix::fs::fcntl_get_seals(file).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
    assert!(rustix::io::fcntl_getfd(file).unwrap().contains(FdFlags::CLOEXEC));
    assert_eq!(rustix::fs::ftruncate(file, 4096), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(file, 1 << 20), Err(Errno::PERM));
}

#[test]
fn the_space_is_reserved() {
    let own = segment(1 << 20);
    let stat = rustix::fs::fstat(own.file.as_ref().unwrap()).unwrap();
    assert!(stat.st_blocks as u64 * 512 >= 1 << 20, "{} blocks", stat.st_blocks);
    // In several steps, the last of which is a short one.
    let len = RESERVE_STEP as usize + 4096;
    let stat = rustix::fs::fstat(segment(len).file.as_ref().unwrap()).unwrap();
    assert_eq!(stat.st_size, len as i64);
    assert!(stat.st_blocks as usize * 512 >= len, "{} blocks", stat.st_blocks);
}

/// Another rank took it since the first look.
#[test]
fn what_runs_short_between_two_steps_is_noticed() {
    let name = format!("rma-segment-test-{}", me().as_raw_nonzero());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let rest = 8192;
    for left in [rest - 1, rest] {
        let file = memfd("rma-test").unwrap();
        rustix::fs::ftruncate(&file, RESERVE_STEP + rest).unwrap();
        let limits = MemoryLimits::of_group(&folder, left);
        let reserved = reserve(&file, RESERVE_STEP + rest, 77, &limits);
        let available = RESERVE_STEP + left;
        let short =
            AllocateError::Shortage { requested: 77, available, limit: memory_limits::GROUP };
        assert_eq!(reserved, if left < rest { Err(short) } else { Ok(()) });
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_reused_descriptor_is_noticed() {
    let first = segment(4096);
    let (number, identity) = (first.descriptor(), first.identity);
    let second = segment(4096);
    let other = import(me(), second.descriptor(), identity, false).unwrap_err();
    assert_eq!(other, OpenError::Different);
    let longer = Identity { len: 1 << 20, ..identity };
    assert_eq!(import(me(), number, longer, false).unwrap_err(), OpenError::Different);
    assert!(is_open(me(), number, identity));
    assert!(!is_open(me(), second.descriptor(), identity));
    let pipe = std::io::pipe().unwrap().1;
    assert_eq!(import(me(), pipe.as_raw_fd(), identity, false).unwrap_err(), OpenError::Different);
}

#[test]
fn an_unsealed_file_is_not_mapped() {
    let file = rustix::fs::memfd_create("rma-test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    let stat = rustix::fs::fstat(&file).unwrap();
    let identity = Identity { device: stat.st_dev, inode: stat.st_ino, len: 4096 };
    let refused = import(me(), file.as_raw_fd(), identity, false).unwrap_err();
    assert_eq!(refused, OpenError::Different);
}

#[test]
fn absent_processes_and_descriptors() {
    let own = segment(4096);
    let missing = Pid::from_raw(i32::MAX).unwrap();
    assert_eq!(import(missing, 3, own.identity, false).unwrap_err(), OpenError::Gone);
    assert!(!is_open(missing, 3, own.identity));
    for number in [-1, i32::MAX] {
        assert_eq!(import(me(), number, own.identity, false).unwrap_err(), OpenError::Different);
        assert!(!is_open(me(), number, own.identity));
    }
}

#[test]
fn lengths_beyond_the_address_space() {
    for len in [usize::MAX, isize::MAX as usize] {
        let error = Segment::create("rma-test", len, len as u64, &limits(), false).unwrap_err();
        assert!(matches!(error, AllocateError::Shortage { .. }), "{error}");
    }
}

#[test]
fn refusals_are_sorted() {
    let limits = limits();
    let refused = |call, errno| refusal(1, call, errno, &limits);
    let too_many = refused("memfd_create", Errno::MFILE);
    let errno = Errno::MFILE.raw_os_error();
    assert_eq!(too_many, AllocateError::System { requested: 1, call: "memfd_create", errno });
    for errno in [Errno::NOMEM, Errno::NOSPC, Errno::FBIG] {
        assert!(matches!(
            refused("fallocate", errno),
            AllocateError::Shortage { requested: 1, .. }
        ));
    }
    let limit = |requested, call, errno| match refusal(requested, call, errno, &limits) {
        AllocateError::Shortage { limit, .. } => limit,
        error => panic!("{error}"),
    };
    // More than there is, or less: then it was something else.
    for errno in [Errno::NOMEM, Errno::NOSPC] {
        assert_eq!(limit(u64::MAX, "mmap", errno), limits.available().limit);
        assert!(limit(1, "fallocate", errno).contains("overcommit"));
    }
    assert!(limit(1, "mmap", Errno::NOMEM).contains("max_map_count"));
    assert_eq!(limit(1, "fallocate", Errno::FBIG), memory_limits::FILE_SIZE);
}

#[test]
fn pidfd_getfd_leads_to_the_same_segment() {
    let own = segment(4096);
    let process = rustix::process::pidfd_open(me(), PidfdFlags::empty()).unwrap();
    assert!(!exited(&process));
    let flags = PidfdGetfdFlags::empty();
    match rustix::process::pidfd_getfd(&process, own.descriptor(), flags) {
        Ok(file) => assert_eq!(verify(&file, own.identity), Ok(())),
        // Sandboxes refuse the call.
        Err(errno) => assert!(matches!(errno, Errno::PERM | Errno::NOSYS), "{errno}"),
    }
}
