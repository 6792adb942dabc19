//! The table of steps: what `cargo xtask ci` runs, in this order.

/// One step.
pub(super) struct Step {
    /// What `--only` takes.
    pub(super) name: &'static str,
    /// What a failure means.
    pub(super) about: &'static str,
    /// Whether `cargo xtask test` runs it as well.
    pub(super) in_test: bool,
    /// Whether only `--only` runs it, because it takes long.
    pub(super) on_request: bool,
    /// What must be installed.
    pub(super) needs: Option<Need>,
    /// Whether its runs go at the same time, and those of the next step, if that is so, too: each
    /// keeps one core busy, and some wait.
    pub(super) together: bool,
    /// What it runs, one after the other otherwise.
    pub(super) runs: &'static [Run],
}

/// A tool that a step cannot do without: it fails where that is missing.
#[derive(Clone, Copy)]
pub(super) struct Need {
    /// A command that fails where it is missing.
    pub(super) probe: Run,
    /// What installs it.
    pub(super) remedy: &'static str,
}

/// One run of cargo, or of what it has built, in the root of the workspace. Those that build or
/// test crates of it name all of it (`--workspace`): with other features, what they stand on would
/// be built once more. So would it where `xtask` is not among what is built: what macros stand on
/// is its as well, and built otherwise for macros alone.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// What is run.
    pub(super) program: &'static str,
    /// Arguments; `TARGET/` at the start of one stands for the target folder, `FRESH/` for an empty
    /// folder there.
    pub(super) args: &'static [&'static str],
    /// Environment added; `TARGET/` at the start of a value stands for the target folder.
    pub(super) env: &'static [(&'static str, &'static str)],
    /// Fewest tests that must pass in it, so that a filter that matches nothing fails.
    pub(super) tests_at_least: usize,
    /// Whether its tests wait much of the time: twice as many as there are CPUs run at once.
    pub(super) waits: bool,
}

const fn cargo(args: &'static [&'static str]) -> Run {
    Run { program: "cargo", args, env: &[], tests_at_least: 0, waits: false }
}

const fn step(name: &'static str, about: &'static str, runs: &'static [Run]) -> Step {
    Step { name, about, in_test: false, on_request: false, needs: None, together: false, runs }
}

impl Step {
    const fn in_test(self) -> Self {
        Self { in_test: true, ..self }
    }

    const fn on_request(self) -> Self {
        Self { on_request: true, ..self }
    }

    const fn together(self) -> Self {
        Self { together: true, ..self }
    }

    const fn needs(self, need: Need) -> Self {
        Self { needs: Some(need), ..self }
    }
}

impl Run {
    /// The program and its arguments.
    pub(super) fn words(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.program).chain(self.args.iter().copied())
    }

    const fn env(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    const fn tests_at_least(self, tests_at_least: usize) -> Self {
        Self { tests_at_least, ..self }
    }

    const fn waits(self) -> Self {
        Self { waits: true, ..self }
    }
}

const LOOM: &[(&str, &str)] = &[
    ("RUSTFLAGS", "--cfg loom"),
    ("CARGO_TARGET_DIR", "TARGET/loom"),
    ("LOOM_MAX_PREEMPTIONS", "3"),
];
/// Isolation is off for the two variables to arrive; both make Miri's runs short.
const MIRI: &[(&str, &str)] = &[
    ("MIRIFLAGS", "-Zmiri-disable-isolation"),
    ("RMA_SIM_SEEDS", "1"),
    ("PROPTEST_CASES", "4"),
    ("RUST_BACKTRACE", "0"),
];
/// For cases that forget what owns memory: that leaks it, and may do nothing worse.
const MIRI_LEAKING: &[(&str, &str)] = &[
    ("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-ignore-leaks"),
    ("RMA_SIM_SEEDS", "1"),
    ("RUST_BACKTRACE", "0"),
];

/// Crashes of jobs with persistent windows: processes that are killed, disks without power.
macro_rules! crashes {
    ($trials:literal) => {
        &[
            // All of them, as `networks` builds them: of one alone, features are others.
            cargo(&["build", "--workspace", "--bins", "--examples"]),
            cargo(&[
                "test",
                "--workspace",
                "--bin",
                "xtask",
                "--test",
                "persistent_killed",
                "--test",
                "faults",
                "--",
                "killed_at_any_moment",
                "power_cut_at_any_moment",
            ])
            .env(&[("RMA_CRASH_TRIALS", $trials)])
            .tests_at_least(2),
        ]
    };
}

/// Tests between two hosts that each of them makes, whose ranks share a CPU.
macro_rules! between_hosts {
    ($($test:literal),+ $(,)?) => {
        cargo(&[
            "test",
            "--workspace",
            "--bin",
            "xtask",
            "--test",
            "ofi_relay",
            "--",
            "--test-threads=2",
            $($test),+
        ])
    };
}

const MIRI_ITSELF: Need = Need {
    probe: cargo(&["+nightly", "miri", "--version"]),
    remedy: "rustup toolchain install nightly -c miri -c rust-src",
};

/// Unit tests of the core, under Miri.
macro_rules! core_under_miri {
    ($($test:literal),*) => {
        cargo(&["+nightly", "miri", "test", "-p", "rma-core", "--lib", "--", $($test),*])
    };
}

/// Cases of the suite on the simulator, under Miri.
macro_rules! sim_under_miri {
    ($($case:literal),*) => {
        cargo(&[
            "+nightly", "miri", "test", "-p", "rma-conformance", "--test", "sim", "--", $($case),*
        ])
    };
}

/// Builds what [`run_bench`] runs, as `build` does: without an example, which may use what tests
/// do, features are others.
const BENCH: Run = cargo(BUILD_BENCH);
pub(crate) const BUILD_BENCH: &[&str] =
    &["build", "--release", "--workspace", "--bin", "rma-bench", "--example", "wordcount"];

const fn run_bench(args: &'static [&'static str]) -> Run {
    Run { program: "TARGET/release/rma-bench", args, ..cargo(&[]) }
}

/// Every step.
pub(super) const STEPS: &[Step] = &[
    step("fmt", "rustfmt would change something", &[cargo(&["fmt", "--all", "--check"])]),
    step("tidy", "a house rule is broken", &[cargo(&["xtask", "tidy"])]),
    step(
        "spec",
        "a rule has no test, or docs/conformance.md is not up to date",
        &[cargo(&["xtask", "spec", "--check"])],
    ),
    step(
        "clippy",
        "clippy or rustc warns",
        &[
            cargo(&["clippy", "--workspace", "--all-targets", "--", "-Dwarnings"]),
            cargo(&["clippy", "-p", "rma", "--no-default-features", "--", "-Dwarnings"]),
        ],
    ),
    step(
        "build",
        "something does not build",
        // Tests are not built with optimisation: only `test` runs them.
        &[cargo(&["build", "--release", "--workspace", "--lib", "--bins", "--examples"])],
    ),
    step(
        "test",
        "a unit test, integration test or doctest fails",
        &[cargo(&["test", "--workspace"]).tests_at_least(1).waits()],
    )
    .in_test(),
    step(
        "networks",
        "the suite fails over libfabric: beside shared memory, of processes, by its atomics, or \
         where packets are lost",
        // `test` runs it with threads over `tcp` alone. What processes have of their own is how
        // they start, fail and end. Locks, windows and PSCW run between hosts below.
        &[
            cargo(&["test", "--workspace", "--bin", "xtask", "--test", "ofi_mixed"])
                .tests_at_least(550)
                .waits(),
            cargo(&[
                "test",
                "--workspace",
                "--bin",
                "xtask",
                "--test",
                "ofi_processes",
                "--",
                "atomics::",
                "collectives::",
                "detached::",
                "failure::",
                "fence::",
                "flush::",
                "put_get::",
            ])
            .tests_at_least(90)
            .waits(),
            cargo(&[
                "test",
                "--workspace",
                "--bin",
                "xtask",
                "--test",
                "ofi_sockets",
                "--",
                "atomics::",
                "detached::",
                "explained",
            ])
            .tests_at_least(15),
            cargo(&[
                "test",
                "--workspace",
                "--bin",
                "xtask",
                "--test",
                "ofi_shm",
                "--test",
                "ofi_udp",
                "--",
                "atomics::",
                "fence::",
                "generated_programs",
                "lock::",
                "put_get::",
            ])
            .tests_at_least(100),
            cargo(&["build", "--workspace", "--bins", "--examples"]),
            between_hosts![
                "a_cable_that_is",
                "a_firewall",
                "a_row_over_the_wire",
                "a_way_that_is_cut_for_good",
                "atomics::f",
                "examples_over_a_network_that_loses",
                "fence::",
                "flush::",
                "generated_programs",
            ]
            .tests_at_least(25),
            // Where nothing is lost, and where little is carried.
            between_hosts!["lock::", "pscw::", "windows::"]
                .env(&[("RMA_TESTS_WIRE", "cable")])
                .tests_at_least(60),
            between_hosts![
                "a_row_over_the_wire",
                "examples_over_a_network_that_loses",
                "put_get::one_mebibyte",
            ]
            .env(&[("RMA_TESTS_WIRE", "slow")])
            .tests_at_least(3),
        ],
    ),
    step("crashes", "what was committed is not there after a crash", crashes!("1000")),
    step("crashes-all", "the same, in ten times as many trials", crashes!("10000")).on_request(),
    step(
        "loom",
        "an interleaving breaks the ring, the barrier or the lock word",
        &[
            cargo(&["test", "--profile", "loom", "-p", "rma-core", "--lib", "loom"])
                .env(LOOM)
                .tests_at_least(1),
            cargo(&["test", "--profile", "loom", "-p", "rma-transport-shm", "--lib", "loom"])
                .env(LOOM)
                .tests_at_least(1),
            cargo(&["test", "--profile", "loom", "-p", "rma-transport-ofi", "--lib", "loom"])
                .env(LOOM)
                .tests_at_least(4),
        ],
    )
    .together(),
    step(
        "miri",
        "undefined behaviour in what touches memory",
        &[
            // What holds `unsafe`. The cases that are left out count or explore, without any, or
            // are of kernels, which there are none of here.
            core_under_miri!(
                "memory::",
                "engine::budget",
                "engine::outstanding",
                "execute::device",
                "--skip=agree_with_the_definition",
                "--skip=pieces_are_the_row",
                "--skip=a_flood_of_messages"
            )
            .env(MIRI)
            .tests_at_least(70),
            core_under_miri!("window::", "--skip=cannot_ask_without_end", "--skip=do_not_reorder")
                .env(MIRI)
                .tests_at_least(28),
            sim_under_miri!(
                "requests::boxed",
                "requests::dropped",
                "seal::slices",
                "dynamic::raw_memory",
                "batches::last_owners"
            )
            .env(MIRI)
            .tests_at_least(5),
            sim_under_miri!("requests::forgotten").env(MIRI_LEAKING).tests_at_least(1),
        ],
    )
    .together()
    .needs(MIRI_ITSELF),
    step(
        "miri-all",
        "undefined behaviour in the core or the simulator",
        &[
            cargo(&["+nightly", "miri", "test", "-p", "rma-core", "-p", "rma-transport-sim"])
                .env(MIRI)
                .tests_at_least(100),
            // The cases whose buffers are the most intricate; the whole suite would take hours.
            sim_under_miri!(
                "ops::",
                "requests::",
                "seal::",
                "dynamic::",
                "atomics::",
                "--skip=forgotten"
            )
            .env(MIRI)
            .tests_at_least(40),
            sim_under_miri!("requests::forgotten", "seal::forgotten")
                .env(MIRI_LEAKING)
                .tests_at_least(4),
        ],
    )
    .on_request()
    .needs(MIRI_ITSELF),
    step(
        "perf-gate",
        "an operation needs more instructions, system calls, allocations or messages than it may, \
         or arrays of integers lose something or are not combined in transactions",
        &[
            cargo(&["xtask", "perf-gate"]),
            cargo(&["test", "--release", "--workspace", "--test", "arrays"]).tests_at_least(3),
        ],
    ),
    step(
        "doc",
        "rustdoc warns",
        &[
            cargo(&["doc", "-p", "rma", "--no-deps"]).env(&[("RUSTDOCFLAGS", "-Dwarnings")]),
            cargo(&["doc", "--workspace", "--no-deps", "--all-features"])
                .env(&[("RUSTDOCFLAGS", "-Dwarnings")]),
        ],
    ),
    step(
        "api",
        "the public API is not the one of docs/public-api.txt",
        &[cargo(&["xtask", "api", "--check"])],
    ),
    step(
        "package",
        "a crate cannot be packaged, or its package does not build",
        &[cargo(&[
            "package",
            "--workspace",
            "--exclude=xtask",
            "--exclude=rma-bench",
            "--exclude=rma-conformance",
            "--allow-dirty",
            "--quiet",
            // There cargo finds no crate that it takes for one of the same version.
            "--target-dir",
            "FRESH/package",
        ])],
    ),
    step(
        "wordcount",
        "the main job of the README fails",
        &[
            cargo(&[
                "build",
                "--release",
                "--workspace",
                "--bin",
                "rma-run",
                "--example",
                "wordcount",
            ]),
            Run {
                program: "TARGET/release/rma-run",
                args: &["-n", "4", "TARGET/release/examples/wordcount", "."],
                ..cargo(&[])
            },
        ],
    ),
    step(
        "report",
        "a record is damaged, or a table of figures is not what the records say",
        &[BENCH, run_bench(&["report", "--check"])],
    ),
    step("bench", "a benchmark does not run to its end", &[BENCH, run_bench(&["--smoke"])]),
];
