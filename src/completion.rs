//! `mainstay completion SHELL`: completions for bash, zsh and fish.
//!
//! Input: the tables of subcommands and flags. Output: a script for the shell. Each works for
//! `mainstay` and for the links by which the binary is also called.

use std::fmt::Write as _;

use crate::commands::{COMMANDS, LINKS, Offer, offer, paths};
use crate::flags::table::FLAGS;

/// The script for a shell; nothing for a shell that is not known.
pub(crate) fn script(shell: &str) -> Option<String> {
    match shell {
        "bash" => Some(bash()),
        "zsh" => Some(zsh()),
        "fish" => Some(fish()),
        _ => None,
    }
}

/// The names of the flags with an offer, as patterns of `case`.
fn pattern(wanted: impl Fn(&Offer) -> bool) -> String {
    let names: Vec<_> = FLAGS
        .iter()
        .filter(|flag| wanted(&offer(flag)))
        .map(|flag| format!("--{}", flag.name))
        .collect();
    names.join("|")
}

/// Sets of words that some flag takes, each once.
fn word_sets() -> Vec<Vec<&'static str>> {
    let mut sets = Vec::new();
    for flag in FLAGS {
        if let Offer::Words(words) = offer(flag)
            && !sets.contains(&words)
        {
            sets.push(words);
        }
    }
    sets
}

fn bash() -> String {
    let mut text = String::from(
        r#"# Completions of mainstay for bash, made by `mainstay completion bash`.

_mainstay_offer() {
    mapfile -t COMPREPLY < <(compgen "$@" -- "$cur")
}

_mainstay_flags() {
    local after_equals=
    # Bash takes --flag=value for three words.
    if [[ $cur == = ]]; then
        cur='' after_equals=1
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]} after_equals=1
    fi
    case $prev in
"#,
    );
    for words in word_sets() {
        let flags = pattern(|offer| *offer == Offer::Words(words.clone()));
        let _ = writeln!(text, "    {flags}) _mainstay_offer -W '{}'; return ;;", words.join(" "));
    }
    for (kind, option) in [(Offer::File, "-f"), (Offer::Directory, "-d")] {
        let flags = pattern(|offer| *offer == kind);
        let _ = writeln!(
            text,
            "    {flags}) compopt -o filenames; _mainstay_offer {option}; return ;;"
        );
    }
    let _ = writeln!(text, "    {}) return ;;", pattern(|offer| *offer == Offer::Nothing));
    text.push_str(
        "    esac\n    if [[ $after_equals ]]; then\n        _mainstay_offer -W 'true false'\n        \
         return\n    fi\n    _mainstay_offer -W '--help",
    );
    for flag in FLAGS {
        let _ = write!(text, " --{}", flag.name);
    }
    text.push_str(
        r#"'
}

_mainstay() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local words=("${COMP_WORDS[@]:0:COMP_CWORD}")
    words[0]=${words[0]##*/}
    [[ ${words[0]} == mainstay ]] && words=("${words[@]:1}")
    COMPREPLY=()
    case "${words[*]}" in
"#,
    );
    for (path, next) in paths() {
        let _ = writeln!(text, "    '{path}') _mainstay_offer -W '{}' ;;", next.join(" "));
    }
    let _ = write!(
        text,
        r#"    etcd | etcd\ *) _mainstay_flags ;;
    *) compopt -o filenames; _mainstay_offer -f ;;
    esac
}}

complete -F _mainstay mainstay {}
"#,
        LINKS.join(" ")
    );
    text
}

/// A text between single quotes of a shell.
fn quoted(text: &str) -> String {
    text.replace('\'', r"'\''")
}

fn zsh() -> String {
    let links = LINKS.join(" ");
    let mut text = format!(
        "#compdef mainstay {links}\n# Completions of mainstay for zsh, made by `mainstay completion \
         zsh`.\n\n_mainstay_flags() {{\n  _arguments \\\n    '--help[List all flags]' \\\n"
    );
    for flag in FLAGS {
        let help = flag.help.replace('\\', r"\\").replace('[', r"\[").replace(']', r"\]");
        let help = quoted(&help);
        let value = match offer(flag) {
            Offer::Switch => format!("=-[{help}]::value:(true false)"),
            Offer::Words(words) => format!("=[{help}]:value:({})", words.join(" ")),
            Offer::File => format!("=[{help}]:file:_files"),
            Offer::Directory => format!("=[{help}]:directory:_files -/"),
            Offer::Nothing => format!("=[{help}]:value: "),
        };
        let _ = writeln!(text, "    '--{}{value}' \\", flag.name);
    }
    text.push_str(
        "    && return\n}\n\n_mainstay() {\n  words[1]=${words[1]:t}\n  if [[ $words[1] == mainstay ]]; \
         then\n    if (( CURRENT == 2 )); then\n      local -a commands\n      commands=(\n",
    );
    for command in COMMANDS {
        let _ = writeln!(text, "        '{}:{}'", command.name, quoted(command.help));
    }
    text.push_str(
        "      )\n      _describe command commands\n      return\n    fi\n    shift words\n    (( \
         CURRENT-- ))\n  fi\n  case \"${(j: :)words[1,CURRENT-1]}\" in\n",
    );
    for (path, next) in paths().iter().filter(|(path, _)| !path.is_empty()) {
        let _ = writeln!(text, "    '{path}') compadd -- {} ;;", next.join(" "));
    }
    let _ = write!(
        text,
        r#"    etcd | etcd\ *) _mainstay_flags ;;
    *) _files ;;
  esac
}}

if [[ $funcstack[1] == _mainstay ]]; then
  _mainstay "$@"
else
  compdef _mainstay mainstay {links}
fi
"#
    );
    text
}

fn fish() -> String {
    let mut text = String::from(
        r#"# Completions of mainstay for fish, made by `mainstay completion fish`.

function __mainstay_words
    set -l words (commandline -opc)
    set words[1] (string replace -r '.*/' '' -- $words[1])
    test "$words[1]" = mainstay; and set -e words[1]
    printf '%s\n' $words
end

function __mainstay_at
    test (string join ' ' -- (__mainstay_words)) = "$argv[1]"
end

function __mainstay_serves
    set -l words (__mainstay_words)
    test "$words[1]" = etcd
end

"#,
    );
    let _ = writeln!(text, "for program in mainstay {}", LINKS.join(" "));
    for command in COMMANDS {
        let (name, help) = (command.name, command.help.replace('\'', r"\'"));
        let _ = writeln!(
            text,
            "    complete -c $program -n '__mainstay_at \"\"' -f -a {name} -d '{help}'"
        );
    }
    for (path, next) in paths().iter().filter(|(path, _)| !path.is_empty()) {
        let next = next.join(" ");
        let _ =
            writeln!(text, "    complete -c $program -n '__mainstay_at \"{path}\"' -f -a '{next}'");
    }
    text.push_str(
        "    complete -c $program -n __mainstay_serves -f\n    complete -c $program -n __mainstay_serves -f -l help -d 'List all flags'\n",
    );
    for flag in FLAGS {
        let value = match offer(flag) {
            Offer::Switch => "-f".to_string(),
            Offer::Words(words) => format!("-x -a '{}'", words.join(" ")),
            Offer::File => "-r -F".to_string(),
            Offer::Directory => "-x -a '(__fish_complete_directories)'".to_string(),
            Offer::Nothing => "-x".to_string(),
        };
        let (name, help) = (flag.name, flag.help.replace('\\', r"\\").replace('\'', r"\'"));
        let _ = writeln!(
            text,
            "    complete -c $program -n __mainstay_serves {value} -l {name} -d '{help}'"
        );
    }
    text.push_str("end\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_knows_every_flag() {
        for (shell, before) in [("bash", " --"), ("zsh", "'--"), ("fish", "-l ")] {
            let script = script(shell).unwrap();
            for flag in FLAGS {
                assert!(
                    script.contains(&format!("{before}{}", flag.name)),
                    "{shell}: {}",
                    flag.name
                );
            }
        }
        assert_eq!(script("csh"), None);
    }
}
