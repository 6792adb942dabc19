//! Where the workspace is, and which Rust sources it holds.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a check hands up: a sentence for the person who reads it.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The workspace that this tool was built in.
pub(crate) struct Workspace {
    /// Its folder.
    pub(crate) root: PathBuf,
    /// `cargo metadata --no-deps`.
    pub(crate) metadata: serde_json::Value,
}

/// One file.
pub(crate) struct Source {
    /// Path below the root, with `/`.
    pub(crate) path: String,
    /// Its text.
    pub(crate) text: String,
}

impl Workspace {
    /// Asks cargo about the workspace.
    pub(crate) fn load() -> Result<Self> {
        // Set by `cargo run`; what was compiled in may be another tree's if the build was copied.
        let package = std::env::var_os("CARGO_MANIFEST_DIR");
        let package = package.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root =
            Path::new(&package).parent().ok_or("the folder of xtask has no parent")?.to_path_buf();
        let output = Command::new("cargo")
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(&root)
            .output()?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("cargo metadata failed: {}", reason.trim()).into());
        }
        let metadata = serde_json::from_slice(&output.stdout)?;
        Ok(Self { root, metadata })
    }

    /// The folder that cargo builds into.
    pub(crate) fn target_dir(&self) -> Result<PathBuf> {
        let dir = self.metadata["target_directory"]
            .as_str()
            .ok_or("cargo metadata names no target_directory")?;
        Ok(PathBuf::from(dir))
    }

    /// Every `.rs` file below the root, sorted, without build output and hidden folders.
    pub(crate) fn sources(&self) -> Result<Vec<Source>> {
        self.files(".rs")
    }

    /// Every page of documentation, but those that tell what was once: decisions, the changelog.
    pub(crate) fn pages(&self) -> Result<Vec<Source>> {
        let mut pages = self.files(".md")?;
        pages.retain(|page| !page.path.starts_with("docs/adr/") && page.path != "CHANGELOG.md");
        Ok(pages)
    }

    fn files(&self, ending: &str) -> Result<Vec<Source>> {
        let mut paths = Vec::new();
        collect(&self.root, ending, &mut paths)?;
        paths.sort();
        let read = |path: PathBuf| -> Result<Source> {
            let relative = path.strip_prefix(&self.root)?;
            let parts: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
            let text = fs::read_to_string(&path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            Ok(Source { path: parts.join("/"), text })
        };
        paths.into_iter().map(read).collect()
    }
}

fn collect(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "peers-build" {
                collect(&entry.path(), ending, found)?;
            }
        } else if kind.is_file() && name.ends_with(ending) {
            found.push(entry.path());
        }
    }
    Ok(())
}
