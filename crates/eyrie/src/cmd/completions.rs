//! `eyrie completions`: for shells.

use clap_complete::Shell;

/// Print the completions of a shell.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    shell: Shell,
}

pub fn run(args: &CompletionsArgs, mut command: clap::Command) -> anyhow::Result<i32> {
    clap_complete::generate(args.shell, &mut command, "eyrie", &mut std::io::stdout());
    Ok(0)
}
