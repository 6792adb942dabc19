//! Put and get with layouts on both sides (FEATURES A4).
use crate::help::{far, neighbour, pattern, says, still_works, words};
use bytemuck::{Pod, Zeroable};
use rma_core::{Assert, Element, ErrorClass, Layout, LockKind, Order, Rank, RmaError, Universe};

/// Bytes of an element in [`constructed`].
pub(crate) const WIDTH: u64 = 4;

/// Every constructor: six elements, and where they are, in elements, in the order of the type map.
pub(crate) fn constructed<E: Element>() -> Vec<(&'static str, Layout, [i64; 6])> {
    assert_eq!(size_of::<E>() as u64, WIDTH);
    let one = Layout::element::<E>();
    let pair = one.vector(2, 1, 2).unwrap();
    let structure = Layout::structure(&[(8, 1, one.clone()), (16, 1, pair.clone()), (-12, 3, one)]);
    let one = Layout::element::<E>();
    let sub = |sizes: &[u64], subsizes: &[u64], starts: &[u64], order| {
        one.subarray(sizes, subsizes, starts, order).unwrap()
    };
    let nested = pair.resized(0, 16).unwrap().indexed_block(1, &[0, 2, -1]).unwrap();
    let all = vec![
        ("contiguous", one.contiguous(6).unwrap(), [0, 1, 2, 3, 4, 5]),
        ("vector", one.vector(3, 2, 4).unwrap(), [0, 1, 4, 5, 8, 9]),
        ("negative stride", one.vector(3, 2, -4).unwrap(), [0, 1, -4, -3, -8, -7]),
        ("hvector", one.hvector(2, 3, 20).unwrap(), [0, 1, 2, 5, 6, 7]),
        ("indexed", one.indexed(&[(5, 2), (-3, 1), (1, 3)]).unwrap(), [5, 6, -3, 1, 2, 3]),
        ("hindexed", one.hindexed(&[(28, 2), (0, 4)]).unwrap(), [7, 8, 0, 1, 2, 3]),
        ("indexed_block", one.indexed_block(2, &[6, 3, -2]).unwrap(), [6, 7, 3, 4, -2, -1]),
        ("hindexed_block", one.hindexed_block(3, &[16, -8]).unwrap(), [4, 5, 6, -2, -1, 0]),
        ("structure", structure.unwrap(), [2, 4, 6, -3, -2, -1]),
        ("rows", sub(&[4, 5], &[2, 3], &[1, 2], Order::RowMajor), [7, 8, 9, 12, 13, 14]),
        ("columns", sub(&[5, 4], &[3, 2], &[2, 1], Order::ColumnMajor), [7, 8, 9, 12, 13, 14]),
        ("extent", one.resized(0, 12).unwrap().contiguous(6).unwrap(), [0, 3, 6, 9, 12, 15]),
        ("bound", pair.resized(-4, 20).unwrap().contiguous(3).unwrap(), [0, 2, 5, 7, 10, 12]),
        ("nested", nested.contiguous(1).unwrap(), [0, 2, 8, 10, -4, -2]),
        ("clone", nested.clone(), [0, 2, 8, 10, -4, -2]),
        ("not at 0", one.indexed(&[(3, 6)]).unwrap(), [3, 4, 5, 6, 7, 8]),
    ];
    // An interpreter takes its time with all pairs.
    all.into_iter().step_by(if cfg!(miri) { 4 } else { 1 }).collect()
}

/// Elements that a case with [`constructed`] gives each layout, and where in them its position 0
/// is.
pub(crate) const ROOM: u64 = 32;
pub(crate) const ZERO: u64 = 12;

/// Each layout at the origin, to each at the target; gaps stay. S-J1 S-J2 S-J5 S-G12
pub fn put_each_to_each(universe: &Universe) {
    let world = universe.world();
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    let all = constructed::<u32>();
    let window = world.window(all.len() * all.len() * ROOM as usize, WIDTH as usize);
    let window = window.allocate().unwrap();
    let value = |from: Rank, at: usize| from.0 * 1000 + at as u32 + 1;
    let buffer: Vec<u32> = (0..ROOM as usize).map(|at| value(world.rank(), at)).collect();
    let mut expected = vec![0u32; all.len() * all.len() * ROOM as usize];
    let epoch = window.fence(Assert::NONE).unwrap();
    for (i, (_, from, from_at)) in all.iter().enumerate() {
        for (j, (_, to, to_at)) in all.iter().enumerate() {
            let disp = (i * all.len() + j) as u64 * ROOM + ZERO;
            epoch.put(right, to.at(disp), from.of(&buffer).starting_at(ZERO)).unwrap();
            for (from, to) in from_at.iter().zip(to_at) {
                let from = ZERO.strict_add_signed(*from) as usize;
                expected[disp.strict_add_signed(*to) as usize] = value(left, from);
            }
        }
    }
    epoch.end().unwrap();
    let mut part = vec![0u32; expected.len()];
    window.local().read(0, &mut part).unwrap();
    for (k, (part, expected)) in
        part.chunks(ROOM as usize).zip(expected.chunks(ROOM as usize)).enumerate()
    {
        let (from, to) = (all[k / all.len()].0, all[k % all.len()].0);
        assert_eq!(part, expected, "{from} to {to}");
    }
    window.free().unwrap();
}

/// A matrix goes into columns and comes from columns, and into itself turned round. S-J1 S-J2 S-J5
pub fn transposes(universe: &Universe) {
    transpose(universe, |n| n as f64);
    transpose(universe, |n| n as u16);
}

fn transpose<E: Element + PartialEq + core::fmt::Debug>(universe: &Universe, of: fn(usize) -> E) {
    let world = universe.world();
    let (rows, columns) = if cfg!(miri) { (9, 10) } else { (21, 42) };
    let (len, width, right) = (rows * columns, size_of::<E>(), neighbour(world, 1));
    let window = world.window(len, width).allocate().unwrap();
    let all = Layout::element::<E>().contiguous(len as u64).unwrap();
    let column = Layout::element::<E>().vector(columns as u64, 1, rows as i64).unwrap();
    // What is a row here is a column there.
    let turned = column.resized(0, width as i64).unwrap();
    let turned = turned.contiguous(rows as u64).unwrap();
    let (matrix, there): (Vec<E>, Vec<E>) =
        (0..len).map(|at| (of(at), of(at % rows * columns + at / rows))).unzip();
    let epoch = window.lock(right, LockKind::Exclusive).unwrap();
    let mut found = vec![of(0); len];
    let mut expect = |expected: &[E], how| {
        epoch.flush().unwrap();
        epoch.get(0, &mut found).unwrap();
        assert_eq!(found, expected, "{how}");
    };
    epoch.put(turned.at(0), all.of(&matrix)).unwrap();
    expect(&there, "rows to columns");
    epoch.put(0, all.of(&matrix)).unwrap();
    expect(&matrix, "rows to rows");
    epoch.put(0, turned.of(&matrix)).unwrap();
    epoch.flush().unwrap();
    let mut back = vec![of(0); len];
    epoch.get(0, turned.of(&mut back)).unwrap();
    assert_eq!(back, matrix, "rows to columns, what came from columns to rows");
    epoch.put(turned.at(0), turned.of(&there)).unwrap();
    expect(&there, "columns to columns");
    epoch.get(turned.at(0), all.of(&mut back)).unwrap();
    assert_eq!(back, matrix, "columns to rows");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    window.free().unwrap();
}

/// Each layout at the target, to each at the origin; two of each. S-J1 S-J2 S-J5 S-G12
pub fn get_each_to_each(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let all = constructed::<u32>();
    let len = 3 * ROOM as usize;
    let window = world.window(len, WIDTH as usize).allocate().unwrap();
    let value = |at: u64| right.0 * 1000 + at as u32 + 1;
    let mine: Vec<u32> = (0..len as u32).map(|at| world.rank().0 * 1000 + at + 1).collect();
    window.local().write(0, &mine).unwrap();
    let epoch = window.fence(Assert::NONE).unwrap();
    let extent = |layout: &Layout| layout.extent() / WIDTH as i64;
    for (from_name, from, from_at) in &all {
        for (to_name, to, to_at) in &all {
            let mut buffer = vec![7u32; len];
            let mut expected = buffer.clone();
            for copy in 0..2 {
                for (from_at, to_at) in from_at.iter().zip(to_at) {
                    let at = ZERO.strict_add_signed(copy * extent(from) + from_at);
                    let to = ZERO.strict_add_signed(copy * extent(to) + to_at);
                    expected[to as usize] = value(at);
                }
            }
            if overlaps(to_at, extent(to)) {
                continue;
            }
            let origin = to.times(2).of(&mut buffer).starting_at(ZERO);
            epoch.get(right, from.times(2).at(ZERO), origin).unwrap();
            assert_eq!(buffer, expected, "{from_name} to {to_name}");
        }
    }
    epoch.end().unwrap();
    window.free().unwrap();
}

/// Whether two copies share an element.
pub(crate) fn overlaps(at: &[i64; 6], extent: i64) -> bool {
    at.iter().any(|first| at.iter().any(|second| *first == second + extent))
}

/// Many small blocks, few large ones: more than a message holds, in any mixture. S-J1 S-G12
pub fn many_blocks(universe: &Universe) {
    let world = universe.world();
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    let count = if cfg!(miri) { 60u64 } else { 30_000 };
    let byte = Layout::element::<u8>();
    // Every second byte; blocks without a pattern; two blocks; all.
    let uneven: Vec<(i64, u64)> =
        (0..count as i64 / 6).map(|i| (i * 16 + i % 3, 1 + (i as u64 % 2) * 10)).collect();
    let layouts = [
        byte.vector(count, 1, 2).unwrap(),
        byte.indexed(&uneven).unwrap(),
        byte.vector(2, count / 2, count as i64).unwrap(),
        byte.contiguous(count).unwrap(),
    ];
    let len = 3 * count as usize;
    let window = world.window(len * layouts.len().pow(2), 1).allocate().unwrap();
    let epoch = window.lock_all().unwrap();
    let theirs = pattern(world.rank().0, len);
    for (i, from) in layouts.iter().enumerate() {
        for (j, to) in layouts.iter().enumerate() {
            let disp = ((i * layouts.len() + j) * len) as u64;
            epoch.put(right, to.at(disp), from.of(&theirs)).unwrap();
        }
    }
    epoch.flush(right).unwrap();
    for (i, from) in layouts.iter().enumerate() {
        for (j, to) in layouts.iter().enumerate() {
            let disp = ((i * layouts.len() + j) * len) as u64;
            // Back the same way: what was copied comes where it was from, and nothing else.
            let mut back = vec![0xEE; len];
            epoch.get(right, to.at(disp), from.of(&mut back)).unwrap();
            let mut expected = vec![0xEE; len];
            for (at, run) in from.runs(1).unwrap() {
                let run = at as usize..at as usize + run as usize;
                expected[run.clone()].copy_from_slice(&theirs[run]);
            }
            assert!(back == expected, "layouts {i} and {j}");
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    check_blocks(&window, &layouts, &pattern(left.0, len));
    window.free().unwrap();
}

/// The target's side of [`many_blocks`], byte by byte.
fn check_blocks(window: &rma_core::Window, layouts: &[Layout], theirs: &[u8]) {
    let bytes = |layout: &Layout| -> Vec<usize> {
        layout
            .runs(1)
            .unwrap()
            .flat_map(|(at, len)| at as usize..at as usize + len as usize)
            .collect()
    };
    for (k, disp) in (0..layouts.len().pow(2)).map(|k| (k, k * theirs.len())) {
        let (from, to) = (bytes(&layouts[k / layouts.len()]), bytes(&layouts[k % layouts.len()]));
        let (mut part, mut expected) = (vec![0; theirs.len()], vec![0; theirs.len()]);
        window.local().read(disp as u64, &mut part).unwrap();
        from.into_iter().zip(to).for_each(|(from, to)| expected[to] = theirs[from]);
        assert!(part == expected, "layouts {k}");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Particle {
    id: u64,
    place: [f32; 3],
    charge: f32,
}

/// Fields picked out of structs, and spread again at another place. S-J1
pub fn fields_of_structs(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let (float, id) = (Layout::element::<f32>(), Layout::element::<u64>());
    let window = world.window(200, 1).allocate().unwrap();
    // Identity and charge of each particle; at the target identities come first.
    let size = size_of::<Particle>() as i64;
    let fields = Layout::structure(&[(0, 1, id.clone()), (20, 1, float.clone())]).unwrap();
    let fields = fields.resized(0, size).unwrap();
    let packed = Layout::structure(&[(0, 1, id), (40, 1, float)]).unwrap().resized(0, 8).unwrap();
    let particle = |i: u64| Particle { id: i + 5, place: [9.0; 3], charge: i as f32 / 2.0 };
    let particles: Vec<Particle> = (0..4).map(particle).collect();
    let epoch = window.lock(right, LockKind::Exclusive).unwrap();
    epoch.put(packed.times(4).at(0), fields.times(4).of(&particles)).unwrap();
    epoch.flush().unwrap();
    let mut back = vec![Particle::zeroed(); 4];
    epoch.get(packed.times(4).at(0), fields.times(4).of(&mut back)).unwrap();
    for (i, back) in back.into_iter().enumerate() {
        assert_eq!(back, Particle { place: [0.0; 3], ..particle(i as u64) });
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(window.local().load::<[u64; 4]>(0), Ok([5, 6, 7, 8]));
    for i in 0..4 {
        assert_eq!(window.local().load::<[f32; 2]>(40 + i * 8), Ok([i as f32 / 2.0, 0.0]));
    }
    window.free().unwrap();
}

/// The target's displacement unit counts; layouts count in bytes. S-G1 S-J1
pub fn units(universe: &Universe) {
    let world = universe.world();
    let unit = 1usize << (world.rank().0 % 4);
    let window = world.window(160 / unit, unit).allocate().unwrap();
    let right = neighbour(world, 1);
    let pair = Layout::element::<u16>().vector(2, 1, 3).unwrap();
    let theirs = 1u64 << (right.0 % 4);
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(right, pair.at(80 / theirs), pair.of(&[1u16, 2, 3, 4])).unwrap();
    // Ten bytes on, which may be between two units.
    let behind = pair.hindexed(&[(10, 1)]).unwrap();
    epoch.put(right, behind.at(80 / theirs), pair.of(&[5u16, 0, 0, 6])).unwrap();
    epoch.end().unwrap();
    let mut part = [0u16; 80];
    window.local().read(0, &mut part).unwrap();
    let mut expected = [0u16; 80];
    (expected[40], expected[43], expected[45], expected[48]) = (1, 4, 5, 6);
    assert_eq!(part, expected);
    window.free().unwrap();
}

/// Scopes: layouts are dropped before the operations are complete; buffers are filled after. S-J6
pub fn in_scopes(universe: &Universe) {
    let world = universe.world();
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    let window = words(world, 64);
    let mine: Vec<u64> = (0..64).map(|i| u64::from(world.rank()) * 100 + i).collect();
    window.local().write(0, &mine).unwrap();
    world.barrier().unwrap();
    let epoch = window.lock_all().unwrap();
    let (mut first, mut second) = ([0u64; 8], [0u64; 8]);
    let puts = [u64::from(world.rank()) + 7; 3];
    epoch
        .ops(|ops| {
            // Layouts are not borrowed beyond the calls.
            let one = Layout::element::<u64>();
            let (every, other) = (one.vector(4, 1, 3).unwrap(), one.vector(4, 1, 2).unwrap());
            ops.get(right, every.at(1), other.of(&mut first))?;
            ops.get(left, one.times(4).at(20), one.times(4).of(&mut second))?;
            let spread = one.vector(3, 1, -2).unwrap();
            ops.put(right, spread.at(60), one.times(3).of(&puts))
        })
        .unwrap();
    let (r, l) = (u64::from(right) * 100, u64::from(left) * 100);
    assert_eq!(first, [r + 1, 0, r + 4, 0, r + 7, 0, r + 10, 0]);
    assert_eq!(second, [l + 20, l + 21, l + 22, l + 23, 0, 0, 0, 0]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let value = u64::from(left) + 7;
    let mut expected = mine;
    for at in [56, 58, 60] {
        expected[at] = value;
    }
    assert_eq!(crate::help::local_words(&window), expected);
    window.free().unwrap();
}

/// More gets in a scope than may wait packed at once.
pub fn large_scopes(universe: &Universe) {
    let world = universe.world();
    let count = if cfg!(miri) { 30u64 } else { 250_000 };
    let right = neighbour(world, 1);
    let window = world.window(2 * count as usize, 1).allocate().unwrap();
    let theirs = pattern(right.0, 2 * count as usize);
    window.local().write(0, &pattern(world.rank().0, 2 * count as usize)).unwrap();
    world.barrier().unwrap();
    let (odd, dense) =
        (Layout::element::<u8>().vector(count, 1, 2).unwrap(), Layout::element::<u8>());
    let mut buffers = vec![vec![0u8; count as usize]; 6];
    let epoch = window.lock_all().unwrap();
    epoch
        .ops(|ops| {
            for (i, buffer) in buffers.iter_mut().enumerate() {
                ops.get(right, odd.at(i % 2), dense.times(count).of(buffer))?;
            }
            Ok(())
        })
        .unwrap();
    epoch.unlock().unwrap();
    for (i, buffer) in buffers.iter().enumerate() {
        let expected = theirs.iter().skip(i % 2).step_by(2);
        assert!(buffer.iter().eq(expected), "get {i}");
    }
    world.barrier().unwrap();
    window.free().unwrap();
}

/// Nothing to the null target, nothing of nothing, of any types. S-G3 S-G4
pub fn null_and_nothing(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let (word, float) = (Layout::element::<u64>(), Layout::element::<f32>());
    let mut buffer = [5u64; 2];
    let epoch = window.lock_all().unwrap();
    epoch.put(Rank::NULL, word.times(7).at(99), word.times(2).of(&buffer)).unwrap();
    epoch.get(Rank::NULL, word.times(7).at(99), float.times(9).of(&mut buffer)).unwrap();
    for target in world.ranks() {
        let none = [word.times(0), float.times(0)];
        for (there, here) in [(none[0], none[0]), (none[0], none[1]), (none[1], none[0])] {
            epoch.put(target, there.at(2), here.of(&buffer)).unwrap();
            epoch.get(target, there.at(0), here.of(&mut buffer)).unwrap();
        }
        let empty = Layout::structure(&[]).unwrap();
        epoch.put(target, empty.times(u64::MAX).at(1), word.times(0).of(&[0u8; 0])).unwrap();
    }
    epoch.ops(|ops| ops.put(Rank::NULL, word.at(9), word.of(&[1u8]))).unwrap();
    epoch.unlock().unwrap();
    let epoch = window.lock(Rank::NULL, LockKind::Shared).unwrap();
    epoch.put(word.at(0), word.of(&[1u8])).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!((buffer, crate::help::local_words(&window)), ([5; 2], vec![0; 2]));
    window.free().unwrap();
}

/// Layouts that reach beyond the part or the buffer: an error, and nothing changes. S-G8
pub fn out_of_range(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 10);
    let right = neighbour(world, 1);
    let word = Layout::element::<u64>();
    let down = word.vector(3, 1, -2).unwrap();
    let huge = word.hvector(2, 1, i64::MAX - 100).unwrap();
    let mut buffer = [3u64; 40];
    let epoch = window.lock_all().unwrap();
    epoch.put(right, down.at(4), word.times(3).of(&buffer)).unwrap();
    let mut refuse = |disp: u64, layout: &Layout, count: u64| {
        let (there, here) = (layout.times(count), word.times(layout.size() / 8 * count));
        let put = epoch.put(right, there.at(disp), here.of(&buffer)).unwrap_err();
        let get = epoch.get(right, there.at(disp), here.of(&mut buffer)).unwrap_err();
        assert_eq!((put, put.class()), (get, ErrorClass::RmaRange));
        assert!(matches!(put, RmaError::LayoutOutOfRange { .. }), "{put}");
        put
    };
    let window_name = window.id().to_string();
    let error = refuse(3, &down, 1);
    says(&error, &["displacement 3", "unit 8", "-8 to 32", "0 to 80", &window_name]);
    assert!(matches!(error, RmaError::LayoutOutOfRange { low: -8, high: 32, .. }));
    refuse(10, &down, 1);
    refuse(9, &word, 2);
    refuse(0, &word.vector(2, 1, 10).unwrap(), 1);
    refuse(0, &word.resized(0, -8).unwrap(), 2);
    refuse(0, &huge, 1);
    refuse(u64::MAX, &word, 1);
    refuse(u64::MAX / 8 + 2, &word, 1);
    let far = epoch.put(right, word.at(u64::MAX), word.of(&buffer));
    assert!(matches!(far, Err(RmaError::LayoutOutOfRange { .. })), "{far:?}");
    let behind = word.hindexed(&[(313, 1)]).unwrap();
    let outside = [(&down, 1, 0), (&behind, 1, 0), (&word, 41, 0), (&word, 1, 40)];
    for (here, count, start) in outside.into_iter().chain([(&word, 1, u64::MAX)]) {
        let (there, here) = (word.times(here.size() / 8 * count), here.times(count));
        let from = here.of(&buffer).starting_at(start);
        let error = epoch.put(right, there.at(0), from).unwrap_err();
        assert!(matches!(error, RmaError::OriginOutOfRange { len: 320, .. }), "{error}");
        let to = here.of(&mut buffer).starting_at(start);
        let error = epoch.get(right, there.at(0), to).unwrap_err();
        assert!(matches!(error, RmaError::OriginOutOfRange { .. }), "{error}");
    }
    says(
        &epoch.put(right, down.at(0), down.of(&buffer)).unwrap_err(),
        &["-32 to 8", "0 to 320", &window_name],
    );
    assert_eq!(buffer, [3; 40]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(crate::help::local_words(&window), [3, 0, 3, 0, 3, 0, 0, 0, 0, 0]);
    still_works(&window);
    window.free().unwrap();
}

/// Layouts that do not go together. S-G9 S-G10 S-J8
pub fn mismatches(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 10);
    let right = neighbour(world, 1);
    let (word, float, half) =
        (Layout::element::<u64>(), Layout::element::<f64>(), Layout::element::<u32>());
    let mixed = Layout::structure(&[(0, 1, word.clone()), (8, 1, float.clone())]).unwrap();
    let swapped = Layout::structure(&[(0, 1, float.clone()), (8, 1, word.clone())]).unwrap();
    let mut buffer = [3u64; 10];
    let epoch = window.lock_all().unwrap();
    let pairs = [
        (word.times(2), word.times(3)),
        (word.times(2), float.times(2)),
        (word.times(1), half.times(2)),
        (mixed.times(1), swapped.times(1)),
        (mixed.times(2), mixed.times(1)),
        (word.times(1), word.times(0)),
    ];
    for (there, here) in pairs {
        let put = epoch.put(right, there.at(0), here.of(&buffer)).unwrap_err();
        let get = epoch.get(right, there.at(0), here.of(&mut buffer)).unwrap_err();
        assert_eq!((put, put.class()), (get, ErrorClass::Type));
        assert!(matches!(put, RmaError::SignatureMismatch { .. }), "{put}");
    }
    let error = epoch.put(right, word.times(2).at(0), float.times(3).of(&buffer)).unwrap_err();
    says(&error, &["2 × u64", "3 × f64", &window.id().to_string()]);
    // Overlaps: not where they would be written; read they may be.
    let (twice, dense) = (word.vector(3, 2, 1).unwrap(), word.times(6));
    let error = epoch.put(right, twice.at(0), dense.of(&buffer)).unwrap_err();
    assert!(matches!(error, RmaError::Overlap { .. }), "{error}");
    says(&error, &["target's layout of a put", "overlap"]);
    let error = epoch.get(right, dense.at(0), twice.of(&mut buffer)).unwrap_err();
    says(&error, &["origin's layout of a get"]);
    assert_eq!((buffer, error.class()), ([3; 10], ErrorClass::Type));
    epoch.put(right, dense.at(4), twice.of(&[1u64, 2, 3, 4])).unwrap();
    epoch.flush(right).unwrap();
    epoch.get(right, twice.at(4), dense.of(&mut buffer)).unwrap();
    assert_eq!(buffer[..6], [1, 2, 2, 2, 2, 3]);
    let point = word.resized(0, 0).unwrap();
    let error = epoch.put(right, point.at(0), point.times(u64::MAX).of(&buffer)).unwrap_err();
    assert!(matches!(error, RmaError::LayoutTooLarge { .. }), "{error}");
    let error = epoch.put(Rank(77), word.at(0), word.of(&buffer)).unwrap_err();
    assert!(matches!(error, RmaError::NoSuchRank { .. }), "{error}");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// A scope of a lock has one target, with layouts too.
pub fn other_target_of_a_lock(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let word = Layout::element::<u64>();
    let epoch = window.lock(Rank(0), LockKind::Shared).unwrap();
    let mut buffer = [0u64];
    let (put, get) = epoch
        .ops(|ops| {
            let put = ops.put(Rank(1), word.at(0), word.of(&[1u64]));
            Ok((put, ops.get(Rank(1), word.at(0), word.of(&mut buffer))))
        })
        .unwrap();
    assert!(matches!(put, Err(RmaError::NotLocked { .. })), "{put:?}");
    assert!(matches!(get, Err(RmaError::NotLocked { .. })), "{get:?}");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    window.free().unwrap();
}

/// The path does what it says: messages only where load and store do not reach.
pub fn paths(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 64);
    let right = neighbour(world, 1);
    let every = Layout::element::<u64>().vector(20, 1, 3).unwrap();
    // One rank alone: what it answers to others is counted, too.
    if world.rank() == Rank(0) {
        let epoch = window.lock_all().unwrap();
        epoch.put(right, 0, &[1u64]).unwrap();
        epoch.flush(right).unwrap();
        let before = (universe.counters().messages_sent(), window.operation_counts().messages);
        let flat = Layout::element::<u64>();
        epoch.put(right, every.at(0), flat.times(20).of(&[2u64; 20])).unwrap();
        let sent = universe.counters().messages_sent() - before.0;
        // Twenty blocks are one row of one message.
        let by_messages = window.operation_counts().messages - before.1;
        assert!(by_messages == 0 || far(&window, right));
        assert_eq!(sent, by_messages, "messages of a put");
        epoch.unlock().unwrap();
    }
    world.barrier().unwrap();
    window.free().unwrap();
}
