//! `baton completions`: shell completions.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

/// Print the completions for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton completions bash > ~/.local/share/bash-completion/completions/baton
  baton completions zsh > ~/.zfunc/_baton
  baton completions fish > ~/.config/fish/completions/baton.fish")]
pub struct Args {
    /// The shell
    shell: Shell,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    // Into memory first: the generator panics when its writer fails, as a closed pipe does.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "baton", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(())
}
