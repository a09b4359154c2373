//! Why a rank cannot go on, in words for the user.

use eyrie_ledger::error::LedgerError;
use eyrie_wire::{Rank, RouterId};
use std::time::Duration;

/// The rank cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub enum RankError {
    /// A router does not let this incarnation in, by these words.
    Refused(String),
    /// A router does not know the job's secret.
    Secret {
        router: RouterId,
    },
    OutOfReach {
        router: RouterId,
        waited: Duration,
        cause: String,
    },
    /// A router is connected and does not answer.
    NoAnswer {
        router: RouterId,
        waited: Duration,
    },
    /// A message of the log did not come in time.
    NoReplay {
        router: RouterId,
        rsn: u64,
        waited: Duration,
    },
    /// The determinants do not belong to this rank.
    Determinants(String),
    /// The content of a logged message cannot be read.
    Content(String),
    /// An image was taken while a large message was on its way, and the connection was lost since.
    LargeMessageLost,
    /// The keeper of the ledgers of this host does not let the rank in.
    KeeperOutOfReach {
        waited: Duration,
        cause: String,
    },
    /// A ledger cannot be read or written.
    Ledger(LedgerError),
    /// A message in a rank's ledger means nothing, though its check is right.
    Damaged {
        source: Rank,
        what: &'static str,
    },
    /// A rank that re-executes waits for a message that it had received before.
    NoReplayFrom {
        source: Rank,
        waited: Duration,
    },
}

impl std::fmt::Display for RankError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RankError::Refused(reason) => f.write_str(reason),
            RankError::Secret { router } => {
                write!(
                    f,
                    "the process at the address of router {router} does not know the job's secret"
                )
            }
            RankError::OutOfReach { router, waited, cause } => {
                let waited = waited.as_secs();
                write!(f, "router {router} has been out of reach for {waited} s: {cause}")
            }
            RankError::NoAnswer { router, waited } => {
                write!(f, "router {router} has not answered for {} s", waited.as_secs())
            }
            RankError::NoReplay { router, rsn, waited } => {
                let waited = waited.as_secs();
                write!(f, "replay has waited {waited} s for message {rsn} from router {router}")
            }
            RankError::Determinants(what) => write!(f, "the log does not fit this rank: {what}"),
            RankError::Content(what) => {
                write!(f, "a logged message cannot be read from its segment: {what}")
            }
            RankError::KeeperOutOfReach { waited, cause } => {
                let waited = waited.as_secs();
                write!(f, "the keeper of the ledgers has been out of reach for {waited} s: {cause}")
            }
            RankError::Ledger(e @ (LedgerError::Full { .. } | LedgerError::TooLong { .. })) => {
                write!(f, "{e}: give it more with --log-memory")
            }
            RankError::Ledger(e) => e.fmt(f),
            RankError::Damaged { source, what } => {
                write!(f, "rank {source}'s ledger is damaged ({what})")
            }
            RankError::NoReplayFrom { source, waited } => {
                let waited = waited.as_secs();
                write!(f, "replay has waited {waited} s for a message of rank {source}")
            }
            RankError::LargeMessageLost => f.write_str(
                "a large message had not reached its router when the image was taken, and its \
                 connection was lost before it did",
            ),
        }
    }
}

impl std::error::Error for RankError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_said_in_whole_seconds() {
        let waited = Duration::from_micros(120_000_017);
        let cause = "it is gone".into();
        let said = RankError::KeeperOutOfReach { waited, cause }.to_string();
        assert_eq!(said, "the keeper of the ledgers has been out of reach for 120 s: it is gone");
    }
}
