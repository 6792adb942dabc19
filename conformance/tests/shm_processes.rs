//! The suite on shared memory, with ranks as real processes.
use processes::{Processes, Settings};

mod backings;
mod generated;
mod processes;

struct Shm;

impl Settings for Shm {}

type ShmProcesses = Processes<Shm>;

rma_conformance::suite!(ShmProcesses);

backings::all!(ShmProcesses);

/// Generated programs.
#[test]
fn generated_programs() {
    processes::play::<Shm>("shm_processes", 400);
}
