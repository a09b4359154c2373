//! Ranks that are about to come from another node. A restorer waits with the rank's memory in
//! place, as one image after the other has it. It must never become the rank before the controller
//! starts the rank, and it is killed when the rank does not come.

use crate::background::{Background, Done};
use crate::controller::connection::Connection;
use crate::images::capture::image_pipe;
use crate::images::files::Holds;
use crate::images::incoming::{Incoming, Restorer};
use crate::images::transfer;
use crate::node::Agent;
use crate::rank::launch::{From, Launched};
use crate::setup::Setup;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::StoreAt;
use eyrie_wire::control::{FromAgent, ImageAt, StartRank};
use eyrie_wire::{ImageId, RankInstance};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// What is in place for a rank that is to be started.
pub enum InPlace {
    /// This image; 0: nothing.
    Image(ImageId),
    /// An image is on its way: it is known when that has arrived.
    Later,
}

/// Prepares for ranks that come from other nodes.
pub struct Preparations<'a> {
    incoming: &'a mut BTreeMap<RankInstance, Incoming>,
    holds: &'a Holds,
    setup: &'a Setup,
    secret: &'a Secret,
    background: &'a Background,
    connection: &'a mut Connection,
}

impl Agent {
    pub fn preparations(&mut self) -> Preparations<'_> {
        let Agent { incoming, holds, setup, attachment, background, connection, .. } = self;
        Preparations { incoming, holds, setup, secret: attachment.secret(), background, connection }
    }
}

impl Preparations<'_> {
    /// Puts an image in place. A request that comes while another one is being carried out is from
    /// a controller that does not wait for answers: it is refused.
    pub fn begin(&mut self, start: Box<StartRank>) {
        let instance = start.instance;
        let Some(ImageAt { image, store }) = start.image.clone() else { return };
        if let Err(reason) = self.begin_to_prepare(&start, image, &store) {
            self.end(instance);
            let result = Err(format!("{reason:#}"));
            self.connection.send(&FromAgent::Prepared { instance, image, result });
        }
    }

    fn begin_to_prepare(
        &mut self,
        start: &StartRank,
        image: ImageId,
        store: &StoreAt,
    ) -> anyhow::Result<()> {
        let addr = store.reached_at().map_err(anyhow::Error::msg)?.clone();
        let instance = start.instance;
        if !self.incoming.contains_key(&instance) {
            let (stream, into) = image_pipe()?;
            let from = From::Image { stream, held: Vec::new() };
            let launched = self.setup.launch(start, from)?;
            let restorer = Restorer(launched.pid);
            let incoming =
                Incoming { restorer, launched, image: ImageId(0), into: Some(into), start: None };
            self.incoming.insert(instance, incoming);
        }
        let incoming = self.incoming.get_mut(&instance).filter(|incoming| incoming.start.is_none());
        let incoming = incoming.ok_or_else(|| anyhow::anyhow!("its start was ordered already"))?;
        let into = incoming.into.take();
        let into = into.ok_or_else(|| anyhow::anyhow!("another image is on its way"))?;
        let since = incoming.image;
        let secret = self.secret.clone();
        self.background.run(move || {
            let opened = transfer::open(&addr, &secret, instance.rank, image, since);
            let result = opened.map_err(|(reason, _)| reason).and_then(|(stream, _)| {
                let fed = transfer::feed_and_wait(stream, image, &into);
                fed.map_err(|e| format!("the image did not arrive: {e}"))
            });
            Done::Prepared { instance, image, into, result }
        });
        Ok(())
    }

    /// An image is in place, or not. After one that did not arrive whole nothing can be used.
    /// Returns the start that was ordered meanwhile.
    pub fn prepared(
        &mut self,
        instance: RankInstance,
        image: ImageId,
        into: OwnedFd,
        result: Result<u64, String>,
    ) -> Option<Box<StartRank>> {
        let incoming = self.incoming.get_mut(&instance)?;
        (incoming.image, incoming.into) = (image, Some(into));
        let start = incoming.start.take();
        if result.is_err() {
            self.end(instance);
        }
        self.connection.send(&FromAgent::Prepared { instance, image, result });
        start
    }

    /// The rank does not come to this node.
    pub fn end(&mut self, instance: RankInstance) {
        self.incoming.remove(&instance);
    }

    /// A child has ended. It may be a restorer that waited: then returns the start that was ordered
    /// meanwhile.
    pub fn child_ended(&mut self, pid: u32) -> Option<Box<StartRank>> {
        let found = self.incoming.iter().find(|(_, incoming)| incoming.restorer.0 == pid);
        let instance = *found?.0;
        let incoming = self.incoming.remove(&instance)?;
        let Incoming { restorer, launched, image, start, .. } = incoming;
        // Another process may have its number by now: it must not be killed.
        std::mem::forget(restorer);
        let result = Err(launched.last_line());
        self.connection.send(&FromAgent::Prepared { instance, image, result });
        start
    }

    /// What is in place for a rank that is to be started. Other incarnations of it do not come any
    /// more. A rank that needs files whose names lead elsewhere by now is restored from the
    /// beginning.
    pub fn is_in_place(&mut self, start: &StartRank) -> InPlace {
        let RankInstance { rank, .. } = start.instance;
        let image = start.image.as_ref().map_or(ImageId(0), |at| at.image);
        let held = !self.holds.displaced(rank, image).is_empty();
        self.incoming.retain(|other, _| other.rank != rank || *other == start.instance && !held);
        match self.incoming.get(&start.instance) {
            None => InPlace::Image(ImageId(0)),
            Some(Incoming { into: Some(_), image, .. }) => InPlace::Image(*image),
            Some(Incoming { into: None, .. }) => InPlace::Later,
        }
    }

    /// Keeps the start until the image on its way is in place.
    pub fn start_later(&mut self, start: Box<StartRank>) {
        if let Some(incoming) = self.incoming.get_mut(&start.instance) {
            incoming.start = Some(start);
        }
    }

    /// The process that becomes this incoming rank, and the pipe from which it reads its last
    /// image.
    pub fn take(&mut self, start: &StartRank) -> Option<(Launched, OwnedFd)> {
        let incoming = self.incoming.remove(&start.instance)?;
        let Incoming { restorer, launched, into, .. } = incoming;
        let into = into?;
        std::mem::forget(restorer);
        Some((launched, into))
    }
}
