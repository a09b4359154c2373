//! `eyrie completions`: for shells.

use clap_complete::Shell;
use eyrie_cli::out;

/// Print the completions of a shell.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    shell: Shell,
}

pub fn run(args: &CompletionsArgs, mut command: clap::Command) -> anyhow::Result<i32> {
    // It would panic if standard output did not take it.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "eyrie", &mut text);
    out::text(&String::from_utf8(text)?)?;
    Ok(0)
}
