//! Settings of the ranks' runtime: read, and checked before any rank is started.

use std::path::Path;

use rma_core::{Config, ConfigError, HintError, Source};

use super::report::RunError;
use super::spec::Spec;
use crate::SettingSource;
use crate::wire::REPLY_MAX;

/// Bytes of what ranks are told of a job, without its hints and settings, and of what frames them:
/// more than enough.
const BESIDES: usize = 4 << 10;
/// And of what frames each.
const BESIDES_EACH: usize = 32;

/// Takes a file of settings, one `key = value` a line; `#` begins a comment.
///
/// # Errors
///
/// [`RunError::ConfigRead`], and [`RunError::ConfigFile`], which names the line.
pub fn read_config(config: &mut Config, path: &Path) -> Result<(), RunError> {
    let failed = |source| RunError::ConfigRead { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let unusable = |source| RunError::ConfigFile { path: path.to_owned(), source };
    config.set_lines(&text, &path.to_string_lossy()).map_err(unusable)
}

/// What ranks are told of settings.
pub(super) fn told(spec: &Spec) -> Vec<(String, String, SettingSource)> {
    let told = |(key, value, source): (&str, String, Source)| {
        let source = match source {
            Source::File(path) => SettingSource::File(path.to_string()),
            Source::CommandLine(option) => SettingSource::Option(option.to_string()),
            // The program that starts the job, as `rma-run` would.
            _ => SettingSource::Option("--config".to_owned()),
        };
        (key.to_owned(), value, source)
    };
    spec.config.said().into_iter().map(told).collect()
}

/// Whether ranks will take what they are told.
pub(super) fn check(spec: &Spec) -> Result<(), RunError> {
    let mut config = spec.config.clone();
    for (key, value) in &spec.hints {
        config.hint(key, value).map_err(|error: HintError| ConfigError::from(error))?;
    }
    let hints = spec.hints.iter().map(|(key, value)| key.len() + value.len());
    let settings = told(spec).into_iter().map(|(key, value, source)| match source {
        SettingSource::File(name) | SettingSource::Option(name) => {
            key.len() + value.len() + name.len()
        }
    });
    let bytes = hints.chain(settings).map(|bytes| bytes + BESIDES_EACH).sum();
    let most = REPLY_MAX - BESIDES;
    if bytes <= most { Ok(()) } else { Err(RunError::ConfigTooLong { bytes, most }) }
}
