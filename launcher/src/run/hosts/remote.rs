//! Where the hosts of a job are, and how they are reached.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

use super::list::HostPart;
use super::port::Connections;
use super::tree;

/// Hosts that the ranks of a job are on. The program that runs the job is its own agent there: its
/// `main` begins with [`agent`](super::agent) if its first argument is `agent`.
#[derive(Debug, Clone)]
pub struct Remote {
    /// The hosts, and the ranks on each: all of the job, in order.
    pub hosts: Vec<HostPart>,
    /// To hosts that have joined, which need no remote shell.
    pub connections: Option<Connections>,
    /// The remote shell, as a program and its arguments, behind which a host and a command line
    /// for a shell there are put. `None`: ssh, or none for the host `localhost`.
    pub shell: Option<Vec<OsString>>,
    /// A host that says nothing for so long is lost; so is the launcher for a host.
    pub silence: Duration,
    /// So many hosts at most are reached by remote shells of this machine, and by those of each
    /// host; 0: all by those of this machine.
    pub fan_out: u32,
    /// Programs that a host has not, or has of another build, are copied there.
    pub copy: bool,
}

/// Hosts that one machine reaches by remote shells, unless another number is said.
const FAN_OUT: u32 = 64;
/// What ssh is asked for: never for a password.
const SSH: [&str; 4] = ["ssh", "-T", "-o", "BatchMode=yes"];
/// And on other hosts, whose agents kill all that the job has left: a master that would stay for
/// others is not theirs to start.
const NO_MASTER: [&str; 2] = ["-o", "ControlMaster=no"];

impl Remote {
    /// Those hosts, by ssh.
    pub fn new(hosts: Vec<HostPart>) -> Remote {
        let silence = Duration::from_secs(10);
        Remote { hosts, connections: None, shell: None, silence, fan_out: FAN_OUT, copy: false }
    }

    /// Of each host, by which other one it is reached, if not by this process.
    pub(super) fn ways(&self) -> Vec<Option<usize>> {
        let reaches = self.hosts.iter().map(|part| self.is_by_shell(&part.name));
        tree::ways(&reaches.collect::<Vec<_>>(), self.fan_out)
    }

    /// How many hosts this process reaches itself.
    pub(in super::super) fn reached_from_here(&self) -> usize {
        self.ways().iter().filter(|way| way.is_none()).count()
    }

    /// Whether a remote shell reaches that host, from wherever.
    pub(super) fn is_by_shell(&self, host: &str) -> bool {
        self.connections.is_none() && (self.shell.is_some() || host != "localhost")
    }

    /// The command that has `agent` run with those words; `elsewhere` says that another host does.
    pub(super) fn command(
        &self,
        host: &str,
        agent: &Path,
        words: &str,
        elsewhere: bool,
    ) -> Vec<OsString> {
        let shell = match &self.shell {
            None if host == "localhost" => {
                let words = words.split(' ').map(OsString::from);
                return std::iter::once(agent.into()).chain(words).collect();
            }
            None if elsewhere => SSH.iter().chain(&NO_MASTER).map(OsString::from).collect(),
            None => SSH.map(OsString::from).to_vec(),
            Some(shell) => shell.clone(),
        };
        let mut line = quoted(agent);
        line.push(" ");
        line.push(words);
        shell.into_iter().chain([host.into(), line]).collect()
    }
}

/// For a shell.
fn quoted(path: &Path) -> OsString {
    let mut text = vec![b'\''];
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            other => text.push(*other),
        }
    }
    text.push(b'\'');
    OsString::from_vec(text)
}

/// A command as people write it.
pub(super) fn shown(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    format!("`{}`", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_shell_gets_one_command_line() {
        let mut remote = Remote::new(Vec::new());
        let agent = Path::new("/opt/it's here/rma-run");
        let command = remote.command("a", agent, "agent", false);
        assert_eq!(
            shown(&command),
            "`ssh -T -o BatchMode=yes a '/opt/it'\\''s here/rma-run' agent`"
        );
        let command = remote.command("a", Path::new("/rma-run"), "agent", true);
        assert_eq!(
            shown(&command),
            "`ssh -T -o BatchMode=yes -o ControlMaster=no a '/rma-run' agent`"
        );
        assert_eq!(remote.command("localhost", agent, "agent doctor", false).len(), 3);
        remote.shell = Some(vec!["rsh".into(), "-p".into(), "2".into()]);
        for elsewhere in [false, true] {
            let command =
                remote.command("localhost", Path::new("/bin/rma-run"), "agent", elsewhere);
            assert_eq!(shown(&command), "`rsh -p 2 localhost '/bin/rma-run' agent`");
        }
    }
}
