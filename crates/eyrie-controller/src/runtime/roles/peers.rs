//! The way to each role of the job: a thread of this process, or the session with a process on a
//! node. What comes of what they are told is an event. Nothing here waits for one.

use super::router_here::RouterHere;
use crate::runtime::link::{encode_long, JournalProgress, SavedSession, Session};
use eyrie_router::RouterCommand;
use eyrie_store::role::{StoreCommand, StoreRole};
use eyrie_wire::control::RoleKind;
use eyrie_wire::{RouterId, StoreId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of the store that runs beside the controller.
pub const THE_STORE: StoreId = StoreId(0);

/// The ways to all roles.
#[derive(Default)]
pub struct RolePeers {
    /// Those that are threads of this process.
    routers: Vec<RouterHere>,
    store: Option<Arc<StoreRole>>,
    /// Those that are processes on nodes, by kind and number.
    sessions: BTreeMap<(RoleKind, u32), Session>,
}

impl RolePeers {
    /// Those that are threads of this process: all of them, or the store alone that has the images
    /// of saved jobs.
    pub fn new(routers: Vec<RouterHere>, store: Option<Arc<StoreRole>>) -> RolePeers {
        RolePeers { routers, store, sessions: BTreeMap::new() }
    }

    /// A role is started on a node. It takes the place of an earlier one, whose connection ends.
    pub fn insert(&mut self, kind: RoleKind, id: u32, session: Session) {
        self.sessions.insert((kind, id), session);
    }

    /// The session with a role on a node.
    pub fn session(&mut self, kind: RoleKind, id: u32) -> Option<&mut Session> {
        self.sessions.get_mut(&(kind, id))
    }

    /// The sessions with all roles on nodes.
    pub fn sessions(&mut self) -> impl Iterator<Item = &mut Session> {
        self.sessions.values_mut()
    }

    /// What another controller needs to go on with these sessions.
    pub fn saved(&self) -> BTreeMap<(RoleKind, u32), SavedSession> {
        self.sessions.iter().map(|(role, session)| (*role, session.saved())).collect()
    }

    /// Goes on with the sessions of another controller.
    pub fn go_on_with(&mut self, saved: BTreeMap<(RoleKind, u32), SavedSession>) {
        let session = |(role, saved)| (role, Session::of(saved));
        self.sessions = saved.into_iter().map(session).collect();
    }

    /// The numbers of all routers.
    pub fn routers(&self) -> Vec<RouterId> {
        let here = RouterId::first(self.routers.len() as u32);
        here.chain(self.numbers(RoleKind::Router).map(RouterId)).collect()
    }

    /// The numbers of those of a kind that are on nodes.
    fn numbers(&self, kind: RoleKind) -> impl Iterator<Item = u32> + '_ {
        self.sessions.range((kind, 0)..=(kind, u32::MAX)).map(|((_, id), _)| *id)
    }

    /// Tells one router.
    pub fn send_router(&mut self, progress: JournalProgress, id: RouterId, command: RouterCommand) {
        if let Some(router) = self.routers.get(id.index()) {
            router.command(command);
        } else if let Some(session) = self.session(RoleKind::Router, id.0) {
            session.send(progress, encode_long(&command));
        }
    }

    /// Tells all routers.
    pub fn send_routers(&mut self, progress: JournalProgress, command: &RouterCommand) {
        for id in self.routers() {
            self.send_router(progress, id, command.clone());
        }
    }

    /// Asks all routers for figures. Such a question ends with its connection: only this process
    /// asks.
    pub fn ask_routers(&self, question: &RouterCommand) {
        self.routers.iter().for_each(|router| router.command(question.clone()));
        for id in self.numbers(RoleKind::Router) {
            self.sessions[&(RoleKind::Router, id)].send_passing(encode_long(question));
        }
    }

    /// Tells one store; the message to a store that is lost has no effect.
    ///
    /// # Errors
    /// What could not be done, for users, where it is known at once.
    pub fn send_store(
        &mut self,
        progress: JournalProgress,
        id: StoreId,
        command: StoreCommand,
    ) -> Result<(), String> {
        match &self.store {
            Some(store) if id == THE_STORE => return store.command(command),
            _ => {}
        }
        if let Some(session) = self.session(RoleKind::Store, id.0) {
            session.send(progress, encode_long(&command));
        }
        Ok(())
    }

    /// The numbers of all stores.
    pub fn stores(&self) -> Vec<StoreId> {
        let here = self.store.iter().map(|_| THE_STORE);
        here.chain(self.numbers(RoleKind::Store).map(StoreId)).collect()
    }
}
