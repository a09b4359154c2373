//! The `eyrie` command: argument parsing and output, nothing else of weight.

use clap::{CommandFactory, Parser, Subcommand};
use eyrie_cli::ending;
use eyrie_host::enough;
use eyrie_wire::control::RoleKind;
use std::path::PathBuf;

mod cmd;
mod log;

/// Keeps MPI jobs running through node failures and node departures.
///
/// The program is not changed, not recompiled, not relinked; only a failed rank rolls back, the
/// others do not notice. Start with `eyrie run -n 4 PROGRAM`.
#[derive(Parser)]
#[command(name = "eyrie", version)]
struct Cli {
    /// Write what each part of Eyrie does to this file, a line each; as JSON when its name ends in
    /// .json
    ///
    /// EYRIE_LOG says how much: a level (error, warn, info, debug, trace), or levels by part, like
    /// `warn,eyrie_router=debug`. Without this option, what EYRIE_LOG asks for goes to standard
    /// error.
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    log: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run an MPI program so that it survives the death of its ranks and nodes
    Run(Box<cmd::run::RunArgs>),
    /// Go on with a job whose `eyrie run` has died
    Resume(cmd::resume::ResumeArgs),
    /// Submit a batch script to Slurm so that its job survives lost nodes
    Sbatch(cmd::sbatch::SbatchArgs),
    /// Say what works on this host, or on several, and what does not
    Check(cmd::check::CheckArgs),
    /// Show the running jobs, or one of them
    Status(cmd::status::StatusArgs),
    Events(cmd::events::EventsArgs),
    Serve(cmd::serve::ServeArgs),
    /// Remove what jobs left whose launcher was killed
    Clean(cmd::clean::CleanArgs),
    /// Let a failure happen in a running job
    Inject(cmd::inject::InjectArgs),
    /// Give a running job more hosts
    Join(cmd::join::JoinArgs),
    /// Take a checkpoint of a running job now
    Checkpoint(cmd::checkpoint::CheckpointArgs),
    Stop(cmd::stop::StopArgs),
    Migrate(cmd::migrate::MigrateArgs),
    MigrateDomain(cmd::migrate_domain::MigrateDomainArgs),
    Drain(cmd::drain::DrainArgs),
    Undrain(cmd::drain::UndrainArgs),
    Balance(cmd::balance::BalanceArgs),
    Rearrange(cmd::rearrange::RearrangeArgs),
    Consolidate(cmd::balance::ConsolidateArgs),
    Traffic(cmd::traffic::TrafficArgs),
    Health(cmd::health::HealthArgs),
    /// Show what a rank of a running job did last
    Trace(cmd::trace::TraceArgs),
    /// Say where a failed node's ranks should go, and what it costs
    Plan(Box<cmd::plan::PlanArgs>),
    /// Watch nodes and processes without slowing the job
    Monitor(Box<cmd::monitor::MonitorArgs>),
    /// Print the completions of a shell
    Completions(cmd::completions::CompletionsArgs),
    /// Write the manual pages into a directory
    Man(cmd::man::ManArgs),
    /// A node of a job; started by `eyrie run`
    #[command(hide = true)]
    Agent(cmd::agent::AgentArgs),
    /// Removes what a killed agent leaves; started by it
    #[command(hide = true)]
    Sweep(cmd::sweep::SweepArgs),
    /// A router of a job in a process of its own; started by `eyrie run`
    #[command(hide = true)]
    Router(cmd::role::RoleArgs),
    /// The store of a job in a process of its own; started by `eyrie run`
    #[command(hide = true)]
    Store(cmd::role::RoleArgs),
}

impl Command {
    /// The role of the process that carries it out.
    fn role(&self) -> String {
        match self {
            Command::Run(_) | Command::Resume(_) => "controller".into(),
            Command::Agent(args) => {
                args.node().map_or("agent".into(), |node| format!("agent-{node}"))
            }
            Command::Router(args) => format!("router-{}", args.id()),
            Command::Store(_) => "store".into(),
            _ => "eyrie".into(),
        }
    }
}

/// The exit code of a command that has failed.
fn code_of(e: &anyhow::Error) -> i32 {
    e.downcast_ref::<eyrie_controller::runtime::NotRunnable>().map_or(1, |e| e.code)
}

fn main() {
    ending::abort_on_panic();
    if let Err(lacking) = enough::for_a_command() {
        ending::fail(&anyhow::Error::msg(lacking), 1);
    }
    enough::prepare();
    let Cli { log, command } = Cli::try_parse().unwrap_or_else(|e| ending::refuse(&e));
    if let Err(e) = log::begin(command.role(), log.as_deref()) {
        ending::fail(&e, code_of(&e));
    }
    if let Command::Router(_) | Command::Store(_) | Command::Sweep(_) = &command {
        // Without them it does less, and says nothing of it.
        let _ = eyrie_supervision::outlive_signals();
    }
    let result = match command {
        Command::Run(args) => cmd::run::run(*args, log),
        Command::Resume(args) => cmd::resume::run(args, log),
        Command::Sbatch(args) => cmd::sbatch::run(&args),
        Command::Check(args) => cmd::check::run(args),
        Command::Status(args) => cmd::status::run(&args),
        Command::Events(args) => cmd::events::run(&args),
        Command::Serve(args) => cmd::serve::run(args),
        Command::Clean(args) => cmd::clean::run(&args),
        Command::Inject(args) => cmd::inject::run(&args),
        Command::Join(args) => cmd::join::run(&args),
        Command::Checkpoint(args) => cmd::checkpoint::run(&args),
        Command::Stop(args) => cmd::stop::run(&args),
        Command::Migrate(args) => cmd::migrate::run(&args),
        Command::MigrateDomain(args) => cmd::migrate_domain::run(&args),
        Command::Drain(args) => cmd::drain::drain(&args),
        Command::Balance(args) => cmd::balance::balance(&args),
        Command::Rearrange(args) => cmd::rearrange::run(&args),
        Command::Consolidate(args) => cmd::balance::consolidate(&args),
        Command::Undrain(args) => cmd::drain::undrain(&args),
        Command::Traffic(args) => cmd::traffic::run(&args),
        Command::Health(args) => cmd::health::run(&args),
        Command::Trace(args) => cmd::trace::run(&args),
        Command::Plan(args) => cmd::plan::run(&args),
        Command::Monitor(args) => cmd::monitor::run(*args),
        Command::Completions(args) => cmd::completions::run(&args, Cli::command()),
        Command::Man(args) => cmd::man::run(&args, Cli::command()),
        Command::Agent(args) => cmd::agent::run(args, log),
        Command::Sweep(args) => cmd::sweep::run(&args),
        Command::Router(args) => {
            cmd::role::run(RoleKind::Router, &args, eyrie_gateway::role::serve)
        }
        Command::Store(args) => {
            cmd::role::run(RoleKind::Store, &args, eyrie_store::role::serving::serve)
        }
    };
    match result {
        Ok(code) => std::process::exit(code),
        Err(e) => ending::fail(&e, code_of(&e)),
    }
}
