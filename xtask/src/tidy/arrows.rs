//! Which package may depend on which: the arrows point down.

use super::Finding;
use crate::workspace::{Result, Workspace};
use serde_json::Value;
use std::process::Command;

const RULE: &str = "arrow";
/// Everything below the facade.
const LAYERS: &[&str] = &[
    "rma-core",
    "rma-transport-shm",
    "rma-transport-sim",
    "rma-transport-ofi",
    "rma-transport-verbs",
    "rma-storage",
    "rma-launcher",
];
const CORE: &[&str] = &["rma-core"];

/// Per package: what it may depend on, and what it is, for the message.
const PACKAGES: &[(&str, &[&str], &str)] = &[
    ("rma-core", &[], "is the lowest layer"),
    ("rma-transport-shm", CORE, "is a transport, and transports know the core only"),
    ("rma-transport-sim", CORE, "is a transport, and transports know the core only"),
    ("rma-transport-ofi", CORE, "is a transport, and transports know the core only"),
    ("rma-transport-verbs", CORE, "is a transport, and transports know the core only"),
    ("rma-storage", CORE, "knows the core only"),
    (
        "rma-launcher",
        &["rma-core", "rma-transport-ofi"],
        "knows the core, and of networks what its doctor asks libfabric",
    ),
    ("rma-conformance", CORE, "is generic over a harness and knows the core only"),
    ("rma", LAYERS, "is the facade, and knows the layers below it"),
    ("rma-bench", &["rma"], "is a program, and programs know rma and the layers below it"),
    ("xtask", &[], "checks the workspace and is no part of it"),
];

/// Checks the manifests, as `cargo metadata --no-deps` shows them.
pub(super) fn check(metadata: &Value) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    if packages.is_empty() {
        return vec![finding("the workspace", "cargo metadata lists no package")];
    }
    let own: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    packages.iter().flat_map(|package| check_package(package, &own)).collect()
}

fn check_package(package: &Value, own: &[&str]) -> Vec<Finding> {
    let name = package["name"].as_str().unwrap_or_default();
    let Some((_, below, role)) = PACKAGES.iter().find(|(known, ..)| *known == name) else {
        let message = "has no place in the table of xtask/src/tidy/arrows.rs: give it one";
        return vec![finding(name, message)];
    };
    let mut findings = Vec::new();
    for dependency in package["dependencies"].as_array().map_or(&[][..], Vec::as_slice) {
        let on = dependency["name"].as_str().unwrap_or_default();
        let is_dev = dependency["kind"].as_str() == Some("dev");
        let allowed = below.contains(&on) || (name == "rma-bench" && LAYERS.contains(&on));
        if own.contains(&on) && !allowed && !is_dev {
            findings.push(finding(name, &format!("must not depend on {on}: {name} {role}")));
        }
        if on == "tokio" {
            let optional = dependency["optional"].as_bool() == Some(true);
            if name != "rma-launcher" {
                findings.push(finding(name, "must not depend on tokio: only rma-launcher may"));
            } else if !optional {
                let message = "must make tokio optional: only its feature `server` brings it";
                findings.push(finding(name, message));
            }
        }
    }
    findings.extend(check_features(package, name));
    findings
}

/// `tokio` comes with the feature `server`, and with no other.
fn check_features(package: &Value, name: &str) -> Vec<Finding> {
    let brings_tokio = |value: &Value| {
        value.as_str().is_some_and(|item| {
            item == "dep:tokio" || item == "tokio" || item.starts_with("tokio/")
        })
    };
    let Some(features) = package["features"].as_object() else { return Vec::new() };
    let wrong = features.iter().filter(|(feature, items)| {
        feature.as_str() != "server"
            && items.as_array().is_some_and(|items| items.iter().any(brings_tokio))
    });
    wrong
        .map(|(feature, _)| {
            finding(name, &format!("feature `{feature}` brings tokio: only `server` may"))
        })
        .collect()
}

/// Checks what the library really pulls in: no tokio without the feature `processes`.
pub(super) fn check_tree(workspace: &Workspace) -> Result<Vec<Finding>> {
    let output = Command::new("cargo")
        .args(["tree", "--package", "rma", "--edges", "normal", "--prefix", "none"])
        .current_dir(&workspace.root)
        .output()?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("cargo tree failed: {}", reason.trim()).into());
    }
    Ok(tokio_in_tree(&String::from_utf8_lossy(&output.stdout)))
}

pub(super) fn tokio_in_tree(tree: &str) -> Vec<Finding> {
    if tree.lines().any(|line| line.starts_with("tokio v")) {
        let message = "pulls in tokio: see `cargo tree -p rma -e normal -i tokio`";
        vec![finding("rma", message)]
    } else {
        Vec::new()
    }
}

fn finding(package: &str, message: &str) -> Finding {
    let message = format!("{package} {message}");
    Finding { rule: RULE, path: "Cargo.toml".into(), line: 1, message }
}
