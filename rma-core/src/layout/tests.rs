//! Random nested layouts against type maps written out as MPI's chapter 5 does.
use crate::layout::{Row, *};
use proptest::collection::vec;
use proptest::prelude::*;

/// An entry of a type map; `kind` says which element, 255 and 254 are MPI's bound markers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Entry {
    at: i64,
    len: u64,
    align: i64,
    kind: u8,
}

const LOWER: u8 = 254;
const UPPER: u8 = 255;

type Map = Vec<Entry>;

fn bounds_of(map: &Map) -> (i64, i64) {
    let of = |kind: u8| map.iter().filter(move |entry| entry.kind == kind).map(|entry| entry.at);
    let data = || map.iter().filter(|entry| entry.kind < LOWER);
    let lower = of(LOWER).min().or(data().map(|entry| entry.at).min()).unwrap_or(0);
    let natural = || {
        let end = data().map(|entry| entry.at + entry.len as i64).max()?;
        let align = data().map(|entry| entry.align).max()?;
        Some(
            lower
                + (end - lower).div_euclid(align) * align
                + if (end - lower).rem_euclid(align) > 0 { align } else { 0 },
        )
    };
    (lower, of(UPPER).max().or_else(natural).unwrap_or(0))
}

fn extent_of(map: &Map) -> i64 {
    let (lower, upper) = bounds_of(map);
    upper - lower
}

fn shifted(map: &Map, by: i64) -> impl Iterator<Item = Entry> {
    map.iter().map(move |entry| Entry { at: entry.at + by, ..*entry })
}

/// `count` copies, one extent after the other, at `at`.
fn block(map: &Map, count: u64, at: i64) -> Map {
    (0..count as i64).flat_map(|i| shifted(map, at + i * extent_of(map))).collect()
}

/// The bytes of a type map, in its order.
fn bytes_of(map: &Map) -> Vec<i64> {
    let data = map.iter().filter(|entry| entry.kind < LOWER);
    data.flat_map(|entry| entry.at..entry.at + entry.len as i64).collect()
}

fn kinds_of(map: &Map) -> Vec<u8> {
    map.iter().map(|entry| entry.kind).filter(|kind| *kind < LOWER).collect()
}

#[derive(Debug, Clone)]
enum Spec {
    Of(u8),
    Contiguous(u64, Box<Spec>),
    Vector(u64, u64, i64, Box<Spec>),
    Hvector(u64, u64, i64, Box<Spec>),
    Indexed(Vec<(i64, u64)>, Box<Spec>),
    Hindexed(Vec<(i64, u64)>, Box<Spec>),
    IndexedBlock(u64, Vec<i64>, Box<Spec>),
    HindexedBlock(u64, Vec<i64>, Box<Spec>),
    Structure(Vec<(i64, u64, Spec)>),
    /// Size, subsize and start of each dimension.
    Subarray(Vec<(u64, u64, u64)>, bool, Box<Spec>),
    Resized(i64, i64, Box<Spec>),
}

fn specs() -> impl Strategy<Value = Spec> {
    let leaf = (0u8..5).prop_map(Spec::Of);
    let dimension = (0u64..4, 0u64..3, 0u64..3)
        .prop_map(|(sub, before, after)| (before + sub + after, sub, before));
    leaf.prop_recursive(4, 24, 4, move |inner| {
        let boxed = inner.clone().prop_map(Box::new);
        let blocks = || vec((-6i64..7, 0u64..4), 0..4);
        let places = || vec(-20i64..21, 0..4);
        prop_oneof![
            (0u64..5, boxed.clone()).prop_map(|(n, of)| Spec::Contiguous(n, of)),
            (0u64..5, 0u64..4, -4i64..5, boxed.clone())
                .prop_map(|(n, len, stride, of)| Spec::Vector(n, len, stride, of)),
            (0u64..5, 0u64..4, -40i64..41, boxed.clone())
                .prop_map(|(n, len, stride, of)| Spec::Hvector(n, len, stride, of)),
            (blocks(), boxed.clone()).prop_map(|(blocks, of)| Spec::Indexed(blocks, of)),
            (blocks(), boxed.clone()).prop_map(|(blocks, of)| Spec::Hindexed(blocks, of)),
            (0u64..4, places(), boxed.clone())
                .prop_map(|(n, at, of)| Spec::IndexedBlock(n, at, of)),
            (0u64..4, places(), boxed.clone())
                .prop_map(|(n, at, of)| Spec::HindexedBlock(n, at, of)),
            vec((-30i64..31, 0u64..3, inner), 0..4).prop_map(Spec::Structure),
            (vec(dimension.clone(), 1..4), any::<bool>(), boxed.clone())
                .prop_map(|(dimensions, row_major, of)| Spec::Subarray(dimensions, row_major, of)),
            (-20i64..21, -50i64..51, boxed).prop_map(|(low, len, of)| Spec::Resized(low, len, of)),
        ]
    })
}

impl Spec {
    /// The layout and its type map; `None` if that is too long to write out.
    fn build(&self) -> Option<(Layout, Map)> {
        let (layout, map) = match self {
            Self::Of(kind) => {
                let (layout, len) = match kind {
                    0 => (Layout::element::<u8>(), 1),
                    1 => (Layout::element::<u16>(), 2),
                    2 => (Layout::element::<f32>(), 4),
                    3 => (Layout::element::<f64>(), 8),
                    _ => (Layout::element::<[u8; 3]>(), 3),
                };
                let align = if *kind < 4 { len as i64 } else { 1 };
                (layout, vec![Entry { at: 0, len, align, kind: *kind }])
            }
            Self::Contiguous(n, of) => {
                let (layout, map) = of.build()?;
                (layout.contiguous(*n).unwrap(), block(&map, *n, 0))
            }
            Self::Vector(n, len, stride, of) => {
                let (layout, map) = of.build()?;
                let step = stride * extent_of(&map);
                let blocks = (0..*n as i64).flat_map(|i| block(&map, *len, i * step));
                (layout.vector(*n, *len, *stride).unwrap(), blocks.collect())
            }
            Self::Hvector(n, len, stride, of) => {
                let (layout, map) = of.build()?;
                let blocks = (0..*n as i64).flat_map(|i| block(&map, *len, i * stride));
                (layout.hvector(*n, *len, *stride).unwrap(), blocks.collect())
            }
            Self::Indexed(at, of) => {
                let (layout, map) = of.build()?;
                let extent = extent_of(&map);
                let blocks = at.iter().flat_map(|(at, len)| block(&map, *len, at * extent));
                (layout.indexed(at).unwrap(), blocks.collect())
            }
            Self::Hindexed(at, of) => {
                let (layout, map) = of.build()?;
                let blocks = at.iter().flat_map(|(at, len)| block(&map, *len, *at));
                (layout.hindexed(at).unwrap(), blocks.collect())
            }
            Self::IndexedBlock(len, at, of) => {
                let (layout, map) = of.build()?;
                let extent = extent_of(&map);
                let blocks = at.iter().flat_map(|at| block(&map, *len, at * extent));
                (layout.indexed_block(*len, at).unwrap(), blocks.collect())
            }
            Self::HindexedBlock(len, at, of) => {
                let (layout, map) = of.build()?;
                let blocks = at.iter().flat_map(|at| block(&map, *len, *at));
                (layout.hindexed_block(*len, at).unwrap(), blocks.collect())
            }
            Self::Structure(fields) => structure(fields)?,
            Self::Subarray(dimensions, row_major, of) => subarray(dimensions, *row_major, of)?,
            Self::Resized(low, len, of) => {
                let (layout, map) = of.build()?;
                (layout.resized(*low, *len).unwrap(), marked(map, *low, low + len))
            }
        };
        (map.len() <= 3000).then_some((layout, map))
    }
}

fn marked(map: Map, lower: i64, upper: i64) -> Map {
    let mut map: Map = map.into_iter().filter(|entry| entry.kind < LOWER).collect();
    map.push(Entry { at: lower, len: 0, align: 1, kind: LOWER });
    map.push(Entry { at: upper, len: 0, align: 1, kind: UPPER });
    map
}

fn structure(fields: &[(i64, u64, Spec)]) -> Option<(Layout, Map)> {
    let (mut layouts, mut map) = (Vec::new(), Map::new());
    for (at, count, of) in fields {
        let (layout, of) = of.build()?;
        layouts.push((*at, *count, layout));
        map.extend(block(&of, *count, *at));
    }
    Some((Layout::structure(&layouts).unwrap(), map))
}

/// By indices: element (i, j, k) of the subarray is element (i + start, …) of the array.
fn subarray(dimensions: &[(u64, u64, u64)], row_major: bool, of: &Spec) -> Option<(Layout, Map)> {
    let (layout, element) = of.build()?;
    let extent = extent_of(&element);
    let list =
        |field: fn(&(u64, u64, u64)) -> u64| -> Vec<u64> { dimensions.iter().map(field).collect() };
    let (sizes, subsizes, starts) = (list(|d| d.0), list(|d| d.1), list(|d| d.2));
    let order = if row_major { Order::RowMajor } else { Order::ColumnMajor };
    let layout = layout.subarray(&sizes, &subsizes, &starts, order).unwrap();
    // The fastest dimension first.
    let mut fast = dimensions.to_vec();
    if row_major {
        fast.reverse();
    }
    let mut indices = vec![0u64];
    let mut step = 1;
    for (size, subsize, start) in &fast {
        let outer = (*start..start + subsize)
            .flat_map(|i| indices.iter().map(move |inner| inner + i * step).collect::<Vec<_>>());
        indices = outer.collect();
        step *= size;
    }
    let map = indices.iter().flat_map(|i| shifted(&element, *i as i64 * extent)).collect();
    Some((layout, marked(map, 0, step as i64 * extent)))
}

fn bytes_of_layout(layout: &Layout, count: u64) -> Vec<i64> {
    let runs = layout.runs(count).unwrap();
    runs.flat_map(|(at, len)| at..at + len as i64).collect()
}

fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 8 } else { 2000 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// A buffer in which the bytes have places from 0 on, and that start.
fn room(bytes: &[i64]) -> (usize, u64) {
    let low = bytes.iter().min().map_or(0, |low| (-low).max(0));
    let end = bytes.iter().max().map_or(0, |high| high + low + 1);
    (end.max(0) as usize, low as u64)
}

proptest! {
    #![proptest_config(config())]

    /// Bounds, size, order of bytes, span. S-J1 S-J2 S-J5
    #[test]
    fn layouts_are_their_type_maps(spec in specs(), count in 0u64..4) {
        let Some((layout, map)) = spec.build() else { return Ok(()) };
        let (lower, upper) = bounds_of(&map);
        prop_assert_eq!((layout.lower_bound(), layout.upper_bound()), (lower, upper));
        prop_assert_eq!(layout.extent(), upper - lower);
        let once = bytes_of(&map);
        prop_assert_eq!(layout.size(), once.len() as u64);
        if let (Some(low), Some(high)) = (once.iter().min(), once.iter().max()) {
            prop_assert_eq!(layout.true_lower_bound(), *low);
            prop_assert_eq!(layout.true_extent(), (high - low + 1) as u64);
        }
        let all = bytes_of(&block(&map, count, 0));
        prop_assert_eq!(&bytes_of_layout(&layout, count), &all);
        let span = all.iter().min().map(|low| (*low, all.iter().max().unwrap() + 1));
        prop_assert_eq!(layout.span(count).unwrap(), span);
        let mut sorted = all.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let twice = sorted.len() < all.len();
        prop_assert!(!layout.placed(count).overlaps() || twice, "refused without reason");
    }

    /// Alignment is that of the elements, wherever they stand. S-H14
    #[test]
    fn alignment_is_that_of_each_element(spec in specs(), count in 0u64..4, start in 0u64..9) {
        let Some((layout, map)) = spec.build() else { return Ok(()) };
        let all = block(&map, count, start as i64);
        for align in [1, 2, 4, 8] {
            let data = |entry: &&Entry| entry.kind < LOWER && entry.len > 0;
            let aligned = all.iter().filter(data).all(|entry| entry.at % align == 0);
            let placed = layout.placed(count);
            prop_assert_eq!(placed.starting_at(start).is_aligned(0, align as usize), aligned);
            prop_assert_eq!(placed.is_aligned(start, align as usize), aligned);
        }
    }

    /// Packing gives the bytes in order, unpacking puts them back, gaps stay. S-G12
    #[test]
    fn unpacking_undoes_packing(spec in specs(), count in 0u64..3, cut in 1u64..40) {
        let Some((layout, map)) = spec.build() else { return Ok(()) };
        let all = bytes_of(&block(&map, count, 0));
        let (len, start) = room(&all);
        let origin: Vec<u8> = (0..len).map(|i| (i * 31 + i / 256) as u8).collect();
        let placed = layout.placed(count).starting_at(start);
        // In pieces, as messages are.
        let (mut cursor, mut packed) = (Cursor::new(placed), Vec::new());
        while packed.len() < all.len() {
            let before = packed.len();
            packed.resize(all.len().min(before + cut as usize), 0);
            pack(&mut cursor, &origin, &mut packed[before..]);
        }
        let expected: Vec<u8> = all.iter().map(|at| origin[(at + start as i64) as usize]).collect();
        prop_assert_eq!(&packed, &expected);
        let (mut cursor, mut other) = (Cursor::new(placed), vec![0xEE; len]);
        for piece in packed.chunks(cut as usize) {
            unpack(&mut cursor, piece, &mut other);
        }
        for at in 0..len {
            let there = all.contains(&(at as i64 - start as i64));
            prop_assert_eq!(other[at], if there { origin[at] } else { 0xEE }, "byte {}", at);
        }
    }

    /// Two layouts of the same bytes, walked together.
    #[test]
    fn pairs_follow_both_type_maps(a in specs(), b in specs(), counts in (1u64..4, 1u64..4)) {
        let (Some((a, map_a)), Some((b, map_b))) = (a.build(), b.build()) else { return Ok(()) };
        let expected_a = bytes_of(&block(&map_a, counts.0, 0));
        let expected_b = bytes_of(&block(&map_b, counts.1, 0));
        let (mut x, mut y) = (Cursor::new(a.placed(counts.0)), Cursor::new(b.placed(counts.1)));
        let (mut bytes_a, mut bytes_b) = (Vec::new(), Vec::new());
        let flat = |row: Row, bytes: &mut Vec<i64>| {
            bytes.extend(row.starts().flat_map(|at| at..at + row.len as i64));
        };
        while let Some((plane_a, plane_b)) = next_planes(&mut x, &mut y) {
            prop_assert!(plane_a.matches(plane_b));
            prop_assert!(plane_a.times > 0 && plane_a.row.len > 0 && plane_a.row.count > 0);
            plane_a.rows().for_each(|row| flat(row, &mut bytes_a));
            plane_b.rows().for_each(|row| flat(row, &mut bytes_b));
        }
        // Until the shorter one ends.
        let len = expected_a.len().min(expected_b.len());
        prop_assert_eq!(&bytes_a[..], &expected_a[..len]);
        prop_assert_eq!(&bytes_b[..], &expected_b[..len]);
        let same = kinds_of(&block(&map_a, counts.0, 0)) == kinds_of(&block(&map_b, counts.1, 0));
        prop_assert_eq!(a.placed(counts.0).matches(&b.placed(counts.1)), same);
    }
}

/// What belongs together becomes one: programs are short. (Not an optimisation alone: the kernels
/// work on rows.)
#[test]
fn programs_are_compact() {
    let byte = Layout::element::<u8>();
    let rows = |layout: &Layout, count| {
        let mut cursor = Cursor::new(layout.placed(count));
        core::iter::from_fn(|| cursor.take(u64::MAX)).collect::<Vec<_>>()
    };
    let one = |len| vec![Row { at: 0, stride: 0, len, count: 1 }];
    let dense = Layout::element::<f64>().contiguous(8).unwrap().vector(3, 2, 2).unwrap();
    assert_eq!(rows(&dense, 1), one(384));
    assert_eq!(rows(&dense, 10), one(3840));
    let strided = byte.vector(1000, 1, 2).unwrap();
    let row = Row { at: 0, stride: 2, len: 1, count: 1000 };
    assert_eq!(rows(&strided, 1), [row]);
    assert_eq!(rows(&strided.resized(0, 2000).unwrap(), 3), [Row { count: 3000, ..row }]);
    assert_eq!(
        rows(&byte.indexed_block(1, &[5, 8, 11]).unwrap(), 1),
        [Row { at: 5, stride: 3, len: 1, count: 3 }]
    );
    assert_eq!(rows(&byte.indexed(&[(0, 4), (4, 4), (8, 1)]).unwrap(), 1), one(9));
    let halves = byte.hindexed(&[(0, 2), (2, 3), (9, 1)]).unwrap();
    assert_eq!(halves.runs(1).unwrap().collect::<Vec<_>>(), [(0, 5), (9, 1)]);
    let nested = byte.vector(4, 1, 2).unwrap().resized(0, 8).unwrap().contiguous(9).unwrap();
    assert_eq!(rows(&nested, 1), [Row { count: 36, ..row }]);
}

/// Position 0 may lie before the buffer, if no byte does: absolute addresses are such positions.
#[test]
fn positions_count_from_anywhere() {
    let word = Layout::element::<u64>();
    let pair = word.vector(2, 1, 2).unwrap();
    let nested = pair.resized(0, 40).unwrap().contiguous(3).unwrap();
    let mixed = Layout::structure(&[(0, 1, pair.clone()), (24, 1, word.clone())]).unwrap();
    let runs = word.hindexed(&[(0, 2), (40, 1)]).unwrap();
    for layout in [word, pair, nested, mixed, runs] {
        for count in [1, 2, 7] {
            let rows = |placed: PlacedLayout<'_>| -> Vec<Row> {
                let mut cursor = Cursor::new(placed);
                core::iter::from_fn(|| cursor.take(u64::MAX)).collect()
            };
            let expected = rows(layout.placed(count).starting_at(16));
            for address in [17, 1 << 40, i64::MAX - 1000] {
                let there = layout.hindexed(&[(address, 1)]).unwrap();
                let start = 16u64.wrapping_sub(address as u64);
                let placed = there.placed(count).starting_at(start);
                assert_eq!(rows(placed), expected, "{layout:?} at {address}");
                let row = placed.only_row(0);
                let pair = row.and_then(|row| only_pair(row, row));
                assert!(pair.is_none(), "the long way checks");
            }
        }
    }
}

/// S-J9
#[test]
fn large_counts() {
    let byte = Layout::element::<u8>();
    let far = byte.hvector(2, 1, 5i64 << 30).unwrap();
    assert_eq!((far.size(), far.extent()), (2, (5 << 30) + 1));
    assert_eq!(far.runs(1).unwrap().collect::<Vec<_>>(), [(0, 1), (5 << 30, 1)]);
    let many = Layout::element::<u64>().vector(1u64 << 40, 1, 2).unwrap();
    assert_eq!((many.size(), many.extent()), (8 << 40, (16 << 40) - 8));
    assert_eq!(many.signature(1 << 10).count, 1 << 50);
    assert_eq!(many.span(4).unwrap(), Some((0, (64 << 40) - 32)));
    let sub = byte.subarray(&[1 << 33, 1 << 20], &[1, 3], &[1 << 32, 7], Order::RowMajor).unwrap();
    assert_eq!(sub.runs(1).unwrap().collect::<Vec<_>>(), [((1 << 52) + 7, 3)]);
    assert_eq!(sub.extent(), 1 << 53);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (byte, word) = (Layout::element::<u8>(), Layout::element::<u64>());
    let overflows = |layout: Result<Layout, LayoutError>| {
        assert!(matches!(layout, Err(LayoutError::Overflow { .. })), "{layout:?}");
    };
    overflows(word.contiguous(u64::MAX));
    overflows(word.contiguous(1u64 << 60));
    overflows(byte.contiguous(1u64 << 63));
    overflows(word.vector(3, 1, i64::MAX));
    overflows(word.vector(3, 1, i64::MIN));
    overflows(byte.hvector(3, 1, i64::MAX));
    overflows(byte.hvector(u64::MAX, 1, 0));
    overflows(word.indexed(&[(i64::MAX, 1)]));
    overflows(byte.hindexed(&[(i64::MAX, 2)]));
    overflows(byte.hindexed(&[(i64::MIN, 1), (i64::MAX - 1, 1)]));
    overflows(byte.resized(i64::MAX, 1));
    overflows(byte.resized(0, i64::MAX).and_then(|wide| wide.contiguous(3)));
    overflows(byte.subarray(&[1 << 40, 1 << 40], &[1, 1], &[1, 0], Order::RowMajor));
    overflows(Layout::structure(&[(0, 1 << 62, byte.clone()), (0, 1 << 62, byte.clone())]));
    assert!(byte.resized(0, i64::MAX / 2).unwrap().span(9).is_err());
    assert!(matches!(
        byte.subarray(&[4], &[3], &[2], Order::RowMajor),
        Err(LayoutError::OutsideArray { dimension: 0, size: 4, subsize: 3, start: 2 })
    ));
    let start = byte.subarray(&[4, 4], &[3, 1], &[0, u64::MAX], Order::ColumnMajor);
    assert!(matches!(start, Err(LayoutError::OutsideArray { dimension: 1, .. })));
    let lists = byte.subarray(&[4], &[3, 1], &[0], Order::RowMajor);
    assert!(matches!(lists, Err(LayoutError::Dimensions { sizes: 1, subsizes: 2, starts: 1 })));
    assert!(byte.subarray(&[], &[], &[], Order::RowMajor).is_err());
    // A tower of layouts that do not merge: refused before it can exhaust the stack.
    let mut tower = byte;
    let error = loop {
        match tower.hvector(1, 1, 1).and_then(|t| t.hindexed(&[(0, 1), (-7, 1)])) {
            Ok(next) => tower = next.resized(0, 3).unwrap(),
            Err(error) => break error,
        }
    };
    assert_eq!(error, LayoutError::Overflow { what: "the size" });
    let (mut tower, mut levels) = (Layout::element::<u8>(), 0);
    let error = loop {
        // The next level of a ruler: never regular, always two.
        match Layout::structure(&[(0, 1, tower.clone()), (1 << 20, 1, Layout::element::<u8>())]) {
            Ok(next) => (tower, levels) = (next.resized(0, 1).unwrap(), levels + 1),
            Err(error) => break error,
        }
        assert!(levels < 1000);
    };
    assert_eq!(error, LayoutError::TooDeep { limit: 64 });
}

/// S-G3 S-J8
#[test]
fn nothing_and_overlaps() {
    let word = Layout::element::<u64>();
    let nothing = [
        Layout::element::<[u64; 0]>(),
        word.contiguous(0).unwrap(),
        word.vector(4, 0, 3).unwrap(),
        word.indexed(&[]).unwrap(),
        Layout::structure(&[(5, 0, word.clone())]).unwrap(),
    ];
    for layout in nothing {
        assert_eq!((layout.size(), layout.extent()), (0, 0));
        assert_eq!(layout.span(u64::MAX).unwrap(), None);
        assert_eq!(layout.runs(3).unwrap().count(), 0);
        assert!(!layout.placed(9).overlaps() && layout.placed(3).matches(&word.placed(0)));
    }
    assert!(word.vector(3, 2, 1).unwrap().placed(1).overlaps());
    assert!(word.hvector(2, 1, 7).unwrap().placed(1).overlaps());
    assert!(word.hvector(2, 1, -7).unwrap().placed(1).overlaps());
    assert!(word.indexed(&[(3, 1), (0, 4)]).unwrap().placed(1).overlaps());
    assert!(word.resized(0, 4).unwrap().placed(2).overlaps());
    assert!(!word.resized(0, 4).unwrap().placed(1).overlaps());
    assert!(word.resized(0, 0).unwrap().vector(2, 1, 1).unwrap().placed(1).overlaps());
    assert!(!word.vector(3, 1, -1).unwrap().placed(1).overlaps());
    // Interleaved columns do not.
    let column = word.vector(3, 1, 4).unwrap().resized(0, 8).unwrap();
    assert!(!column.contiguous(4).unwrap().placed(1).overlaps());
}
