//! The same work by other libraries, in turn with ours.
mod find;
mod rows;

use crate::Result;
use crate::benchmarks;
use crate::launch;
use crate::progress::Progress;
use crate::record::{Limit, Row, Summary};
use crate::table::{aligned, bytes, figure};
use find::{Kind, Peer};
use rows::{GROUPS, Group, Theirs};
use std::path::PathBuf;
use std::process::Command;

/// Far more than a group takes; both MPICH and Open MPI honour it.
const TIMEOUT: (&str, &str) = ("MPIEXEC_TIMEOUT", "600");
/// A rank of theirs that had no CPU for more of its time disturbs its rows.
const WAITED: f64 = 0.05;
const RANKS: u32 = 2;

/// Measures ours and theirs in turn, and returns our rows with theirs beside them.
pub(crate) fn run(names: &[String], rounds: u32, more: &[PathBuf]) -> Result<Vec<Row>> {
    let groups = chosen(names)?;
    let (peers, complaints) = find::all(more)?;
    for kind in Kind::ALL {
        let of_kind: Vec<&Peer> = peers.iter().filter(|peer| peer.kind == kind).collect();
        if of_kind.is_empty() {
            println!("{}: absent: no mpicc and mpiexec of it found", kind.name());
        }
        for peer in of_kind {
            println!("{}: {}", peer.name, peer.launcher.display());
        }
    }
    for complaint in complaints {
        println!("of no use: {complaint}");
    }
    if peers.is_empty() {
        return Err("no peer is here: install mpich or openmpi-bin and libopenmpi-dev, \
                    or name a folder with an mpicc by --mpi"
            .into());
    }
    let mut progress = Progress::new(rounds as usize * groups.len() * (1 + peers.len()));
    let (mut seen, mut failures) = (Seen::default(), Vec::new());
    for round in 1..=rounds {
        for group in &groups {
            progress.next(&format!("ours: {}, round {round}", group.name));
            let ours = ours(group, names, round)?;
            let mut theirs = Vec::new();
            for peer in &peers {
                progress.next(&format!("{}: {}, round {round}", peer.name, group.name));
                let (rows, failed) = measure(peer, group)?;
                theirs.push((peer, rows));
                failures.extend(failed.into_iter().map(|what| format!("{what} (round {round})")));
            }
            seen.add(ours, &theirs);
        }
    }
    progress.end();
    let rows = seen.rows();
    print!("{}", table(&rows, &peers));
    failures.iter().for_each(|failure| println!("{failure}"));
    Ok(rows)
}

/// Groups that hold at least one of the benchmarks, all by default.
fn chosen(names: &[String]) -> Result<Vec<&'static Group>> {
    let all = || GROUPS.iter().flat_map(|group| group.benchmarks);
    for name in names {
        if !all().any(|known| known == name) {
            let known: Vec<&str> = all().copied().collect();
            let known = known.join(", ");
            return Err(format!("peers are not measured by `{name}`, but by {known}").into());
        }
    }
    let wanted = |group: &&Group| group.benchmarks.iter().any(|name| is_wanted(names, name));
    Ok(GROUPS.iter().filter(wanted).collect())
}

fn is_wanted(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|wanted| wanted == name)
}

fn ours(group: &Group, names: &[String], round: u32) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for name in group.benchmarks.iter().filter(|name| is_wanted(names, name)) {
        let benchmark = benchmarks::find(name).ok_or_else(|| format!("no benchmark `{name}`"))?;
        rows.extend(launch::job(benchmark, RANKS, false)?);
    }
    rows.iter_mut().for_each(|row| row.launch = round);
    Ok(rows)
}

/// What a peer measured, and what went wrong: a row that it finished counts, even if a later one
/// ended it.
fn measure(peer: &Peer, group: &Group) -> Result<(Vec<Theirs>, Vec<String>)> {
    let mut command = Command::new(&peer.launcher);
    if peer.kind == Kind::OpenMpi {
        command.args(["--bind-to", "none", "--oversubscribe"]);
        if rustix::process::geteuid().is_root() {
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
    }
    command.env(TIMEOUT.0, TIMEOUT.1).arg("-n").arg(RANKS.to_string()).arg(&peer.program);
    command.args(["--impl", &peer.name, "--flavours", "alloc", "--budget-ms", "200", group.name]);
    let output = command.output()?;
    let (rows, mut failures) = Theirs::all(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let first = said[..said.len().min(2)].join(" ");
        failures.push(format!("it ended with {}: {first}", output.status));
    }
    let named = |failure| format!("{} failed in `{}`: {failure}", peer.name, group.name);
    Ok((rows, failures.into_iter().map(named).collect()))
}

/// Rows of all rounds.
#[derive(Default)]
struct Seen {
    rows: Vec<Row>,
}

impl Seen {
    /// A round of a group: those of our rows that a peer has as well.
    fn add(&mut self, ours: Vec<Row>, theirs: &[(&Peer, Vec<Theirs>)]) {
        for mut row in ours {
            for (peer, rows) in theirs {
                let same = rows.iter().find(|theirs| theirs.is(&row));
                let Some(summary) = same.and_then(Theirs::summary) else { continue };
                let ratio = row.ours.median / summary.median;
                row.peers.push(Limit { name: peer.name.clone(), summary, ratio });
                row.noisy |= Theirs::waited(rows) > WAITED;
            }
            if !row.peers.is_empty() {
                self.rows.push(row);
            }
        }
    }

    /// The best round of each, with the median of the ratios within a round.
    fn rows(&self) -> Vec<Row> {
        let mut best = Row::best(&self.rows);
        for row in &mut best {
            let rounds: Vec<&Row> =
                self.rows.iter().filter(|other| other.is_of_the_same(row)).collect();
            for peer in &mut row.peers {
                let of_peer = |round: &&Row| {
                    round.peers.iter().find(|other| other.name == peer.name).cloned()
                };
                let all: Vec<Limit> = rounds.iter().filter_map(of_peer).collect();
                let ratios: Vec<f64> = all.iter().map(|other| other.ratio).collect();
                let fastest =
                    all.iter().min_by(|a, b| a.summary.median.total_cmp(&b.summary.median));
                if let Some(fastest) = fastest {
                    peer.summary = fastest.summary;
                }
                peer.ratio = Summary::of(&ratios, 1).median;
            }
        }
        best
    }
}

/// A line for each row and peer, and a geometric mean for each family.
fn table(rows: &[Row], peers: &[Peer]) -> String {
    let head = ["row", "bytes", "ours", "peer", "theirs", "ours/theirs", ""];
    let mut lines = vec![head.map(str::to_owned)];
    for row in rows {
        for peer in &row.peers {
            lines.push([
                format!("{} {}", row.benchmark, row.name),
                row.bytes.map(bytes).unwrap_or_default(),
                figure(row, row.ours.median),
                peer.name.clone(),
                figure(row, peer.summary.median),
                format!("{:.3}", peer.ratio),
                if row.noisy { "noisy".to_owned() } else { String::new() },
            ]);
        }
    }
    let mut families: Vec<&str> = rows.iter().map(|row| row.benchmark.as_str()).collect();
    families.dedup();
    let none = String::new;
    lines.push([const { String::new() }; 7]);
    for family in families {
        for peer in peers {
            let of_family = rows.iter().filter(|row| row.benchmark == family);
            let of_peer = of_family.flat_map(|row| &row.peers).filter(|p| p.name == peer.name);
            let ratios: Vec<f64> = of_peer.map(|p| p.ratio).collect();
            if let Some(mean) = geometric_mean(&ratios) {
                let title = format!("geometric mean of {family}");
                let (name, mean) = (peer.name.clone(), format!("{mean:.3}"));
                lines.push([title, none(), none(), name, none(), mean, none()]);
            }
        }
    }
    aligned(&lines, &[0, 3, 6])
}

fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (sum / ratios.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Unit;

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
    fn names_choose_groups() {
        let names =
            |names: &[&str]| -> Vec<String> { names.iter().map(|n| n.to_string()).collect() };
        assert_eq!(chosen(&[]).unwrap().len(), GROUPS.len());
        assert_eq!(chosen(&names(&["lock", "sync"])).unwrap().len(), 1);
        assert!(chosen(&names(&["start"])).is_err());
    }
}
