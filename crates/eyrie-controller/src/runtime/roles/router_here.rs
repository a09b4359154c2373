//! What keeps the messages of a job on one host, as a thread of this process: a router, or where
//! messages go straight the keeper of its ledgers.

use anyhow::{anyhow, Context};
use crossbeam_channel::Sender;
use eyrie_keeper::Keeper;
use eyrie_router::{Config, Router, RouterCommand, RouterEvent};
use eyrie_wire::auth::Secret;
use eyrie_wire::directory::MessagePath;
use eyrie_wire::RouterId;

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
                let was_saved = config.saved.is_some();
                let keeper = Keeper::start(config, secret, events).map_err(|e| {
                    if was_saved {
                        anyhow!("cannot go on from what was saved: {e}")
                    } else {
                        anyhow!("messages cannot go straight here: {e}; or use --path router")
                    }
                });
                RouterHere::Keeper(keeper?)
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
