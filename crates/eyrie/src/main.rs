//! The `eyrie` command: argument parsing and output, nothing else of weight.

use clap::{Parser, Subcommand};

mod cmd;

#[derive(Parser)]
#[command(name = "eyrie", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say where a failed node's ranks should go, and what it costs
    Plan(cmd::plan::PlanArgs),
}

fn main() {
    let result = match Cli::parse().command {
        Command::Plan(args) => cmd::plan::run(args),
    };
    match result {
        Ok(code) => std::process::exit(code),
        Err(e) => {
            eprintln!("eyrie: {e:#}");
            std::process::exit(1);
        }
    }
}
