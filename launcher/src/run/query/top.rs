//! `rma-run top`: what the ranks of a job use and do, between two looks.

use super::view::{JobView, RankView, Stage, Told};
use super::why::{aligned, heading, job_json, quoted, state};

/// Two looks at a job, one after the other.
#[derive(Debug)]
pub struct Top<'a> {
    /// The first.
    pub before: &'a JobView,
    /// The second.
    pub now: &'a JobView,
}

/// Figures of a rank, as rates of a second; `None` are those that are not known.
#[derive(Debug, PartialEq)]
struct Rates {
    /// Of one CPU, in percent.
    cpu: Option<f64>,
    operations: Option<f64>,
    messages: Option<f64>,
    parked: Option<f64>,
}

impl Top<'_> {
    fn rates(&self, number: usize) -> Option<Rates> {
        let (before, now) = (self.before.ranks.get(number)?, self.now.ranks.get(number)?);
        let seconds = self.now.age.saturating_sub(self.before.age).as_secs_f64();
        if seconds <= 0.0 || before.process != now.process {
            return None;
        }
        let cpu = before.usage.as_ref().zip(now.usage.as_ref()).map(|(before, now)| {
            100.0 * now.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds
        });
        let rate = |of: fn(&Told) -> u64| {
            let (before, now) = (before.told.as_ref()?, now.told.as_ref()?);
            Some(of(now).saturating_sub(of(before)) as f64 / seconds)
        };
        Some(Rates {
            cpu,
            operations: rate(|told| told.operations),
            messages: rate(|told| told.messages),
            parked: rate(|told| told.parked),
        })
    }

    /// To be read by people; the ranks in at most so many lines, if a number is given.
    pub fn text(&self, most: Option<usize>) -> String {
        let head = ["RANK", "PROCESS", "CPU %", "MEMORY", "WINDOWS", "OPS/S", "MSG/S", "SLEEPS/S"];
        let head = [&head[..], &["STATE"]].concat();
        let head: [String; 9] = std::array::from_fn(|at| head[at].to_owned());
        let shown = most.unwrap_or(usize::MAX).min(self.now.ranks.len());
        let cells = self.now.ranks[..shown].iter().enumerate().map(|(number, rank)| {
            let rates = self.rates(number);
            let rate = |of: fn(&Rates) -> Option<f64>| {
                rates.as_ref().and_then(of).map_or(String::new(), |rate| format!("{rate:.0}"))
            };
            let told = rank.told.as_ref();
            [
                number.to_string(),
                rank.process.map_or(String::new(), |process| process.to_string()),
                rate(|rates| rates.cpu),
                rank.usage.as_ref().map_or(String::new(), |usage| bytes(usage.resident)),
                told.map_or(String::new(), |told| told.windows.to_string()),
                rate(|rates| rates.operations),
                rate(|rates| rates.messages),
                rate(|rates| rates.parked),
                does(rank),
            ]
        });
        let lines = aligned(&[vec![head], cells.collect()].concat());
        let mut text = format!("{}\n{}\n", heading(self.now), lines.join("\n"));
        let left = self.now.ranks.len() - shown;
        if left > 0 {
            text.push_str(&format!("and {left} more\n"));
        }
        text.push_str(
            "OPS/S is without loads and stores, unless --hint rma_count=true counts them\n",
        );
        text
    }

    /// To be read by programs: one object.
    pub fn json(&self) -> String {
        let number =
            |value: Option<u64>| value.map_or("null".to_owned(), |value| value.to_string());
        let ranks = self.now.ranks.iter().enumerate().map(|(at, rank)| {
            let rates = self.rates(at);
            let rate = |of: fn(&Rates) -> Option<f64>| {
                rates.as_ref().and_then(of).map_or("null".to_owned(), |rate| format!("{rate:.1}"))
            };
            let told = |of: fn(&Told) -> u64| number(rank.told.as_ref().map(of));
            format!(
                "    {{\"rank\": {at}, \"process\": {}, \"state\": {}, \"cpu_percent\": {}, \
                 \"resident_bytes\": {}, \"windows\": {}, \"operations\": {}, \
                 \"operations_per_second\": {}, \"messages\": {}, \"messages_per_second\": {}, \
                 \"sleeps\": {}, \"sleeps_per_second\": {}}}",
                number(rank.process.map(u64::from)),
                quoted(&state(rank)),
                rate(|rates| rates.cpu),
                number(rank.usage.as_ref().map(|usage| usage.resident)),
                told(|told| told.windows),
                told(|told| told.operations),
                rate(|rates| rates.operations),
                told(|told| told.messages),
                rate(|rates| rates.messages),
                told(|told| told.parked),
                rate(|rates| rates.parked),
            )
        });
        format!(
            "{{\n  {},\n  \"ranks\": [\n{}\n  ]\n}}\n",
            job_json(self.now),
            ranks.collect::<Vec<_>>().join(",\n")
        )
    }
}

fn does(rank: &RankView) -> String {
    match rank.told.as_ref().and_then(|told| told.waits.first()) {
        Some(wait) if rank.stage == Stage::Joined => format!("{}: {}", state(rank), wait.what),
        _ => state(rank),
    }
}

/// As people read it, with a unit.
fn bytes(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::why::tests::view;
    use super::*;

    fn looks() -> (JobView, JobView) {
        let (before, mut now) = (view(), view());
        now.age += Duration::from_secs(2);
        let rank = &mut now.ranks[3];
        rank.usage.as_mut().unwrap().cpu += Duration::from_millis(1900);
        let told = rank.told.as_mut().unwrap();
        (told.operations, told.messages, told.parked) = (210, 40, 30);
        (before, now)
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let (before, now) = looks();
        let top = Top { before: &before, now: &now };
        let [cpu, operations, messages, parked] = [95.0, 100.0, 10.0, 0.0].map(Some);
        let rates = Rates { cpu, operations, messages, parked };
        assert_eq!(top.rates(3), Some(rates));
        let text = top.text(None);
        let line = text.lines().last().and(text.lines().nth(5)).unwrap();
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        assert_eq!(words, ["3", "100", "95", "3.0", "MiB", "2", "100", "10", "0", "computes"]);
        assert!(text.lines().nth(2).unwrap().ends_with("waits: a barrier"), "{text}");
        let json = top.json();
        assert!(json.contains("\"operations\": 210, \"operations_per_second\": 100.0"), "{json}");
        assert!(json.contains("\"cpu_percent\": 95.0, \"resident_bytes\": 3145728"), "{json}");
    }

    #[test]
    fn one_look_has_no_rates() {
        let (before, _) = looks();
        let top = Top { before: &before, now: &before };
        assert_eq!(top.rates(3), None);
        assert!(top.json().contains("\"cpu_percent\": null"));
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let (mut before, mut now) = looks();
        for view in [&mut before, &mut now] {
            let rank = &mut view.ranks[3];
            (rank.process, rank.usage, rank.told) = (None, None, None);
            rank.host = Some("node7".to_owned());
        }
        let top = Top { before: &before, now: &now };
        let nothing = Rates { cpu: None, operations: None, messages: None, parked: None };
        assert_eq!(top.rates(3), Some(nothing));
        let text = top.text(None);
        let words: Vec<_> = text.lines().nth(5).unwrap().split_ascii_whitespace().collect();
        assert_eq!(words, ["3", "on", "node7,", "which", "does", "not", "answer"]);
        assert!(top.json().contains("\"cpu_percent\": null, \"resident_bytes\": null"));
    }

    #[test]
    fn a_terminal_shows_the_first_ranks() {
        let (before, now) = looks();
        let text = Top { before: &before, now: &now }.text(Some(1));
        assert!(text.contains("\nand 3 more\n"), "{text}");
        assert_eq!(text.lines().count(), 5);
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(5 << 30), "5.0 GiB");
    }
}
