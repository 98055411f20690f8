//! Completions of the command line for shells, and pages for `man`.

use std::io;

use clap::{Args, CommandFactory as _, builder::PossibleValuesParser};
use clap_complete::Shell;
use clap_mangen::Man;

use super::Cli;
use crate::foundation::build::VERSION_AND_COMMIT;

#[derive(Debug, Args)]
#[command(
    after_help = "For bash: tollgate completions bash > /etc/bash_completion.d/tollgate. For zsh: tollgate \
                  completions zsh > _tollgate, in a folder of $fpath. For fish: tollgate completions fish > \
                  ~/.config/fish/completions/tollgate.fish."
)]
pub(crate) struct Completions {
    /// Shell that reads the script
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "To read it: tollgate man serve | man -l -")]
pub(crate) struct Manual {
    /// Command to describe; without it, the whole program
    #[arg(value_parser = PossibleValuesParser::new(COMMANDS), value_name = "COMMAND")]
    pub command: Option<String>,
}

/// The commands that have a page of their own.
const COMMANDS: [&str; 10] = [
    "ask",
    "check",
    "completions",
    "counters",
    "explain",
    "healthcheck",
    "lint-envoy",
    "man",
    "schema",
    "serve",
];

impl Completions {
    /// The script that the shell reads.
    pub(crate) fn script(&self) -> Vec<u8> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "tollgate", &mut script);
        script
    }
}

impl Manual {
    /// The page in roff.
    ///
    /// # Errors
    ///
    /// Never, because the page is written to memory.
    pub(crate) fn page(&self) -> io::Result<Vec<u8>> {
        let mut program = Cli::command();
        program.build();
        let own = self.command.as_deref();
        let own = own.and_then(|name| program.find_subcommand(name)).cloned();
        let mut page = Vec::new();
        Man::new(own.unwrap_or(program))
            .source(format!("tollgate {VERSION_AND_COMMIT}"))
            .manual("tollgate")
            .render(&mut page)?;
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_command_has_a_page_that_has_its_flags() {
        let program = Cli::command();
        for command in program.get_subcommands() {
            let name = command.get_name();
            assert!(COMMANDS.contains(&name), "{name}");
            let command = Some(name.to_owned());
            let page = String::from_utf8(Manual { command }.page().unwrap()).unwrap();
            assert!(page.contains(&format!(".TH tollgate-{name} 1")), "{page}");
        }
        let command = Some("serve".to_owned());
        let page = String::from_utf8(Manual { command }.page().unwrap()).unwrap();
        assert!(page.contains("TOLLGATE_LOG_DECISIONS"), "{page}");
    }

    #[test]
    fn every_shell_gets_a_script_with_the_commands() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(Completions { shell: *shell }.script()).unwrap();
            for name in COMMANDS {
                assert!(script.contains(name), "{shell} {name}");
            }
        }
    }
}
