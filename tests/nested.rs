//! Collective calls on a communicator from code that another operation of it calls.
use rma::{CollectiveError, Communicator, Config, Error, Rank, WindowError, local_with};
use std::sync::Mutex;
use std::time::Duration;

type Call = fn(&Communicator) -> Result<(), Error>;

/// Ends a call that waits for the others.
const WATCHDOG: Duration = Duration::from_secs(60);

/// What makes communicators and windows, which ranks tell each other of beside the operations.
const CALLS: [(&str, Call); 5] = [
    ("barrier", |comm| Ok(comm.barrier()?)),
    ("split", |comm| Ok(comm.split(Some(0), 0).map(drop)?)),
    ("split_by_node", |comm| Ok(comm.split_by_node(0).map(drop)?)),
    ("dup", |comm| Ok(comm.dup().map(drop)?)),
    ("a window", |comm| Ok(comm.window(8, 8).allocate().map(drop)?)),
];

/// The others are in the operation: a rank that calls another one hears so at once, and the
/// operation goes on.
#[test]
fn a_closure_calls_nothing_of_its_communicator() {
    for nodes in [1, 2] {
        for (name, call) in CALLS {
            let mut config = Config::default();
            config.nodes = nodes;
            config.wait_timeout = Some(WATCHDOG);
            let found = local_with(config, 4, |universe| {
                let world = universe.world();
                let refused = Mutex::new(None);
                let sum = world.scan(&[1u64; 4], |a: u64, b: u64| {
                    let mut refused = refused.lock().unwrap();
                    if world.rank() == Rank(1) && refused.is_none() {
                        *refused = Some(call(world).unwrap_err());
                    }
                    a + b
                });
                assert_eq!(sum?, [u64::from(world.rank()) + 1; 4]);
                world.barrier()?;
                Ok::<_, Error>(refused.into_inner().unwrap())
            });
            let found: Vec<_> = found.unwrap().into_iter().map(Result::unwrap).collect();
            let nested = |error: &CollectiveError| matches!(error, CollectiveError::Nested { .. });
            assert!(
                match found[1].as_ref().expect("its closure was called") {
                    Error::Collective(error) => nested(error),
                    Error::Window(WindowError::Collective(error)) => nested(error),
                    _ => false,
                },
                "{name} on {nodes} nodes: {:?}",
                found[1]
            );
        }
    }
}
