//! Failures made on purpose: what hits whom and when, and how users write it.

use eyrie_units::{duration, written};
use eyrie_wire::{NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// SIGKILL to a rank.
    KillRank(Rank),
    /// SIGKILL to a node's agent and its ranks.
    KillNode(NodeId),
    /// SIGSTOP to a node's agent and its ranks.
    FreezeNode(NodeId),
    /// Breaks a rank's connections to its routers.
    DropConnection(Rank),
}

/// When it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum When {
    /// This long after the job's start, or after the order when the job runs already.
    After(Duration),
    /// In the middle of the next checkpoint of that rank, or of a rank on that node.
    Checkpoint,
    /// In the middle of the next recovery of any rank.
    Recovery,
}

/// One order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Injection {
    At {
        fault: Fault,
        when: When,
    },
    /// `count` kills of random ranks at random times, by a random generator started with `seed`.
    RandomRanks {
        count: u32,
        seed: u64,
    },
}

/// Why a specification is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{spec:?} is no failure to inject: {problem}; write kill-rank=R@TIME, kill-node=N@TIME, freeze-node=N@TIME or \
     drop-connection=R@TIME with a TIME like 1.5s, checkpoint or recovery, or random-ranks=COUNT/SEED"
)]
pub struct BadInjection {
    spec: String,
    problem: &'static str,
}

/// A delay; here a number alone is seconds.
fn delay(text: &str) -> Result<Duration, String> {
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        duration(&format!("{text}s"))
    } else {
        duration(text)
    }
}

impl FromStr for Injection {
    type Err = BadInjection;

    fn from_str(spec: &str) -> Result<Injection, BadInjection> {
        let bad = |problem| BadInjection { spec: spec.to_string(), problem };
        let (kind, rest) = spec.split_once('=').ok_or(bad("it has no ="))?;
        if kind == "random-ranks" {
            let (count, seed) = rest.split_once('/').ok_or(bad("COUNT/SEED has no /"))?;
            return Ok(Injection::RandomRanks {
                count: count.parse().map_err(|_| bad("COUNT is no number"))?,
                seed: seed.parse().map_err(|_| bad("SEED is no number"))?,
            });
        }
        let (target, when) = rest.split_once('@').ok_or(bad("it has no @"))?;
        let target: u32 = target.parse().map_err(|_| bad("the number before @ is none"))?;
        let fault = match kind {
            "kill-rank" => Fault::KillRank(Rank(target)),
            "kill-node" => Fault::KillNode(NodeId(target)),
            "freeze-node" => Fault::FreezeNode(NodeId(target)),
            "drop-connection" => Fault::DropConnection(Rank(target)),
            _ => return Err(bad("unknown kind of failure")),
        };
        let when = match when {
            "checkpoint" => When::Checkpoint,
            "recovery" => When::Recovery,
            time => When::After(delay(time).map_err(|_| bad("TIME is no time"))?),
        };
        Ok(Injection::At { fault, when })
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::After(delay) => f.write_str(&written(*delay)),
            When::Checkpoint => write!(f, "checkpoint"),
            When::Recovery => write!(f, "recovery"),
        }
    }
}

/// As users write it.
impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Injection::At { fault, when } => write!(f, "{fault}@{when}"),
            Injection::RandomRanks { count, seed } => write!(f, "random-ranks={count}/{seed}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::KillRank(r) => write!(f, "kill-rank={r}"),
            Fault::KillNode(n) => write!(f, "kill-node={n}"),
            Fault::FreezeNode(n) => write!(f, "freeze-node={n}"),
            Fault::DropConnection(r) => write!(f, "drop-connection={r}"),
        }
    }
}

impl Injection {
    /// Whether the job has what is to be hit.
    ///
    /// # Errors
    /// Names what is missing.
    pub fn check(&self, ranks: u32, nodes: u32) -> Result<(), String> {
        let Injection::At { fault, .. } = self else { return Ok(()) };
        match *fault {
            Fault::KillRank(r) | Fault::DropConnection(r) if r >= Rank(ranks) => {
                Err(format!("there is no rank {r}: the job has ranks 0 to {}", ranks - 1))
            }
            Fault::KillNode(n) | Fault::FreezeNode(n) if n >= NodeId(nodes) => Err(format!(
                "there is no node {n}: the job has nodes 0 to {}, spares included",
                nodes - 1
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn specifications_of_the_command_line() {
        let at = |fault, when| Ok(Injection::At { fault, when });
        let after = |ms| When::After(Duration::from_millis(ms));
        assert_eq!("kill-rank=2@1.5s".parse(), at(Fault::KillRank(Rank(2)), after(1500)));
        assert_eq!("kill-node=0@200ms".parse(), at(Fault::KillNode(NodeId(0)), after(200)));
        assert_eq!("freeze-node=1@2m".parse(), at(Fault::FreezeNode(NodeId(1)), after(120_000)));
        assert_eq!(
            "kill-rank=1@checkpoint".parse(),
            at(Fault::KillRank(Rank(1)), When::Checkpoint)
        );
        assert_eq!("kill-node=1@recovery".parse(), at(Fault::KillNode(NodeId(1)), When::Recovery));
        assert_eq!("drop-connection=3@1".parse(), at(Fault::DropConnection(Rank(3)), after(1000)));
        assert_eq!("random-ranks=5/42".parse(), Ok(Injection::RandomRanks { count: 5, seed: 42 }));
    }

    #[test]
    fn wrong_ones_say_what_is_wrong() {
        for (spec, problem) in [
            ("kill-rank", "no ="),
            ("kill-rank=1", "no @"),
            ("kill-rank=x@1s", "before @"),
            ("eat-rank=1@1s", "unknown kind"),
            ("kill-rank=1@-1s", "no time"),
            ("kill-rank=1@nans", "no time"),
            ("random-ranks=5", "no /"),
        ] {
            let error = spec.parse::<Injection>().unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("kill-rank=R@TIME"), "{error}");
        }
        let i: Injection = "kill-rank=4@1s".parse().unwrap();
        assert!(i.check(4, 1).unwrap_err().contains("ranks 0 to 3"));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,40}") {
            let _ = text.parse::<Injection>();
        }
    }
}
