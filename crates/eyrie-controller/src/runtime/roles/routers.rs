//! Routers: what they are told at their start, and what they say. Those of a job with one host are
//! threads of this process; where messages go straight there is the keeper of its ledgers instead.

use super::kind::{Hearing, Kind, Starting};
use super::router_here::RouterHere;
use crate::machine::FromPeer;
use crate::runtime::images_dir::ImagesDir;
use crate::runtime::jobdir;
use crate::runtime::link::Session;
use crate::runtime::options::JobOptions;
use crate::runtime::places::Places;
use anyhow::Context;
use crossbeam_channel::Sender;
use eyrie_interface::RolesAt;
use eyrie_router::{Config, RouterEvent, SavedAt};
use eyrie_transport::frame;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Role, RoleKind};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::{Incarnation, RouterId};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// What a router is told at its start.
///
/// # Errors
/// When the disk of the job's directory does not say what is free.
fn config(
    role: Role,
    options: &JobOptions,
    is_primary: Vec<bool>,
    dir: &Path,
    peer: Option<IpAddr>,
) -> anyhow::Result<Config> {
    let free = jobdir::free_bytes(dir)?;
    // One that takes the place of another on the same host must not meet what that has left.
    let name = match role.generation {
        0 => role.id.to_string(),
        generation => format!("{}.{generation}", role.id),
    };
    Ok(Config {
        id: RouterId(role.id),
        kept_until: KeptUntil::Logged,
        takes_over: false,
        gateway: options.gateway_of(RouterId(role.id)),
        saved: None,
        incarnations: vec![Incarnation(1); is_primary.len()],
        is_primary,
        listen: options.reach.bind_for(peer, dir, &format!("router-{name}")),
        spill_dir: dir.join(format!("log-{name}")),
        log_memory: options.log_memory,
        log_disk: options.log_disk.unwrap_or(free / 2 / u64::from(options.routers_and_gateway())),
    })
}

/// Starts the routers of a job in this process; none where they run on nodes.
///
/// # Errors
/// When one cannot be started.
pub fn start_here(
    options: &JobOptions,
    places: &Places,
    dir: &Path,
    secret: &Secret,
    images: Option<&ImagesDir>,
    events: &Sender<(RouterId, RouterEvent)>,
) -> anyhow::Result<Vec<RouterHere>> {
    if options.roles == RolesAt::Nodes {
        return Ok(Vec::new());
    }
    let start = |id| {
        let role = Role::first(RoleKind::Router, id);
        let mut config = config(role, options, places.is_primary_of(RouterId(id)), dir, None)?;
        config.saved = images.and_then(|images| images.router(RouterId(id))).map(SavedAt::File);
        let shown = config.spill_dir.display();
        let made = std::fs::DirBuilder::new().mode(0o700).create(&config.spill_dir);
        made.with_context(|| format!("cannot create {shown}"))?;
        RouterHere::start(options.path, config, secret.clone(), events.clone())
    };
    (0..options.routers).map(start).collect()
}

/// Routers.
pub struct RouterKind;

impl Kind for RouterKind {
    fn begin(
        &self,
        starting: &mut Starting<'_>,
        role: Role,
        takes_over: bool,
    ) -> anyhow::Result<Session> {
        let Starting { options, dir, machine, peer, .. } = *starting;
        let mut config =
            config(role, options, machine.is_primary_of(RouterId(role.id)), dir, peer)?;
        config.incarnations = machine.incarnations();
        config.kept_until = KeptUntil::Received;
        config.takes_over = takes_over;
        if let (Some(gateway), Some(domains)) = (&mut config.gateway, machine.domains()) {
            gateway.domains = domains.clone();
        }
        // What a router of a job that was saved begins with, until the job has started.
        let images = starting.images.filter(|_| !machine.has_started());
        config.saved = images
            .and_then(|images| images.router(RouterId(role.id)))
            .map(|_| SavedAt::Controller(starting.controller.clone()));
        starting.figures.begin(RouterId(role.id));
        Ok(Session::with(starting.progress, &config))
    }

    fn decode(&self, role: Role, payload: &[u8]) -> io::Result<FromPeer> {
        Ok(FromPeer::Router(role, frame::decode(payload)?))
    }

    fn hear(&self, hearing: &mut Hearing<'_>, message: &FromPeer) {
        let FromPeer::Router(role, message) = message else { return };
        match message {
            RouterEvent::Listening(addr) if !hearing.on_nodes() => {
                hearing.role_addresses.router_listens(RouterId(role.id), addr.clone())
            }
            RouterEvent::Lines(lines) => hearing.figures.set_lines(lines.clone()),
            _ => {}
        }
    }
}
