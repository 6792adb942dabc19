//! That the oracle sees what is wrong: what ranks saw, changed by a byte.
use rma_conformance::generated::oracle::check;
use rma_conformance::generated::program::Program;
use rma_conformance::generated::record::Record;

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
