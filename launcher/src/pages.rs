//! Pages for packages: a manual page, and completions for shells, made from the options themselves.

use std::fmt::Write;

use clap::{Arg, Command, ValueEnum};

/// Shells that complete command lines.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Fish,
    Zsh,
}

/// The options that users are told of.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set())
}

/// All spellings of an option.
fn spellings(option: &Arg) -> Vec<String> {
    let short = option.get_short().map(|letter| format!("-{letter}"));
    let long = option.get_long().map(|name| format!("--{name}"));
    short.into_iter().chain(long).collect()
}

fn takes_value(option: &Arg) -> bool {
    option.get_action().takes_values()
}

/// What the value of an option is called.
fn value_name(option: &Arg) -> String {
    let names = option.get_value_names().unwrap_or_default();
    names.first().map_or_else(|| option.get_id().to_string(), |name| name.to_string())
}

fn help(option: &Arg) -> String {
    option.get_help().map(ToString::to_string).unwrap_or_default()
}

/// A script that tells a shell which options there are, and then leaves the program's own to it.
pub(crate) fn completions(shell: Shell, command: &Command) -> String {
    match shell {
        Shell::Bash => bash(command),
        Shell::Fish => fish(command),
        Shell::Zsh => zsh(command),
    }
}

fn bash(command: &Command) -> String {
    let all: Vec<_> = options(command).flat_map(spellings).collect();
    let valued: Vec<_> =
        options(command).filter(|option| takes_value(option)).flat_map(spellings).collect();
    format!(
        r#"_rma_run() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} at
    for ((at = 1; at < COMP_CWORD; at++)); do
        case ${{COMP_WORDS[at]}} in
            {valued}) ((at++)) ;;
            -*) ;;
            *) _command_offset $at 2>/dev/null; return ;;
        esac
    done
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "{all}" -- "$word"))
    else
        COMPREPLY=($(compgen -c -- "$word") $(compgen -f -- "$word"))
    fi
}}
complete -F _rma_run rma-run
"#,
        valued = valued.join("|"),
        all = all.join(" "),
    )
}

fn fish(command: &Command) -> String {
    let mut script = String::new();
    for option in options(command) {
        script.push_str("complete -c rma-run");
        if let Some(letter) = option.get_short() {
            _ = write!(script, " -s {letter}");
        }
        if let Some(name) = option.get_long() {
            _ = write!(script, " -l {name}");
        }
        if takes_value(option) {
            script.push_str(" -r");
        }
        let help = help(option).replace('\\', "\\\\").replace('\'', "\\'");
        _ = writeln!(script, " -d '{help}'");
    }
    script
}

fn zsh(command: &Command) -> String {
    let mut script = "#compdef rma-run\n_arguments -S \\\n".to_owned();
    for option in options(command) {
        let help = help(option).replace('\'', "'\\''").replace('[', "\\[").replace(']', "\\]");
        for spelling in spellings(option) {
            let value = match takes_value(option) {
                true => format!(":{}:_files", value_name(option)),
                false => String::new(),
            };
            _ = writeln!(script, "  '*{spelling}[{help}]{value}' \\");
        }
    }
    script.push_str("  '*::program:_normal'\n");
    script
}

/// The manual page, for `man`.
pub(crate) fn manual(command: &Command) -> String {
    let mut page = format!(
        ".TH RMA-RUN 1 \"\" \"rma {}\"\n.SH NAME\nrma-run \\- {}\n.SH SYNOPSIS\n\
         .B rma-run\n[OPTIONS] -n N PROGRAM [ARGS]...\n.SH OPTIONS\n",
        command.get_version().unwrap_or_default(),
        roff(&command.get_about().map(ToString::to_string).unwrap_or_default()),
    );
    for option in options(command) {
        let value = match takes_value(option) {
            true => format!(" \\fI{}\\fR", roff(&value_name(option))),
            false => String::new(),
        };
        let names = spellings(option).iter().map(|name| roff(name)).collect::<Vec<_>>();
        _ = writeln!(page, ".TP\n\\fB{}\\fR{value}\n{}", names.join(", "), roff(&help(option)));
    }
    let more = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    _ = writeln!(page, ".SH NOTES\n.nf\n{}\n.fi", roff(&more));
    page
}

/// Text that no sign of is taken for a request.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = escaped.lines().map(|line| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn command() -> Command {
        let mut command = crate::Cli::command();
        command.build();
        command
    }

    #[test]
    fn pages_tell_of_every_option() {
        let command = command();
        let (manual, fish) = (manual(&command), completions(Shell::Fish, &command));
        let (bash, zsh) = (completions(Shell::Bash, &command), completions(Shell::Zsh, &command));
        assert!(options(&command).count() > 15);
        for option in options(&command) {
            for spelling in spellings(option) {
                assert!(bash.contains(&spelling), "{spelling}");
                assert!(zsh.contains(&format!("*{spelling}[")), "{spelling}");
                assert!(manual.contains(&roff(&spelling)), "{spelling}");
            }
            if let Some(name) = option.get_long() {
                assert!(fish.contains(&format!(" -l {name}")), "{name}");
            }
        }
    }

    #[test]
    fn text_is_no_request() {
        assert_eq!(roff(".SH a-b\n'x\\y"), "\\&.SH a\\-b\n\\&'x\\ey");
    }
}
