//! What is told of several hosts.

use std::fmt::Write;

use super::super::query::quoted;
use super::{Finding, Health, array, is_bad, text};

/// A host that was examined, or not reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visit {
    /// What the user calls it.
    pub host: String,
    /// What was found there, or why it was not reached.
    pub outcome: Result<Vec<Finding>, String>,
}

/// Hosts, and the machine that jobs on them are started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visits {
    /// What was found on this machine, as far as that counts for jobs elsewhere.
    pub here: Vec<Finding>,
    /// Each host, as they were named.
    pub hosts: Vec<Visit>,
    /// What hosts do not have in common.
    pub differences: Vec<Finding>,
}

/// What is compared: the topic, the key, and what a difference means.
const COMPARED: [(&str, &str, Health, &str); 6] = [
    ("versions", "build", Health::Bad, "jobs need the same rma-run everywhere: install that"),
    ("versions", "machine", Health::Bad, "one program runs on all hosts of a job"),
    ("versions", "kernel", Health::Poor, "what one offers, the other may not"),
    ("versions", "libc", Health::Poor, "build programs with the older one"),
    ("libfabric", "version", Health::Poor, "install the same"),
    ("libfabric", "provider", Health::Bad, "ranks have to have the same"),
];

impl Visits {
    pub(in super::super) fn new(here: Vec<Finding>, hosts: Vec<Visit>) -> Visits {
        let differences =
            COMPARED.iter().filter_map(|compared| difference(compared, &here, &hosts));
        Visits { differences: differences.collect(), here, hosts }
    }

    /// Whether a job on these hosts cannot run.
    pub fn is_bad(&self) -> bool {
        let is_lost = |visit: &Visit| visit.outcome.as_ref().map_or(true, |found| is_bad(found));
        is_bad(&self.here) || is_bad(&self.differences) || self.hosts.iter().any(is_lost)
    }

    /// A paragraph for each host.
    pub fn text(&self) -> String {
        let mut all = format!("here:\n{}", text(&self.here));
        for Visit { host, outcome } in &self.hosts {
            _ = match outcome {
                Ok(found) => write!(all, "\nhost {host}:\n{}", text(found)),
                Err(why) => write!(all, "\nhost {host}:\nBAD  not reached: {why}\n"),
            };
        }
        if !self.differences.is_empty() {
            _ = write!(all, "\ndifferences:\n{}", text(&self.differences));
        }
        all
    }

    /// The same, as a JSON object.
    pub fn json(&self) -> String {
        let hosts = self.hosts.iter().map(|Visit { host, outcome }| {
            let (reached, why, found) = match outcome {
                Ok(found) => (true, "null".to_owned(), array(found, "    ")),
                Err(why) => (false, quoted(why), "[]".to_owned()),
            };
            let host = quoted(host);
            format!(
                "    {{\"host\": {host}, \"reached\": {reached}, \"why\": {why}, \"findings\": \
                 {found}}}"
            )
        });
        let (here, differences) = (array(&self.here, "  "), array(&self.differences, "  "));
        let hosts = hosts.collect::<Vec<_>>().join(",\n");
        format!(
            "{{\n  \"here\": {here},\n  \"hosts\": [\n{hosts}\n  ],\n  \"differences\": \
             {differences}\n}}\n"
        )
    }
}

/// Each value that there is of a key, with those that have it, if there are several.
fn difference(
    (topic, key, health, meaning): &(&str, &str, Health, &str),
    here: &[Finding],
    hosts: &[Visit],
) -> Option<Finding> {
    // Of this machine, nothing but rma-run takes part in a job.
    let here = ("here", here);
    let here = (*key == "build").then_some(here);
    let reached =
        hosts.iter().filter_map(|visit| Some((&*visit.host, visit.outcome.as_deref().ok()?)));
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, findings) in here.into_iter().chain(reached) {
        let finding = findings.iter().find(|finding| finding.topic == *topic);
        let Some(value) = finding.and_then(|finding| finding.value(key)) else { continue };
        match groups.iter_mut().find(|(known, _)| *known == value) {
            Some((_, names)) => names.push(name),
            None => groups.push((value, vec![name])),
        }
    }
    if groups.len() < 2 {
        return None;
    }
    let told = groups.iter().map(|(value, names)| format!("{value} ({})", names.join(", ")));
    let told = told.collect::<Vec<_>>().join(", ");
    let remedy = match *key == "provider" {
        true => common(hosts),
        false => String::new(),
    };
    let text = format!("{key}: {told}; {meaning}{remedy}");
    let topic = format!("{topic} {key}");
    let finding = Finding::new(&topic, *health, text);
    Some(groups.iter().fold(finding, |finding, (value, names)| {
        names.iter().fold(finding, |finding, name| finding.with(name, value))
    }))
}

/// Which providers all hosts have.
fn common(hosts: &[Visit]) -> String {
    let lists = hosts.iter().filter_map(|visit| {
        let found = visit.outcome.as_ref().ok()?;
        found.iter().find(|finding| finding.topic == "libfabric")?.value("providers")
    });
    let lists: Vec<Vec<&str>> = lists.map(|list| list.split(", ").collect()).collect();
    let Some((first, others)) = lists.split_first() else { return String::new() };
    let is_common =
        |name: &&&str| !name.is_empty() && others.iter().all(|list| list.contains(name));
    let names: Vec<&str> = first.iter().filter(is_common).copied().collect();
    match &names[..] {
        [] => ", and there is none that all have".to_owned(),
        names => format!(": --provider {}", names.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::good;
    use super::*;

    fn host(name: &str, kernel: &str, build: &str, providers: &str) -> Visit {
        let versions = good("versions", "x").with("kernel", kernel).with("build", build);
        let provider = providers.split(", ").next().unwrap_or_default();
        let fabric = good("libfabric", "y").with("provider", provider).with("providers", providers);
        Visit { host: name.to_owned(), outcome: Ok(vec![versions, fabric]) }
    }

    fn here() -> Vec<Finding> {
        vec![good("versions", "x").with("kernel", "9").with("build", "one")]
    }

    #[test]
    fn hosts_that_are_alike_have_no_difference() {
        let hosts = vec![host("a", "6", "one", "tcp, shm"), host("b", "6", "one", "tcp, udp")];
        let visits = Visits::new(here(), hosts);
        assert_eq!((&visits.differences[..], visits.is_bad()), (&[][..], false));
    }

    #[test]
    fn what_differs_is_named_with_those_that_have_it() {
        let of = |b: Visit, c: Visit| {
            let visits = Visits::new(here(), vec![host("a", "6", "one", "tcp, shm"), b, c]);
            let told = visits.differences.iter();
            (told.map(|found| (found.health, found.text.clone())).collect::<Vec<_>>(), visits)
        };
        let (told, visits) = of(host("b", "5", "one", "tcp"), host("c", "6", "one", "tcp"));
        let kernel = "kernel: 6 (a, c), 5 (b); what one offers, the other may not";
        assert_eq!(told, [(Health::Poor, kernel.to_owned())]);
        assert!(!visits.is_bad());
        assert_eq!(visits.differences[0].value("b"), Some("5"));
        let (told, visits) = of(host("b", "6", "two", "tcp"), host("c", "6", "one", "tcp"));
        assert!(told[0].1.starts_with("build: one (here, a, c), two (b); jobs need"), "{told:?}");
        assert!(visits.is_bad());
        let (told, _) = of(host("b", "6", "one", "verbs, tcp"), host("c", "6", "one", "tcp"));
        assert!(told[0].1.ends_with("have to have the same: --provider tcp"), "{told:?}");
        let (told, _) = of(host("b", "6", "one", "verbs"), host("c", "6", "one", "tcp"));
        assert!(told[0].1.ends_with("and there is none that all have"), "{told:?}");
    }

    #[test]
    fn a_host_that_is_not_reached_is_told_with_the_reason() {
        let lost = Visit { host: "b".into(), outcome: Err("no \"route\"".into()) };
        let visits = Visits::new(here(), vec![host("a", "6", "one", "tcp"), lost]);
        assert!(visits.is_bad());
        let text = visits.text();
        assert!(
            text.starts_with("here:\nok   versions: x\n\nhost a:\nok   versions: x\n"),
            "{text}"
        );
        assert!(text.ends_with("\nhost b:\nBAD  not reached: no \"route\"\n"), "{text}");
        let json = visits.json();
        let part = "{\"host\": \"b\", \"reached\": false, \"why\": \"no \\\"route\\\"\", \
                    \"findings\": []}\n  ],\n  \"differences\": [";
        assert!(json.contains(part), "{json}");
        assert!(
            json.contains("{\"host\": \"a\", \"reached\": true, \"why\": null, \"findings\": [\n")
        );
    }
}
