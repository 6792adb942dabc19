//! Settings: where they come from, which goes before which, and what is said of that.
use rma::{Builder, Config, RmaError, Source, StartError, Universe, WindowError, local_with};
use rma_launcher::run::{Output, RankOutput, Report, Spec, run};
use std::time::Duration;

/// A job of so many ranks of a test of this program, with what `ask` asks for.
fn job(test: &str, ranks: u32, set: impl FnOnce(&mut Spec)) -> Report {
    let mut spec = Spec::new(std::env::current_exe().unwrap(), ranks);
    spec.args = ["--exact", test, "--nocapture"].map(Into::into).to_vec();
    spec.output = Output::Capture;
    spec.oversubscribe = true;
    spec.timeout = Some(Duration::from_secs(300));
    set(&mut spec);
    let report = run(&spec).unwrap();
    assert_eq!(report.exit_code(), 0, "{report:#?}");
    assert!(report.output.iter().all(passed), "{report:#?}");
    report
}

/// Whether a rank has run the test.
fn passed(output: &RankOutput) -> bool {
    String::from_utf8_lossy(&output.stdout).contains("1 passed")
}

fn expect(text: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(text.contains(part), "{part:?} is not in {text}"));
}

/// A name that no library knows may be that of a transport which the program has.
#[test]
fn a_transport_that_the_program_does_not_have() {
    let mut config = Config::default();
    config.set("transport", "pigeon").unwrap();
    let error = local_with(config, 1, drop).unwrap_err();
    assert!(matches!(&error, StartError::NoTransport { name } if name == "pigeon"), "{error}");
    expect(&error.to_string(), &["transport pigeon", "has shm", "ofi"]);
}

/// Options go before files, files before the program, the program before the defaults; `explain`
/// says so of each.
#[test]
fn the_command_line_goes_before_the_program() {
    if rma_launcher::is_launched() {
        let settings = [
            ("outstanding_messages", "5"),
            ("credit_messages", "6"),
            ("unexpected_bytes", "5 MiB"),
        ];
        let program = settings
            .into_iter()
            .try_fold(Builder::new(), |builder, (key, value)| builder.config(key, value));
        let universe = program.unwrap().initialize().unwrap();
        expect(
            &universe.explain(),
            &[
                "setting: outstanding_messages = 7 (rma-run --config)\n",
                "setting: credit_messages = 6 (program)\n",
                "setting: eager_bytes = 32 KiB (file job.conf)\n",
                "setting: unexpected_bytes = 6 MiB (file job.conf)\n",
                "setting: wait_timeout = 100s (rma-run --wait-timeout)\n",
                "setting: progress_agent = never (rma-run --no-progress-agent)\n",
                "setting: rma_count = true (rma-run --hint)\n",
                "settings at their defaults: cpus = auto, nodes = 1, transport = shm, \
                 provider = auto, naps = true",
            ],
        );
        let window = universe.world().window(1, 8).allocate().unwrap();
        assert_eq!(window.get_info("rma_eager_bytes").as_deref(), Some("32 KiB"));
        assert_eq!(window.get_info("rma_count").as_deref(), Some("true"));
        window.free().unwrap();
        return universe.finalize().unwrap();
    }
    job("the_command_line_goes_before_the_program", 2, |spec| {
        let lines =
            "outstanding_messages = 8\neager_bytes = 32 KiB # more\nunexpected_bytes = 6 MiB\n";
        spec.config.set_lines(lines, "job.conf").unwrap();
        let option = Source::CommandLine("--config".into());
        spec.config.set_by("outstanding_messages", "7", option).unwrap();
        spec.hints = vec![("rma_count".to_owned(), "true".to_owned())];
        spec.wait_timeout = Some(Duration::from_secs(100));
        spec.progress_agent = false;
    });
}

/// What the job wishes and windows of a kind cannot have is said once, whatever ranks and windows
/// there are. What a window asks for itself is refused, also if the job wishes the same.
#[test]
fn a_wish_in_vain_is_said_once() {
    if rma_launcher::is_launched() {
        let universe = rma::initialize().unwrap();
        let (world, odd) = (universe.world(), universe.world().split(Some(0), 0).unwrap());
        for comm in [world, &odd.unwrap()] {
            for _ in 0..3 {
                comm.window(0, 1).create_dynamic().unwrap().free().unwrap();
            }
            let own = comm.window(0, 1).hint("rma_path", "cma").unwrap();
            assert!(matches!(own.create_dynamic(), Err(WindowError::NoPath { .. })));
        }
        // Only rank 0 asks for it itself: that is enough.
        let mut builder = world.window(0, 1);
        if world.rank() == rma::Rank(0) {
            builder = builder.hint("rma_path", "cma").unwrap();
        }
        assert!(matches!(builder.create_dynamic(), Err(WindowError::NoPath { .. })));
        let sizes = world.window(world.rank().0 as usize, 8).allocate().unwrap();
        expect(&sizes.explain(), &["same_size=true, which the job wishes"]);
        sizes.free().unwrap();
        return universe.finalize().unwrap();
    }
    let report = job("a_wish_in_vain_is_said_once", 3, |spec| {
        let hints = [("rma_path", "cma"), ("same_size", "true")];
        spec.hints = hints.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    });
    let said = |part: &str| report.notes.iter().filter(|note| note.contains(part)).count();
    assert_eq!((said("attached memory: windows made by dynamic"), said("same_size=true")), (1, 1));
}

/// Ranks that are to have the same find out at once that they have not, and which setting it is.
#[test]
fn ranks_have_the_same_where_they_must() {
    if rma_launcher::is_launched() {
        let mut config = Config::default();
        let rank: u64 = std::env::var("RMA_RANK").unwrap().parse().unwrap();
        config.collective_bytes = 1000 + rank;
        let error = rma::initialize_with(config).map(drop).unwrap_err();
        assert!(matches!(&error, StartError::ConfigDiffers { key: "collective_bytes", .. }));
        let mine = format!("this one {} B", 1000 + rank);
        return expect(&error.to_string(), &["collective_bytes", &mine, "rma-run --config"]);
    }
    let mut spec = Spec::new(std::env::current_exe().unwrap(), 2);
    let test = "ranks_have_the_same_where_they_must";
    spec.args = ["--exact", test, "--nocapture"].map(Into::into).to_vec();
    spec.output = Output::Capture;
    spec.timeout = Some(Duration::from_secs(300));
    let report = run(&spec).unwrap();
    // They end in order, but have not left the job.
    assert!(report.output.iter().any(passed), "{report:#?}");
}

/// Files of settings without a launcher, and what cannot be used of them.
#[test]
fn programs_take_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.conf");
    std::fs::write(&path, "# budgets\ndynamic_regions = 2\n").unwrap();
    let builder = Builder::new().config("outstanding_messages", "3").unwrap().file(&path).unwrap();
    let texts = builder.local(1, |universe| universe.explain()).unwrap();
    let source = format!("setting: dynamic_regions = 2 (file {})", path.display());
    expect(&texts[0], &[&source, "outstanding_messages = 3 (program)"]);
    std::fs::write(&path, "dynamic_region = 2\n").unwrap();
    let error = Builder::new().file(&path).unwrap_err().to_string();
    expect(&error, &["job.conf", "line 1", "did you mean \"dynamic_regions\"?"]);
    let error = Builder::new().file(dir.path().join("none")).unwrap_err().to_string();
    expect(&error, &["none: cannot be read"]);
}

/// Thousands of regions, one after the other, without being told to have room for them.
#[test]
fn attached_regions_grow() {
    const MANY: usize = 3000;
    let body = |universe: Universe| {
        let world = universe.world();
        let window = world.window(0, 1).create_dynamic()?;
        let right = world.rank().on_ring(1, world.size());
        let epoch = window.lock_all()?;
        let mut regions = Vec::new();
        for number in 0..MANY {
            regions.push(window.attach(vec![number as u64])?);
            if number % 100 == 0 {
                let all = world.allgather(&[regions[number].address()])?;
                let mut got = [0u64];
                epoch.get(right, all[usize::from(right)], &mut got)?;
                epoch.flush(right)?;
                assert_eq!(got, [number as u64]);
            }
        }
        epoch.unlock()?;
        window.free()?;
        universe.finalize()?;
        Ok::<_, rma::Error>(())
    };
    for path in ["auto", "messages"] {
        let builder = Builder::new().hint("rma_path", path).unwrap();
        builder.local(2, body).unwrap().into_iter().for_each(Result::unwrap);
    }
}

/// The budget is of the job, of a window that says so, and named by the error.
#[test]
fn attached_regions_have_a_bound() {
    let mut config = Config::default();
    config.dynamic_regions = 70;
    let limits = local_with(config, 1, |universe| {
        let world = universe.world();
        [None, Some("65")].map(|hint| {
            let builder = world.window(0, 1);
            let builder = match hint {
                Some(most) => builder.hint("rma_dynamic_regions", most).unwrap(),
                None => builder,
            };
            let window = builder.create_dynamic().unwrap();
            let error = (0u64..).find_map(|number| window.attach(vec![number]).err());
            match error.unwrap().error {
                RmaError::TooManyRegions { limit, .. } => limit,
                error => panic!("{error}"),
            }
        })
    });
    assert_eq!(limits.unwrap(), [[70, 65]]);
}
