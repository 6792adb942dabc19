//! Where the ranks of a benchmark are, and what reaches them.
use crate::Result;
use clap::Args;
use rma_launcher::run::{Fill, HostSlots, Remote, Spec, parse_hosts, place};
use std::str::FromStr;

/// As `rma-run` has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct Place {
    /// What reaches ranks of other nodes: shm (shared memory) or ofi (libfabric); with ofi and
    /// without --nodes, each rank is a node of its own
    #[arg(long)]
    pub(crate) transport: Option<String>,

    /// The provider of libfabric, by the name of its core (tcp, sockets, …)
    #[arg(long)]
    pub(crate) provider: Option<String>,

    /// Pretend nodes of so many ranks each: "2x2" is 4 ranks on 2 nodes. Benchmarks that are not
    /// for as many ranks are left out
    #[arg(long, value_name = "NODESxRANKS", value_parser = parse_nodes, conflicts_with = "hosts")]
    pub(crate) nodes: Option<(u32, u32)>,

    /// Ranks are on those hosts, in turn: "a,b", "a:2,b:2". ssh reaches them without a password,
    /// and this program is there under the same path
    #[arg(long, value_name = "LIST")]
    pub(crate) hosts: Option<Hosts>,

    /// What runs a command on a host, instead of ssh: words with a space between them
    #[arg(long, value_name = "COMMAND", requires = "hosts")]
    pub(crate) ssh_command: Option<String>,
}

/// Hosts, and how many ranks each takes at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hosts(Vec<HostSlots>);

impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        parse_hosts(text).map(Self)
    }
}

fn parse_nodes(text: &str) -> std::result::Result<(u32, u32), String> {
    let numbers = text.split_once('x').and_then(|(nodes, ranks)| {
        let number = |text: &str| text.parse().ok().filter(|number: &u32| *number > 0);
        let (nodes, ranks) = (number(nodes)?, number(ranks)?);
        nodes.checked_mul(ranks).map(|_| (nodes, ranks))
    });
    numbers.ok_or_else(|| "write it as NODESxRANKS, such as 2x2 for 2 nodes of 2 ranks".to_owned())
}

impl Place {
    /// Refuses what contradicts itself, before anything is measured.
    pub(crate) fn check(&self) -> Result<()> {
        match self.transport.as_deref() {
            Some("shm") if self.hosts.is_some() => {
                Err("shared memory does not reach other hosts: leave --transport out".into())
            }
            None | Some("shm" | "ofi") if self.provider.is_some() && !self.is_by_network() => {
                Err("--provider chooses among providers of libfabric: add --transport ofi".into())
            }
            None | Some("shm" | "ofi") => Ok(()),
            Some(other) => {
                Err(format!("there is no transport `{other}` here, but shm and ofi").into())
            }
        }
    }

    /// Whether libfabric reaches ranks of other nodes.
    pub(crate) fn is_by_network(&self) -> bool {
        self.hosts.is_some() || self.transport.as_deref() == Some("ofi")
    }

    /// Whether load and store reach no other rank.
    pub(crate) fn is_far(&self) -> bool {
        match self.nodes {
            Some((_, ranks)) => ranks == 1,
            None => self.is_by_network(),
        }
    }

    /// Why a job of so many ranks is not for it.
    pub(crate) fn refuses(&self, ranks: u32) -> Option<String> {
        if let Some((nodes, each)) = self.nodes
            && nodes * each != ranks
        {
            let all = nodes * each;
            return Some(format!("it has {ranks} ranks, and --nodes {nodes}x{each} are {all}"));
        }
        let Hosts(hosts) = self.hosts.as_ref()?;
        place(hosts, Some(ranks), None, Fill::InTurn).err()
    }

    /// Puts a job there.
    pub(crate) fn apply(&self, spec: &mut Spec) -> Result<()> {
        if self.is_by_network() {
            spec.config.set("transport", "ofi")?;
        }
        if let Some(provider) = &self.provider {
            spec.config.set("provider", provider)?;
        }
        if let Some((nodes, _)) = self.nodes {
            spec.config.set("nodes", &nodes.to_string())?;
        }
        spec.nodes = spec.config.nodes_of(spec.ranks);
        if let Some(Hosts(hosts)) = &self.hosts {
            let mut remote = Remote::new(place(hosts, Some(spec.ranks), None, Fill::InTurn)?);
            let words = |command: &String| command.split_whitespace().map(Into::into).collect();
            remote.shell = self.ssh_command.as_ref().map(words);
            spec.remote = Some(remote);
        }
        Ok(())
    }

    /// What a rank is told of it, which measures limits on the same provider.
    pub(crate) fn told(&self) -> Vec<String> {
        let Some(provider) = &self.provider else { return Vec::new() };
        ["--transport", "ofi", "--provider", provider].map(str::to_owned).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        place: Place,
    }

    fn of(line: &str) -> std::result::Result<Place, clap::Error> {
        let words = ["rma-bench"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.place)
    }

    fn spec(line: &str, ranks: u32) -> Spec {
        let mut spec = Spec::new("program", ranks);
        of(line).unwrap().apply(&mut spec).unwrap();
        spec
    }

    #[test]
    fn a_job_is_where_the_line_says() {
        let shared = spec("", 2);
        assert_eq!((shared.nodes, shared.config.get("transport").as_deref()), (1, Some("shm")));
        let network = spec("--transport ofi --provider sockets", 2);
        let set = |key| network.config.get(key);
        assert_eq!(set("transport").as_deref(), Some("ofi"));
        assert_eq!(set("provider").as_deref(), Some("sockets"));
        assert_eq!(network.nodes, 2, "each rank is a node");
        assert_eq!(spec("--transport ofi --nodes 1x2", 2).nodes, 1);
        assert_eq!(spec("--transport ofi --nodes 2x2", 4).nodes, 2);
        let hosts = spec("--hosts a:1,b:1 --ssh-command rsh", 2);
        assert_eq!(hosts.config.get("transport").as_deref(), Some("ofi"));
        let remote = hosts.remote.unwrap();
        assert_eq!(remote.hosts.iter().map(|host| host.ranks).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(remote.shell.unwrap(), ["rsh"]);
    }

    #[test]
    fn ranks_of_other_hosts_or_nodes_are_far() {
        for (line, is_far) in [
            ("", false),
            ("--transport shm", false),
            ("--nodes 2x1", true),
            ("--transport ofi", true),
            ("--hosts a,b", true),
            ("--transport ofi --nodes 2x1", true),
            ("--transport ofi --nodes 1x2", false),
        ] {
            assert_eq!(of(line).unwrap().is_far(), is_far, "{line}");
        }
    }

    #[test]
    fn what_contradicts_is_refused_with_a_remedy() {
        let refused = |line: &str| of(line).unwrap().check().unwrap_err().to_string();
        assert!(refused("--provider tcp").contains("add --transport ofi"));
        assert!(refused("--hosts a,b --transport shm").contains("leave --transport out"));
        assert!(refused("--transport udp").contains("`udp`"));
        assert!(of("--hosts a,b --provider tcp").unwrap().check().is_ok());
        assert!(of("--nodes 2").unwrap_err().to_string().contains("NODESxRANKS"));
        assert!(of("--hosts a:1 --nodes 1x2").is_err());
        assert!(of("--ssh-command rsh").is_err());
    }

    #[test]
    fn jobs_of_other_sizes_are_not_for_it() {
        let why = |line: &str, ranks| of(line).unwrap().refuses(ranks);
        assert_eq!(why("", 64), None);
        assert_eq!(why("--nodes 2x2", 4), None);
        assert!(why("--nodes 2x2", 2).unwrap().contains("--nodes 2x2 are 4"));
        assert_eq!(why("--hosts a:1,b:1", 2), None);
        assert!(why("--hosts a:1,b:1", 4).is_some());
    }
}
