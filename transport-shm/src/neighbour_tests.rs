//! Copies by the number of a process that has ended.
#![allow(unsafe_code)] // room: forks, and writes to the memory of its children

use super::*;
use crate::memory_limits::MemoryLimits;
use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

/// A copy of this process that does nothing, and ends with this value.
struct Child(Pid);

impl Child {
    fn new() -> Self {
        // SAFETY: the child calls nothing but `prctl` and `pause`, which take no lock.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: both may be called in any state of the process.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                // SAFETY: as above.
                unsafe { libc::pause() };
            },
            pid => Self(Pid::from_raw(pid).expect("fork failed")),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        kill_process(self.0, Signal::KILL).unwrap();
        waitpid(Some(self.0), WaitOptions::empty()).unwrap();
    }
}

/// A child with the number `pid`, which is free; `None` if the system does not let it be chosen.
fn reuse(pid: Pid) -> Option<Child> {
    let before = (pid.as_raw_nonzero().get() - 1).to_string();
    // Another test may be faster.
    (0..100).find_map(|_| {
        std::fs::write("/proc/sys/kernel/ns_last_pid", &before).ok()?;
        Some(Child::new()).filter(|child| child.0 == pid)
    })
}

#[test]
fn a_process_that_has_the_number_of_a_neighbour_is_left_alone() {
    let mut memory = Box::new([0u8; 64]);
    memory[..HEADER_LEN].copy_from_slice(&header_bytes(1, 2));
    let address = memory.as_mut_ptr().expose_provenance() as u64;
    let child = Child::new();
    let (pid, control) = (child.0, Identity { device: 0, inode: 0, len: 0 });
    let card = Card { rank: 1, size: 2, pid, descriptor: 0, control, address };
    let neighbour = Neighbour::new(card);
    let word = address + HEADER_LEN as u64;
    if let Err(errno) = neighbour.reaches() {
        return eprintln!("SKIPPED: copies between processes are not allowed here: {errno}");
    }
    // SAFETY: only this test looks at the child's memory.
    unsafe { neighbour.copy_to(word, &[9]) }.unwrap();
    let mut found = [0];
    neighbour.copy_from(word, &mut found).unwrap();
    assert_eq!(found, [9]);

    drop(child);
    // SAFETY: as above.
    assert_eq!(unsafe { neighbour.copy_to(word, &[9]) }, Err(Errno::SRCH));
    let Some(stranger) = reuse(pid) else {
        return eprintln!("SKIPPED: /proc/sys/kernel/ns_last_pid cannot be written");
    };
    // SAFETY: as above.
    assert_eq!(unsafe { neighbour.copy_to(word, &[9]) }, Err(Errno::SRCH));
    assert_eq!(neighbour.copy_from(word, &mut [0]), Err(Errno::SRCH));
    cma::read(stranger.0, word, &mut found).unwrap();
    assert_eq!(found, [0], "its memory is as it was");
}

/// Between a look and a copy, a process may end, and another one have its number.
#[test]
fn what_is_read_of_a_process_that_has_ended_by_then_is_an_error() {
    let mut memory = Box::new([0u8; 64]);
    memory[..HEADER_LEN].copy_from_slice(&header_bytes(1, 2));
    let address = memory.as_mut_ptr().expose_provenance() as u64;
    for result in [Ok(()), Err(Errno::FAULT)] {
        let child = Child::new();
        let (pid, control) = (child.0, Identity { device: 0, inode: 0, len: 0 });
        let neighbour =
            Neighbour::new(Card { rank: 1, size: 2, pid, descriptor: 0, control, address });
        if let Err(errno) = neighbour.reaches() {
            return eprintln!("SKIPPED: copies between processes are not allowed here: {errno}");
        }
        assert_eq!(neighbour.read_with(|_| result), result);
        // The read itself succeeds, as one of a stranger does.
        let read = neighbour.read_with(|of| {
            assert_eq!(of, pid);
            drop(child);
            result
        });
        assert_eq!(read, Err(Errno::SRCH));
    }
}

#[test]
fn another_process_is_not_copied_to() {
    let child = Child::new();
    let memory = Box::new([0u8; 64]);
    let address = memory.as_ptr().expose_provenance() as u64;
    let control = Identity { device: 0, inode: 0, len: 0 };
    let card = Card { rank: 1, size: 2, pid: child.0, descriptor: 0, control, address };
    let refused = Neighbour::new(card).reaches();
    assert!(matches!(refused, Err(Errno::SRCH | Errno::PERM | Errno::NOSYS)), "{refused:?}");
}

/// This process, with a segment.
fn own() -> (Neighbour, segment::Segment, PeerPlace) {
    let own =
        segment::Segment::create("rma-test", 4096, 4096, &MemoryLimits::discover(), false).unwrap();
    let pid = rustix::process::getpid();
    let (descriptor, control) = (own.descriptor(), own.identity);
    let neighbour = Neighbour::new(Card { rank: 1, size: 2, pid, descriptor, control, address: 0 });
    let Identity { inode, len, .. } = own.identity;
    let (id, is_arena, segment_len) = (0, false, len);
    let place = PeerPlace {
        is_synchronous: false,
        device: None,
        id,
        descriptor,
        is_arena,
        inode,
        segment_len,
        offset: 0,
        len: 64,
    };
    (neighbour, own, place)
}

#[test]
fn a_segment_is_mapped_once_and_as_what_it_was() {
    let (neighbour, _own, place) = own();
    let import = neighbour.import(place).unwrap();
    let again = neighbour.import(PeerPlace { offset: 64, ..place }).unwrap();
    assert_eq!(import.mapping().base.wrapping_add(64), again.mapping().base);
    for lie in [PeerPlace { is_arena: true, ..place }, PeerPlace { inode: 1, ..place }] {
        let refused = neighbour.import(lie).unwrap_err();
        assert_eq!(refused, ImportError::Malformed(WorldRank(1)));
    }
}

/// What is no longer used is forgotten, but for a few arenas.
#[test]
fn what_is_kept_of_many_segments_is_little() {
    let (neighbour, _own, place) = own();
    for id in 0..200 {
        let is_arena = id % 2 == 0;
        drop(neighbour.import(PeerPlace { id, is_arena, ..place }).unwrap());
        let imports = neighbour.imports.lock().unwrap();
        assert!(imports.known.len() <= 16, "{} are known", imports.known.len());
        assert_eq!(imports.kept.len(), KEPT_ARENAS.min(id as usize / 2 + 1));
    }
}

#[test]
fn the_system_is_asked_now_and_then() {
    let pid = Pid::from_raw(i32::MAX).unwrap();
    let control = Identity { device: 0, inode: 0, len: 0 };
    let missing =
        Neighbour::new(Card { rank: 1, size: 2, pid, descriptor: 0, control, address: 0 });
    assert!(missing.is_there(Duration::from_nanos(1)), "not asked yet");
    assert!(!missing.is_there(LOOK_EVERY));
    assert!(missing.is_there(LOOK_EVERY * 3 / 2), "asked just now");
    assert!(!missing.is_there(LOOK_EVERY * 2));
}
