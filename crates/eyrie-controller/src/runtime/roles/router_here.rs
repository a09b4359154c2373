//! What keeps the messages of a job on one host, as a thread of this process: a router, or where
//! messages go straight the keeper of its ledgers.

use anyhow::{anyhow, Context};
use crossbeam_channel::Sender;
use eyrie_keeper::Keeper;
use eyrie_router::{Config, Router, RouterCommand, RouterEvent};
use eyrie_wire::auth::Secret;
use eyrie_wire::directory::MessagePath;
use eyrie_wire::RouterId;
use std::io;

/// What keeps messages, in this process.
pub enum RouterHere {
    Router(Router),
    Keeper(Keeper),
}

impl RouterHere {
    /// Starts it; its events say the number in `config`.
    ///
    /// # Errors
    /// Why it cannot be started, in words for users.
    pub fn start(
        path: MessagePath,
        config: Config,
        secret: Secret,
        events: Sender<(RouterId, RouterEvent)>,
    ) -> anyhow::Result<RouterHere> {
        Ok(match path {
            MessagePath::Router => {
                let router = Router::start(config, secret, events);
                RouterHere::Router(router.context("cannot start a router")?)
            }
            MessagePath::Direct => {
                let is_saved = config.saved.is_some();
                let keeper = Keeper::start(config, secret, events);
                RouterHere::Keeper(keeper.map_err(|e| no_ledgers(&e, is_saved))?)
            }
        })
    }

    /// Gives it a command; its results are events.
    pub fn command(&self, command: RouterCommand) {
        match self {
            RouterHere::Router(router) => router.command(command),
            RouterHere::Keeper(keeper) => keeper.command(command),
        }
    }
}

/// Why there is no keeper, and what helps. A saved job keeps its path.
fn no_ledgers(cause: &io::Error, is_saved: bool) -> anyhow::Error {
    if is_saved {
        return anyhow!("the job cannot go on with its ledgers: {cause}");
    }
    anyhow!(
        "messages cannot go straight here: {cause}. With --path router the job needs no ledgers"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_out_is_said_once_and_only_to_a_job_that_may_choose() {
        let cause = io::Error::other("there is no shared memory");
        let said = no_ledgers(&cause, false).to_string();
        assert_eq!(said.matches("--path router").count(), 1, "{said}");
        assert!(!no_ledgers(&cause, true).to_string().contains("--path"));
    }
}
