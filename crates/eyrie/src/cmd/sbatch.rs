//! `eyrie sbatch`: submits a batch script to Slurm with what a job needs to survive its nodes. It
//! changes options only; the script is submitted as it is.

use anyhow::Context;
use eyrie_controller::runtime::{ENV_NO_KILL, ENV_SPARES};
use eyrie_interface::options;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;

/// Submit a batch script to Slurm so that its job survives lost nodes.
///
/// Runs sbatch with your options and adds what `eyrie run` in the script needs: --no-kill, without
/// which Slurm ends the whole job when one node fails, and the nodes that are to stay free, on top
/// of those that -N asks for.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct SbatchArgs {
    /// Number of nodes held free for the ranks of failed ones, on top of --nodes
    #[arg(long, default_value_t = options::BATCH_SPARES, value_name = "S")]
    spares: u32,
    /// Show the command, and do not run it
    #[arg(long)]
    dry_run: bool,
    /// sbatch's options, the script and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "OPTIONS... SCRIPT"
    )]
    rest: Vec<OsString>,
}

const EXAMPLES: &str = "Example:
  A script job.sh with `#SBATCH -N 4`, `#SBATCH --ntasks-per-node=16` and `eyrie run ./solver`, on five nodes, one of
  which stays free:
      eyrie sbatch job.sh";

/// Options of sbatch that take a value as a word of their own, as far as they have a short form.
const SHORT_WITH_VALUE: &str = "aAbcCdDeFGiJLmMnNopqtwxS";

pub fn run(args: &SbatchArgs) -> anyhow::Result<i32> {
    let script = script(&args.rest).map(std::fs::read).transpose();
    let script = script.with_context(|| "cannot read the script".to_string())?;
    let text = String::from_utf8_lossy(script.as_deref().unwrap_or_default()).into_owned();
    let words = with_spares(&args.rest, &text, args.spares).map_err(anyhow::Error::msg)?;
    if args.dry_run {
        let shown: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        eyrie_cli::out::line(format_args!(
            "{ENV_SPARES}={} {ENV_NO_KILL}=1 sbatch {}",
            args.spares,
            shown.join(" ")
        ))?;
        return Ok(0);
    }
    let failed = std::process::Command::new("sbatch")
        .args(words)
        .env(ENV_SPARES, args.spares.to_string())
        .env(ENV_NO_KILL, "1")
        .exec();
    Err(anyhow::Error::new(failed).context("cannot run sbatch"))
}

/// Where sbatch's own options end.
fn options_end(words: &[OsString]) -> usize {
    let mut at = 0;
    while let Some(word) = words.get(at).and_then(|w| w.to_str()) {
        let mut letters = word.chars().skip(1);
        match (word.starts_with("--"), word.starts_with('-'), letters.next()) {
            (true, _, _) if LONG_ALONE.contains(&word) || word.contains('=') => at += 1,
            (true, _, _) => at += 2,
            (_, true, Some(c)) if SHORT_WITH_VALUE.contains(c) && letters.next().is_none() => {
                at += 2
            }
            (_, true, Some(_)) => at += 1,
            _ => break,
        }
    }
    at.min(words.len())
}

/// Long options of sbatch that take no value as a word of their own.
const LONG_ALONE: [&str; 17] = [
    "--contiguous",
    "--exclusive",
    "--get-user-env",
    "--hold",
    "--ignore-pbs",
    "--kill-on-invalid-dep",
    "--no-kill",
    "--no-requeue",
    "--overcommit",
    "--oversubscribe",
    "--parsable",
    "--quiet",
    "--reboot",
    "--requeue",
    "--spread-job",
    "--test-only",
    "--verbose",
];

fn script(words: &[OsString]) -> Option<&Path> {
    words.get(options_end(words)).map(Path::new)
}

/// The value of an option among words, last one first.
fn value<'a>(words: &[&'a str], long: &str, short: Option<&str>) -> Option<&'a str> {
    let of = |(at, word): (usize, &&'a str)| {
        if let Some(rest) = word.strip_prefix(long) {
            return match rest.strip_prefix('=') {
                Some(value) => Some(value),
                None if rest.is_empty() => words.get(at + 1).copied(),
                None => None,
            };
        }
        let rest = word.strip_prefix(short?).filter(|_| !word.starts_with("--"))?;
        match rest {
            "" => words.get(at + 1).copied(),
            value => Some(value.strip_prefix('=').unwrap_or(value)),
        }
    };
    words.iter().enumerate().rev().find_map(of)
}

/// The words for sbatch: those given, with --no-kill and the spares added to --nodes. `script` is
/// the text of the script, whose #SBATCH lines count where the words say nothing.
fn with_spares(words: &[OsString], script: &str, spares: u32) -> Result<Vec<OsString>, String> {
    let end = options_end(words);
    let given: Vec<&str> = words[..end].iter().filter_map(|word| word.to_str()).collect();
    let lines = script.lines().filter_map(|line| line.strip_prefix("#SBATCH "));
    let of_script: Vec<&str> = lines
        .flat_map(|line| line.split('#').next().unwrap_or_default().split_whitespace())
        .collect();
    let find = |long, short: Option<&str>| {
        value(&given, long, short).or_else(|| value(&of_script, long, short))
    };
    let nodes = find("--nodes", Some("-N")).unwrap_or("1");
    if let (Some(tasks), None) = (find("--ntasks", Some("-n")), find("--ntasks-per-node", None)) {
        return Err(format!(
            "--ntasks={tasks} would be spread over the spare nodes too: say --ntasks-per-node instead, \
             and `eyrie run -n {tasks}` in the script"
        ));
    }
    let more = |count: &str| -> Result<String, String> {
        let count: u32 = count.parse().map_err(|_| format!("--nodes={nodes} is not understood"))?;
        Ok(count.saturating_add(spares).to_string())
    };
    let counts: Vec<String> = nodes.split('-').map(more).collect::<Result<_, _>>()?;
    let mut all: Vec<OsString> = words[..end].to_vec();
    all.push("--no-kill".into());
    all.push(format!("--nodes={}", counts.join("-")).into());
    all.extend(words[end..].iter().map(|word| OsStr::new(word).to_os_string()));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submitted(words: &str, script: &str, spares: u32) -> Result<String, String> {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let all = with_spares(&words, script, spares)?;
        let all: Vec<_> = all.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(all.join(" "))
    }

    #[test]
    fn spares_are_added_to_the_nodes_of_the_command_line_or_of_the_script() {
        let script = "#!/bin/sh\n#SBATCH -N 4 # four\n#SBATCH --time=1:00\neyrie run ./x\n";
        assert_eq!(submitted("job.sh", script, 1).unwrap(), "--no-kill --nodes=5 job.sh");
        assert_eq!(
            submitted("-N2 -t 10 --requeue job.sh -N 9", script, 2).unwrap(),
            "-N2 -t 10 --requeue --no-kill --nodes=4 job.sh -N 9"
        );
        assert_eq!(
            submitted("--nodes 2-4 -p all job.sh", "", 1).unwrap(),
            "--nodes 2-4 -p all --no-kill --nodes=3-5 job.sh"
        );
        assert_eq!(submitted("job.sh", "", 1).unwrap(), "--no-kill --nodes=2 job.sh");
    }

    #[test]
    fn what_would_put_tasks_on_spares_is_refused() {
        let refused = submitted("-n 8 -N 2 job.sh", "", 1).unwrap_err();
        assert!(refused.contains("--ntasks-per-node"), "{refused}");
        assert!(submitted("-n 8 --ntasks-per-node=4 -N 2 job.sh", "", 1).is_ok());
        assert!(submitted("-N many job.sh", "", 1).unwrap_err().contains("--nodes=many"));
    }
}
