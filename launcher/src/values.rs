//! Values of options.
use rma_launcher::ROOT_VAR;
use std::ffi::OsString;

/// A folder that is there, as the variable that tells ranks of it.
pub(crate) fn parse_root(text: &str) -> Result<(OsString, OsString), String> {
    match std::fs::canonicalize(text) {
        Ok(path) if path.is_dir() => Ok((ROOT_VAR.into(), path.into())),
        Ok(_) => Err("it is no folder: name one".to_owned()),
        Err(error) => Err(format!("{error}: make the folder first")),
    }
}

/// What a job is called.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let odd = |letter: char| letter.is_control() || letter.is_whitespace();
    match text {
        "" => Err("a name has a letter at least".to_owned()),
        _ if text.parse::<u64>().is_ok() => {
            Err("a number would be a process of rma-run: use a letter, too".to_owned())
        }
        _ if text.chars().any(odd) => Err("a name has no spaces".to_owned()),
        _ => Ok(text.to_owned()),
    }
}
