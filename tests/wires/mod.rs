//! Namespaces of the network, which stand for hosts.
#![allow(dead_code)] // each test program uses its own part

use std::process::Command;

/// Calls `ip`; an error is what it says.
pub(crate) fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {line}: {text}")) }
}

/// Hosts that a switch joins: namespaces of that prefix, a dash and their addresses. Dropping it
/// removes them.
pub(crate) struct Switch {
    prefix: String,
    addresses: Vec<String>,
}

impl Switch {
    /// An error says why it cannot be made.
    pub(crate) fn connect(prefix: &str, addresses: &[String]) -> Result<Switch, String> {
        let switch = Switch { prefix: prefix.to_owned(), addresses: addresses.to_vec() };
        ip(&format!("netns add {prefix}-switch"))?;
        ip(&format!("-n {prefix}-switch link add switch type bridge"))?;
        ip(&format!("-n {prefix}-switch link set switch up"))?;
        for (port, address) in addresses.iter().enumerate() {
            let name = format!("{prefix}-{address}");
            ip(&format!("netns add {name}"))?;
            ip(&format!(
                "-n {prefix}-switch link add port{port} type veth peer name end0 netns {name}"
            ))?;
            ip(&format!("-n {prefix}-switch link set port{port} master switch up"))?;
            ip(&format!("-n {name} addr add {address}/24 dev end0"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set end0 up"))?;
        }
        Ok(switch)
    }

    /// Takes the cable of that host away.
    pub(crate) fn cut(&self, host: usize) {
        ip(&format!("-n {}-switch link set port{host} down", self.prefix)).unwrap();
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let hosts = self.addresses.iter().map(String::as_str);
        for of in hosts.chain(["switch"]) {
            // One that is not there is none to be removed.
            _ = ip(&format!("netns delete {}-{of}", self.prefix));
        }
    }
}
