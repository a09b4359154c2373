//! Ranks that are about to come from another node: a restorer has their memory in place, as it is
//! in one image after the other, and waits. It must never become the rank before its start is
//! ordered, and is gone when that does not come.

use crate::capture::image_pipe;
use crate::coming::{Coming, Restorer};
use crate::launch::{From, Launched};
use crate::node::{Agent, Done};
use crate::transfer;
use eyrie_transport::Addr;
use eyrie_wire::control::{FromAgent, ImageAt, StartRank};
use eyrie_wire::{ImageId, RankInstance};
use std::os::fd::OwnedFd;

/// What a rank that is to be started has in place.
pub enum InPlace {
    /// This image; 0: nothing.
    Image(ImageId),
    /// It will be known when the image on its way has come.
    Later,
}

impl Agent {
    /// Puts an image in place. An order that comes while another is being carried out is for a
    /// controller that does not wait for answers: it is refused.
    pub fn prepare(&mut self, start: Box<StartRank>) {
        let instance = start.instance;
        let Some(ImageAt { image, store }) = start.image.clone() else { return };
        if let Err(reason) = self.begin_to_prepare(&start, image, &store) {
            self.unprepare(instance);
            let result = Err(format!("{reason:#}"));
            self.connection.send(&FromAgent::Prepared { instance, image, result });
        }
    }

    fn begin_to_prepare(
        &mut self,
        start: &StartRank,
        image: ImageId,
        store: &str,
    ) -> anyhow::Result<()> {
        let store: Addr = store.parse().map_err(anyhow::Error::msg)?;
        let instance = start.instance;
        if !self.coming.contains_key(&instance) {
            let (stream, into) = image_pipe()?;
            let from = From::Image { stream, held: Vec::new() };
            let launched = self.launch_from(start, from)?;
            let restorer = Restorer(launched.pid);
            let coming = Coming { restorer, launched, image: 0, into: Some(into), start: None };
            self.coming.insert(instance, coming);
        }
        let coming = self.coming.get_mut(&instance).filter(|coming| coming.start.is_none());
        let coming = coming.ok_or_else(|| anyhow::anyhow!("its start was ordered already"))?;
        let into = coming.into.take();
        let into = into.ok_or_else(|| anyhow::anyhow!("another image is on its way"))?;
        let (since, secret) = (coming.image, self.secret.clone());
        self.in_background(move || {
            let opened = transfer::open(&store, &secret, instance.rank, image, since);
            let result = opened.map_err(|(reason, _)| reason).and_then(|(stream, _)| {
                let fed = transfer::feed_and_wait(stream, image, &into);
                fed.map_err(|e| format!("the image did not arrive: {e}"))
            });
            Done::Prepared { instance, image, into, result }
        });
        Ok(())
    }

    /// An image is in place, or not. One that did not come whole leaves nothing to go on with.
    pub fn prepared(
        &mut self,
        instance: RankInstance,
        image: ImageId,
        into: OwnedFd,
        result: Result<u64, String>,
    ) {
        let Some(coming) = self.coming.get_mut(&instance) else { return };
        (coming.image, coming.into) = (image, Some(into));
        let start = coming.start.take();
        if result.is_err() {
            self.unprepare(instance);
        }
        self.connection.send(&FromAgent::Prepared { instance, image, result });
        if let Some(start) = start {
            self.start(start);
        }
    }

    /// The rank does not come.
    pub fn unprepare(&mut self, instance: RankInstance) {
        self.coming.remove(&instance);
    }

    /// A child has ended: perhaps a restorer that waited.
    pub fn coming_ended(&mut self, pid: u32) {
        let found = self.coming.iter().find(|(_, coming)| coming.restorer.0 == pid);
        let Some(instance) = found.map(|(instance, _)| *instance) else { return };
        let Some(coming) = self.coming.remove(&instance) else { return };
        let Coming { restorer, launched, image, start, .. } = coming;
        // Its number may be another process's by now.
        std::mem::forget(restorer);
        let result = Err(launched.last_words());
        self.connection.send(&FromAgent::Prepared { instance, image, result });
        if let Some(start) = start {
            self.start(start);
        }
    }

    /// What a rank that is to be started has in place. Others that were about to come with the same
    /// number do not come any more, and what needs files whose names lead elsewhere by now is
    /// restored from the beginning.
    pub fn is_in_place(&mut self, start: &StartRank) -> InPlace {
        let RankInstance { rank, .. } = start.instance;
        let image = start.image.as_ref().map_or(0, |at| at.image);
        let held = !self.holds.displaced(rank, image).is_empty();
        self.coming.retain(|other, _| other.rank != rank || *other == start.instance && !held);
        match self.coming.get(&start.instance) {
            None => InPlace::Image(0),
            Some(Coming { into: Some(_), image, .. }) => InPlace::Image(*image),
            Some(Coming { into: None, .. }) => InPlace::Later,
        }
    }

    /// The start waits until the image on its way is in place.
    pub fn start_later(&mut self, start: Box<StartRank>) {
        if let Some(coming) = self.coming.get_mut(&start.instance) {
            coming.start = Some(start);
        }
    }

    /// The process that a rank becomes which was about to come, and where it reads its last image.
    pub fn take_coming(&mut self, start: &StartRank) -> Option<(Launched, OwnedFd)> {
        let coming = self.coming.remove(&start.instance)?;
        let Coming { restorer, launched, into, .. } = coming;
        let into = into?;
        std::mem::forget(restorer);
        Some((launched, into))
    }
}
