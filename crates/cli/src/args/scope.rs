//! Refuses options that would have no effect together with the other arguments, because a user who
//! types an option expects an effect.
//!
//! If an option depends only on another option, clap's own `requires` and `conflicts_with` are
//! used. The table in this file covers options that depend on a value, and options in structs that
//! several commands share.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// The condition under which options of a command have an effect.
#[derive(Clone, Copy, Debug)]
enum Need {
    /// At least one of these arguments is given.
    AnyOf(&'static [&'static str]),
    /// All of these arguments are absent.
    NoneOf(&'static [&'static str]),
    /// An argument has this value, typed or by default.
    Value(&'static str, &'static str),
}

/// Options of one command, with the condition under which they have an effect.
#[derive(Clone, Copy, Debug)]
struct OptionScope {
    /// The words of the command, such as `predict step`. The word `*` in `fleet *` stands for every
    /// command below `fleet`.
    verb: &'static str,
    options: &'static [&'static str],
    need: Need,
}

impl OptionScope {
    fn covers(&self, verb: &str) -> bool {
        let above = self.verb.strip_suffix('*');
        above.map_or(self.verb == verb, |above| verb.starts_with(above))
    }
}

const fn scope(verb: &'static str, options: &'static [&'static str], need: Need) -> OptionScope {
    OptionScope { verb, options, need }
}

const HOSTS: Need = Need::AnyOf(&["hosts", "slurm", "job", "host"]);
const RAW: Need = Need::NoneOf(&["synthetic"]);
const SEQUENCE: Need = Need::Value("by", "sequence");

/// Options whose condition cannot be expressed with clap.
const SCOPES: [OptionScope; 29] = [
    scope("train", &["trace-steps"], Need::AnyOf(&["trace"])),
    scope("train", &["accept-rule-change"], Need::AnyOf(&["resume", "resume-from"])),
    scope("train", &["malformed-max", "strict", "delimiter"], RAW),
    scope("train", &TRAIN_OPTIONS, Need::NoneOf(&["list"])),
    scope("train", &["estimate"], Need::NoneOf(&["print-config"])),
    scope("train", &NETWORK, Need::NoneOf(&["transport=in_process"])),
    scope("eval", &NETWORK, Need::NoneOf(&["transport=in_process"])),
    scope("score", &NETWORK, Need::NoneOf(&["transport=in_process"])),
    scope("data stats", &["malformed-max", "strict"], Need::AnyOf(&["config"])),
    scope("checkpoint export", &["accept-rule-change"], Need::AnyOf(&["optimizer"])),
    scope("trace ops", &["operator", "kernels-min"], SEQUENCE),
    scope("predict calibrate", &["force"], Need::AnyOf(&["merge"])),
    scope("predict step", &["force", "step"], Need::NoneOf(&["model"])),
    scope("predict step", &["draws", "seed", "write-trace"], Need::NoneOf(&["model+hardware"])),
    scope("predict step", &["overheads"], Need::AnyOf(&["hardware", "overheads=list"])),
    scope(
        "predict step",
        &["hardware", "model", "execution-trace", "paths"],
        Need::NoneOf(&["overheads=list"]),
    ),
    scope("predict step", &["by"], Need::AnyOf(&["model+hardware"])),
    scope("predict step", &["launch-us"], Need::AnyOf(&["model+hardware"])),
    scope("predict step", &["launch-us"], Need::NoneOf(&["calibration", "overheads"])),
    scope("predict step", &KERNELS, Need::AnyOf(&["model+hardware"])),
    scope("predict step", &["models"], Need::AnyOf(&["hardware"])),
    scope("predict step", &CONFIGURED, Need::AnyOf(&["model"])),
    scope("predict what-if", &["force"], Need::AnyOf(&["calibration"])),
    scope("predict next", &["force"], Need::AnyOf(&["calibration"])),
    scope("predict serve", &["force"], Need::AnyOf(&["calibration"])),
    scope("capture", &["align"], Need::NoneOf(&["duration"])),
    scope("fleet *", &["token-file", "ca"], HOSTS),
    scope("fleet *", &["socket-dir"], Need::NoneOf(&["hosts", "slurm"])),
    scope("explain", &["as"], Need::Value("topic", "config")),
];

/// Options of `train` that have no effect together with `--list`.
const TRAIN_OPTIONS: [&str; 23] = [
    "print-config",
    "set",
    "delimiter",
    "train",
    "evaluation",
    "synthetic",
    "device",
    "tf32",
    "run",
    "resume",
    "resume-from",
    "ranks",
    "sharding",
    "plan",
    "groups",
    "sync-every",
    "bucket",
    "schedule",
    "trace",
    "trace-steps",
    "malformed-max",
    "strict",
    "estimate",
];
/// Options that have an effect only if ranks are processes, not threads.
const NETWORK: [&str; 3] = ["mpi-library", "timeout", "collectives"];
/// Options of `predict step` for a step of a configuration. A recorded step does not use them.
const CONFIGURED: [&str; 6] = ["set", "batch-size", "pooling", "ranks", "sharding", "plan"];
/// Options of `predict step` for the kernels and the order of a step on GPUs.
const KERNELS: [&str; 3] = ["precision", "schedule", "dense-kernels"];

/// Refuses the first option that would have no effect together with the other arguments.
///
/// # Errors
/// A usage error that names the option and its condition.
pub fn check_scopes(root: &Command, matches: &ArgMatches) -> Result<(), clap::Error> {
    let (mut command, mut matches, mut verb) = (root, matches, String::new());
    while let Some((name, below)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else { break };
        (command, matches) = (found, below);
        verb = if verb.is_empty() { name.to_owned() } else { format!("{verb} {name}") };
    }
    for scope in SCOPES.iter().filter(|scope| scope.covers(&verb)) {
        let given = scope.options.iter().find(|option| is_given(command, matches, option));
        if let (Some(option), Some(problem)) = (given, describe_unmet(scope.need, command, matches))
        {
            let text = format!("the option '--{option}' of rowmill {verb} {problem}");
            return Err(command.clone().error(ErrorKind::ArgumentConflict, text));
        }
    }
    Ok(())
}

/// Describes an unmet condition as a clause that follows the option's name. Returns `None` if the
/// condition is met.
fn describe_unmet(need: Need, command: &Command, matches: &ArgMatches) -> Option<String> {
    let has = |name: &&&str| is_given(command, matches, name);
    let has_value = |name: &str, value: &str| {
        raw_values(command, matches, name).iter().all(|given| given.eq_ignore_ascii_case(value))
    };
    // Commands of `fleet` that ask a hub have no options for hosts.
    let exists = |name: &&str| {
        name.split(['+', '=']).next().is_some_and(|name| argument_id(command, name).is_some())
    };
    match need {
        Need::AnyOf(names) if names.iter().any(exists) && !names.iter().any(|name| has(&name)) => {
            let known: Vec<&str> = names.iter().copied().filter(|name| exists(name)).collect();
            Some(format!("applies only with {}", join_options(&known, " or ")))
        }
        Need::NoneOf(names) => {
            let name = names.iter().find(has)?;
            Some(format!("does not apply with {}", join_options(&[name], "")))
        }
        Need::Value(name, value) if !has_value(name, value) => match name {
            "topic" => Some(format!("applies only to rowmill explain {value}")),
            _ => Some(format!("applies only with --{name} {value}")),
        },
        _ => None,
    }
}

/// Joins names of options for a message, as in `--a or --b`. The name `a+b` means both options
/// together, and `a=b` means an option with a value.
fn join_options(names: &[&str], between: &str) -> String {
    let one = |name: &&str| {
        let parts: Vec<String> = name.split('+').map(|part| format!("--{part}")).collect();
        parts.join(" and ").replace('=', " ")
    };
    names.iter().map(one).collect::<Vec<_>>().join(between)
}

/// Whether an argument is on the command line. The name `a+b` means that both options are typed,
/// and `a=b` that the option has this value.
fn is_given(command: &Command, matches: &ArgMatches, name: &str) -> bool {
    name.split('+').all(|name| match name.split_once('=') {
        Some((name, value)) => raw_values(command, matches, name) == [value],
        None => argument_id(command, name).is_some_and(|id| {
            matches.value_source(&id).is_some_and(|source| source == ValueSource::CommandLine)
        }),
    })
}

/// The values of an argument as they were typed, or else its default values.
fn raw_values(command: &Command, matches: &ArgMatches, name: &str) -> Vec<String> {
    let id = argument_id(command, name);
    let values = id.and_then(|id| matches.get_raw(&id).map(Iterator::collect::<Vec<_>>));
    let values = values.unwrap_or_default();
    values.iter().map(|value| value.to_string_lossy().into_owned()).collect()
}

/// Finds the id of an option by its long name, or the id of a positional argument by its name.
fn argument_id(command: &Command, name: &str) -> Option<String> {
    let is_it = |argument: &&clap::Arg| {
        argument.get_long() == Some(name) || argument.is_positional() && argument.get_id() == name
    };
    command.get_arguments().find(is_it).map(|argument| argument.get_id().to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::{Need, SCOPES, argument_id, check_scopes};

    fn leaf<'a>(root: &'a clap::Command, verb: &str) -> &'a clap::Command {
        verb.split(' ').fold(root, |command, name| match name {
            "*" => command.get_subcommands().next().unwrap(),
            name => command.find_subcommand(name).unwrap(),
        })
    }

    #[test]
    fn every_scope_names_options_of_its_verb() {
        let mut root = Cli::command();
        root.build();
        for scope in SCOPES {
            let command = leaf(&root, scope.verb);
            let named = match scope.need {
                Need::AnyOf(names) | Need::NoneOf(names) => names.to_vec(),
                Need::Value(name, _) => vec![name],
            };
            let parts = named.iter().flat_map(|name| name.split('+'));
            let parts = parts.map(|name| name.split('=').next().unwrap());
            for name in parts.chain(scope.options.iter().copied()) {
                assert!(argument_id(command, name).is_some(), "{}: --{name}", scope.verb);
            }
        }
    }

    /// Every option whose help begins with `With --` must be refused if the other option is
    /// missing.
    #[test]
    fn options_whose_help_begins_with_with_are_refused_without_the_other_option() {
        let mut root = Cli::command();
        root.build();
        let mut verbs = vec![(String::new(), &root)];
        let mut seen = 0;
        while let Some((verb, command)) = verbs.pop() {
            verbs.extend(command.get_subcommands().map(|below| {
                (format!("{verb} {}", below.get_name()).trim_start().to_owned(), below)
            }));
            for option in command.get_arguments() {
                let help = option.get_help().map(ToString::to_string).unwrap_or_default();
                let Some(long) = option.get_long() else { continue };
                if !help.starts_with("With --") {
                    continue;
                }
                let mut words = vec!["rowmill".to_owned()];
                words.extend(verb.split(' ').map(ToOwned::to_owned));
                words.push(format!("--{long}"));
                if option.get_action().takes_values() {
                    let value = option.get_possible_values();
                    let value = value.first().map_or("1", |value| value.get_name()).to_owned();
                    words.pop();
                    words.push(format!("--{long}={value}"));
                }
                // The paths that the command requires are added, so that only the tested option can
                // be the cause of a refusal.
                words.extend(
                    ["x", "y"]
                        .map(ToOwned::to_owned)
                        .into_iter()
                        .take(command.get_positionals().filter(|at| at.is_required_set()).count()),
                );
                let parsed = Cli::command().try_get_matches_from(&words);
                let refused = parsed.and_then(|matches| check_scopes(&root, &matches));
                assert!(refused.is_err(), "{words:?} is taken: {help}");
                seen += 1;
            }
        }
        assert!(seen >= 6, "{seen} options go with another");
    }

    fn check(words: &str, expected: &str) {
        let words = ["rowmill"].into_iter().chain(words.split(' '));
        let mut root = Cli::command();
        root.build();
        let matches = Cli::command().try_get_matches_from(words).unwrap();
        match check_scopes(&root, &matches) {
            Ok(()) => assert_eq!(expected, ""),
            Err(error) => {
                let text = error.to_string();
                assert!(!expected.is_empty() && text.contains(expected), "{expected}: {text}");
            }
        }
    }

    #[test]
    fn options_without_effect_are_refused() {
        check(
            "train a --trace-steps 1..3",
            "'--trace-steps' of rowmill train applies only with --trace",
        );
        check("train a --trace t --trace-steps 1..3", "");
        check("train --list --format json", "");
        check("train a --list --run x", "'--run' of rowmill train does not apply with --list");
        check("predict step --execution-trace e --calibration c --hardware a100", "");
        check("predict step --execution-trace e --overheads a100-dlrm", "only with --hardware");
        check("predict step --overheads list", "");
        check(
            "predict step --execution-trace e --overheads list --hardware a100",
            "not apply with --overheads list",
        );
        check("predict step --execution-trace e --hardware a100", "");
        check(
            "predict step --model m --hardware a100 --draws 9",
            "does not apply with --model and",
        );
        check("predict step --model m --calibration c --draws 9", "");
        check("predict step --model m --calibration c --by op", "with --model and --hardware");
        check("trace ops t --kernels-min 2", "applies only with --by sequence");
        check("trace ops t --by sequence --kernels-min 2", "");
        check("explain H05 --as markdown", "applies only to rowmill explain config");
        check(
            "eval r --transport in_process --timeout 9",
            "does not apply with --transport in_process",
        );
    }
}
