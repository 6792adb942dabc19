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
    for (rank, record) in records.iter().enumerate() {
        for (look, bytes) in record.looks.iter().enumerate() {
            for at in (0..bytes.len()).step_by(61) {
                attempt(&|records| records[rank].looks[look][at] ^= 0x41);
            }
        }
        for (id, bytes) in &record.results {
            for at in (0..bytes.len()).step_by(29) {
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
