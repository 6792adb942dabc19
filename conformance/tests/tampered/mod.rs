//! That the oracle sees what is wrong: what ranks saw, changed by a byte.
use rma_conformance::generated::oracle::check;
use rma_conformance::generated::program::Program;
use rma_conformance::generated::record::{Issued, Record, Tried};

/// Changes, one at a time, bytes of what the ranks saw; returns how many the oracle noticed, and
/// how many there were.
pub(crate) fn tamper(program: &Program, records: &[Record]) -> (usize, usize) {
    let (mut noticed, mut tampered) = (0, 0);
    let mut attempt = |change: &dyn Fn(&mut [Record])| {
        let mut changed = records.to_vec();
        change(&mut changed);
        noticed += usize::from(check(program, &changed).is_err());
        tampered += 1;
    };
    let of_record = |record: &Record| {
        record.looks.iter().chain(record.results.values()).map(Vec::len).sum::<usize>()
    };
    // About so many, spread over everything.
    let step = (records.iter().map(of_record).sum::<usize>() / 50).max(1);
    let mut bytes = 0;
    let mut is_next = || {
        bytes += 1;
        bytes % step == 0
    };
    for (rank, record) in records.iter().enumerate() {
        for (look, bytes) in record.looks.iter().enumerate() {
            for at in (0..bytes.len()).filter(|_| is_next()) {
                attempt(&|records| records[rank].looks[look][at] ^= 0x41);
            }
        }
        for (id, bytes) in &record.results {
            for at in (0..bytes.len()).filter(|_| is_next()) {
                let change = |records: &mut [Record]| {
                    let result = records[rank].results.get_mut(id).expect("it is there");
                    result[at] ^= 0x41;
                };
                attempt(&change);
            }
        }
    }
    (noticed, tampered)
}

/// Says, one at a time, of operations that were refused and left that they were issued, and of
/// those that were issued by a try that they were not; returns how many the oracle noticed, and how
/// many there were, of each kind.
pub(crate) fn misstate(program: &Program, records: &[Record]) -> [(usize, usize); 2] {
    let mut counts = [(0, 0); 2];
    for (rank, record) in records.iter().enumerate() {
        for (id, tried) in &record.tried {
            let (kind, issued) = match tried.issued {
                None => (0, Some(Issued::Waiting)),
                Some(Issued::Trying) => (1, None),
                Some(Issued::Waiting) => continue,
            };
            let mut changed = records.to_vec();
            changed[rank].tried.insert(*id, Tried { issued, ..*tried });
            changed[rank].results.remove(id);
            counts[kind].0 += usize::from(check(program, &changed).is_err());
            counts[kind].1 += 1;
        }
    }
    counts
}
