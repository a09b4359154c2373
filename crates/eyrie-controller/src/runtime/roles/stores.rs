//! Stores: what they are told at their start, and what they say. That of a job with one host, and
//! the archive of saved jobs, are threads of this process.

use super::kind::{Hearing, Kind, Starting};
use super::peers::THE_STORE;
use crate::machine::FromPeer;
use crate::runtime::images_dir::ImagesDir;
use crate::runtime::inbound::{Heard, Inbound, Letter};
use crate::runtime::link::{encode_long, Session};
use crate::runtime::options::JobOptions;
use crossbeam_channel::Sender;
use eyrie_interface::RolesAt;
use eyrie_store::role::{Config, StoreCommand, StoreEvent, StoreRole, Stored};
use eyrie_transport::frame;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Role, RoleKind};
use eyrie_wire::role_address::Bind;
use eyrie_wire::RankInstance;
use eyrie_wire::StoreId;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// What a store is told at its start.
fn config(
    id: StoreId,
    options: &JobOptions,
    job: &str,
    dir: &Path,
    peer: Option<IpAddr>,
) -> Config {
    let name = format!("store-{id}");
    let listen = options.reach.bind_for(peer, dir, &name);
    let (dir, sync) = match &options.images {
        // What was saved must be there after a power failure, too.
        Some(images) if options.roles != RolesAt::Nodes || id == THE_STORE => {
            (ImagesDir::store(images), true)
        }
        _ => (dir.join(name), false),
    };
    Config { job: job.into(), dir, sync, listen }
}

/// Starts the store beside the controller: that of a job's start, or, where stores run on nodes,
/// the archive, if the job has one.
///
/// # Errors
/// When it cannot be started.
pub fn start_here(
    options: &JobOptions,
    job: &str,
    dir: &Path,
    secret: &Secret,
    archives: bool,
    inbound: &Sender<Inbound>,
) -> anyhow::Result<Option<Arc<StoreRole>>> {
    if options.roles == RolesAt::Nodes && !archives {
        return Ok(None);
    }
    let config = config(THE_STORE, options, job, dir, None);
    let inbound = inbound.clone();
    if let Bind::Unix(socket) = &config.listen {
        // That of an earlier controller, which is dead.
        drop(std::fs::remove_file(socket));
    }
    // The main thread receives no more only while the job ends.
    let tell = move |event| {
        let role = Role::first(RoleKind::Store, THE_STORE.0);
        let heard = Heard::From(Letter::NONE, FromPeer::Store(role, event));
        drop(inbound.send(Inbound::Heard(heard)));
    };
    Ok(Some(StoreRole::start(&config, secret.clone(), tell)?))
}

/// The store of a saved job has these images: those that are not needed go.
fn compare(hearing: &mut Hearing<'_>, images: &[(RankInstance, Stored)]) {
    let Some(mut needed) = hearing.needed_images.take() else { return };
    for (RankInstance { rank, .. }, Stored { image, .. }) in images {
        if !needed.remove(&(*rank, *image)) {
            hearing.needless.push((*rank, *image));
        }
    }
    // The one before it, and the log, may do.
    for (rank, image) in needed {
        let text = format!("image {image} of rank {rank}, which was saved, is gone or damaged");
        hearing.notes.push(text);
    }
}

/// Stores.
pub struct StoreKind;

impl Kind for StoreKind {
    fn begin(&self, starting: &mut Starting<'_>, role: Role, _: bool) -> anyhow::Result<Session> {
        let Starting { options, kvsname, dir, machine, peer, progress, .. } = *starting;
        let config = config(StoreId(role.id), options, kvsname, dir, peer);
        let mut session = Session::with(progress, &config);
        // Images of earlier incarnations are refused there, too.
        for (instance, _, _) in machine.rank_states() {
            session.send(progress, encode_long(&StoreCommand::Present(instance)));
        }
        Ok(session)
    }

    fn decode(&self, role: Role, payload: &[u8]) -> io::Result<FromPeer> {
        Ok(FromPeer::Store(role, frame::decode(payload)?))
    }

    fn hear(&self, hearing: &mut Hearing<'_>, message: &FromPeer) {
        let FromPeer::Store(role, message) = message else { return };
        let archives = StoreId(role.id) == THE_STORE && hearing.options.has_archive();
        match message {
            StoreEvent::Listening(addr) if archives || !hearing.on_nodes() => {
                hearing.role_addresses.store_listens(addr.clone())
            }
            StoreEvent::Stored { live_bytes, .. } => hearing.figures.set_store_bytes(*live_bytes),
            StoreEvent::Inventory { images } => compare(hearing, images),
            _ => {}
        }
    }
}
