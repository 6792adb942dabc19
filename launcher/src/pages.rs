//! Pages for packages: a manual page, and completions for shells, made from the options themselves.

use std::fmt::Write;

use clap::{Arg, Command, ValueEnum};

use crate::subcommands;

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
    let subcommands = subcommands::ALL.iter().map(|subcommand| {
        let words = words_of(&(subcommand.command)()).join(" ");
        let reply = format!("COMPREPLY=($(compgen -W \"{words}\" -- \"$word\"))");
        format!("            {}) {reply}; return ;;\n", subcommand.name)
    });
    format!(
        r#"_rma_run() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} at
    if ((COMP_CWORD > 1)); then
        case ${{COMP_WORDS[1]}} in
{subcommands}        esac
    fi
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
        ((COMP_CWORD > 1)) || COMPREPLY+=($(compgen -W "{names}" -- "$word"))
    fi
}}
complete -F _rma_run rma-run
"#,
        valued = valued.join("|"),
        all = all.join(" "),
        subcommands = subcommands.collect::<String>(),
        names = names().join(" "),
    )
}

/// The names of subcommands.
fn names() -> Vec<&'static str> {
    subcommands::ALL.iter().map(|subcommand| subcommand.name).collect()
}

/// What may stand behind a subcommand: its options, and the values that there are.
fn words_of(command: &Command) -> Vec<String> {
    let mut words: Vec<_> = options(command).flat_map(spellings).collect();
    for argument in command.get_positionals() {
        let values = argument.get_possible_values();
        words.extend(values.iter().map(|value| value.get_name().to_owned()));
    }
    words
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn fish(command: &Command) -> String {
    let mut script = String::new();
    let quoted = |text: String| text.replace('\\', "\\\\").replace('\'', "\\'");
    for subcommand in subcommands::ALL {
        let (name, command) = (subcommand.name, (subcommand.command)());
        let about = quoted(about(&command));
        let first = "test (count (commandline -opc)) = 1";
        _ = writeln!(script, "complete -c rma-run -n '{first}' -a {name} -d '{about}'");
        let words = words_of(&command).join(" ");
        let behind = format!("test (commandline -opc)[2] = {name}");
        _ = writeln!(script, "complete -c rma-run -n '{behind}' -f -a '{words}'");
    }
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
        _ = writeln!(script, " -d '{}'", quoted(help(option)));
    }
    script
}

fn zsh(command: &Command) -> String {
    let mut script = "#compdef rma-run\ncase $words[2] in\n".to_owned();
    for subcommand in subcommands::ALL {
        let words = words_of(&(subcommand.command)()).join(" ");
        _ = writeln!(
            script,
            "  {}) ((CURRENT > 2)) && {{ compadd -- {words}; return }} ;;",
            subcommand.name
        );
    }
    _ = writeln!(script, "esac\n((CURRENT == 2)) && compadd -- {}", names().join(" "));
    script.push_str("_arguments -S \\\n");
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
        roff(&about(command)),
    );
    for option in options(command) {
        let value = match takes_value(option) {
            true => format!(" \\fI{}\\fR", roff(&value_name(option))),
            false => String::new(),
        };
        let names = spellings(option).iter().map(|name| roff(name)).collect::<Vec<_>>();
        _ = writeln!(page, ".TP\n\\fB{}\\fR{value}\n{}", names.join(", "), roff(&help(option)));
    }
    page.push_str(".SH SUBCOMMANDS\nOnly as the very first word.\n");
    for subcommand in subcommands::ALL {
        let command = (subcommand.command)();
        let name = roff(subcommand.name);
        _ = writeln!(page, ".TP\n\\fB{name}\\fR\n{}", roff(&about(&command)));
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let names = spellings(argument);
            let value = if takes_value(argument) { value_name(argument) } else { String::new() };
            let names = [names.join(", "), value].join(" ");
            _ = writeln!(
                page,
                ".RS\n.TP\n\\fB{}\\fR\n{}\n.RE",
                roff(names.trim()),
                roff(&help(argument))
            );
        }
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
    fn pages_tell_of_every_subcommand() {
        let command = command();
        let pages =
            [Shell::Bash, Shell::Fish, Shell::Zsh].map(|shell| completions(shell, &command));
        let manual = manual(&command);
        for subcommand in subcommands::ALL {
            assert!(manual.contains(&format!("\\fB{}\\fR", subcommand.name)));
            for page in &pages {
                assert!(page.contains(subcommand.name), "{page}");
                for word in words_of(&(subcommand.command)()) {
                    assert!(page.contains(&word), "{word}: {page}");
                }
            }
        }
        let completing = subcommands::ALL.iter().find(|known| known.name == "completions").unwrap();
        assert!(words_of(&(completing.command)()).contains(&"fish".to_owned()));
    }

    #[test]
    fn text_is_no_request() {
        assert_eq!(roff(".SH a-b\n'x\\y"), "\\&.SH a\\-b\n\\&'x\\ey");
    }
}
