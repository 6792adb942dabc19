//! The threads of progress agents. Alone in its process, so that it can count them.
use rma::{Config, LockKind, ProgressAgent, Rank};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

/// The agents of this process, by name.
fn agents() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // A thread may end between the two looks.
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let mut agents: Vec<String> = names.map(|name| name.trim().to_owned()).collect();
    agents.retain(|name| name.starts_with("rma-agent"));
    agents.sort_unstable();
    agents
}

fn config(path: &str, progress_agent: ProgressAgent) -> Config {
    let mut config = Config::default();
    config.progress_agent = progress_agent;
    config.hint("rma_path", path).unwrap();
    config
}

/// The agents that run once two windows are made, of which there are at least so many.
fn counted(path: &str, progress_agent: ProgressAgent, least: usize) -> Vec<String> {
    let all = rma::local_with(config(path, progress_agent), 3, |universe| {
        let world = universe.world();
        assert_eq!(agents().len(), 0, "before the first window");
        world.barrier().unwrap();
        let window = world.window(1, 8).allocate().unwrap();
        let second = world.window(1, 8).allocate().unwrap();
        // All have made theirs, and none leaves. A thread names itself a little later.
        world.barrier().unwrap();
        while agents().len() < least {
            thread::yield_now();
        }
        let agents = agents();
        world.barrier().unwrap();
        second.free().unwrap();
        window.free().unwrap();
        universe.finalize().unwrap();
        agents
    });
    let all = all.unwrap();
    assert_eq!((&all[1], &all[2]), (&all[0], &all[0]));
    all[0].clone()
}

#[test]
fn agents_live_as_long_as_they_are_needed() {
    let none = Vec::<String>::new();
    assert_eq!(counted("auto", ProgressAgent::Auto, 0), none);
    assert_eq!(counted("messages", ProgressAgent::Never, 0), none);
    let three = ["rma-agent-0", "rma-agent-1", "rma-agent-2"];
    assert_eq!(counted("messages", ProgressAgent::Auto, 3), three);
    assert_eq!(agents(), none, "all are joined");

    // Universes that are dropped while their windows live, and while a panic unwinds.
    let messages = config("messages", ProgressAgent::Auto);
    let run = || {
        rma::local_with(messages, 2, |universe| {
            let window = universe.world().window(1, 8).allocate().unwrap();
            let epoch = window.lock(Rank(1), LockKind::Shared).unwrap();
            epoch.put(0, &[1u64]).unwrap();
            epoch.unlock().unwrap();
            universe.world().barrier().unwrap();
            assert_ne!(window.rank(), Rank(1), "on purpose");
            drop(universe);
            drop(window);
        })
    };
    let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("on purpose"));
    assert_eq!(agents(), none, "nor are they left by a panic");
}
