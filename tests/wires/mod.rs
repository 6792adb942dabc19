//! Namespaces of the network, which stand for hosts.
use std::process::Command;

/// Calls `ip`; an error is what it says.
pub(crate) fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {line}: {text}")) }
}
