//! Starts programs, and prints each command as a user would type it.

use std::process::{Command, Stdio};

use crate::error::Error;

/// Runs a program with its output visible. Fails if the program fails.
pub fn run(command: &mut Command) -> Result<(), Error> {
    let line = command_line(command);
    eprintln!("$ {line}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Program { command: line, problem: status.to_string() }),
        Err(source) => Err(Error::Start { command: line, source }),
    }
}

/// Runs a program with its standard error visible and returns its standard output.
pub fn capture_output(command: &mut Command) -> Result<String, Error> {
    let line = command_line(command);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|source| Error::Start { command: line.clone(), source })?;
    if !output.status.success() {
        return Err(Error::Program { command: line, problem: output.status.to_string() });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program without showing its output. Returns whether it started and succeeded.
pub fn succeeds(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Formats a command as a user would type it.
pub fn command_line(command: &Command) -> String {
    let mut parts = vec![command.get_program().to_string_lossy().into_owned()];
    for argument in command.get_args() {
        let argument = argument.to_string_lossy();
        let plain = !argument.is_empty() && !argument.contains(|c: char| " \n'\"$".contains(c));
        parts.push(if plain { argument.into_owned() } else { format!("{argument:?}") });
    }
    parts.join(" ")
}

/// Returns a command for the cargo that started this program, with the environment of a user's
/// shell.
pub fn cargo() -> Command {
    // `CARGO` is the cargo of this program's toolchain, even if another toolchain comes first in
    // PATH.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    forget_package(&mut cargo);
    cargo
}

/// Removes the variables by which cargo describes the package of this program. If the next cargo
/// inherited these variables, it would rebuild `ring` and all crates that depend on it.
pub fn forget_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    #[test]
    fn arguments_with_spaces_are_quoted() {
        let mut command = Command::new("git");
        command.args(["commit", "-m", "two words", ""]);
        assert_eq!(super::command_line(&command), r#"git commit -m "two words" """#);
    }

    #[test]
    fn a_failing_program_is_an_error_with_its_status() {
        let error = super::run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "`sh -c \"exit 3\"` failed: exit status: 3");
        assert!(!super::succeeds(&mut Command::new("no-such-program-here")));
    }
}
