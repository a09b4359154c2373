//! Image streams between agents and the store, each on the thread of its connection.

use super::admission::Services;
use super::inbound::Inbound;

use crate::machine::Image;
use eyrie_store::ImageInfo;
use eyrie_transport::{frame, Stream};
use eyrie_wire::control::{ImageAnswer, ImageMeta};
use eyrie_wire::{ImageId, Rank, RankInstance};
use std::io::{self, BufWriter, Read, Write};
use std::time::Duration;

/// How long either end of a stream may be silent.
const STALL: Duration = Duration::from_secs(60);

/// Ends the stream of a rank that has got a later incarnation meanwhile.
struct Present<'a> {
    stream: Stream,
    services: &'a Services,
    instance: RankInstance,
}

impl Read for Present<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(buf)?;
        if !self.services.admission.is_present(self.instance) {
            return Err(io::Error::other("the rank has died meanwhile"));
        }
        Ok(n)
    }
}

/// Takes an image in.
pub fn receive(instance: RankInstance, image: ImageId, mut stream: Stream, services: &Services) {
    match take_in(instance, image, &mut stream, services) {
        Ok(stored) => {
            // Before the agent knows: what it says of the image comes after this.
            let _ = services.inbound.send(Inbound::ImageStored { instance, image: stored });
            // The agent may be gone.
            let _ = frame::write(&mut stream, &ImageAnswer::Stored);
        }
        Err(reason) => {
            // The agent tells the controller, with the rank's own reason if there is one.
            if frame::write(&mut stream, &ImageAnswer::Refused(reason.clone())).is_err() {
                let _ = services.inbound.send(Inbound::ImageFailed { instance, image, reason });
            }
        }
    }
}

fn take_in(
    instance: RankInstance,
    image: ImageId,
    stream: &mut Stream,
    services: &Services,
) -> Result<Image, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    stream.set_timeout(Some(STALL)).map_err(|e| text(&e))?;
    let meta: ImageMeta = frame::read(stream).map_err(|e| text(&e))?;
    let RankInstance { rank, incarnation } = instance;
    if meta.incarnation != incarnation {
        return Err(format!("it is of incarnation {}, not {incarnation}", meta.incarnation));
    }
    let _ = services.inbound.send(Inbound::ImageBegun { instance, image });
    let info = ImageInfo {
        incarnation: incarnation.into(),
        clock: meta.clock,
        rsn: meta.rsn,
        meta: postcard::to_stdvec(&meta).map_err(|e| text(&e))?,
    };
    let source = Present { stream: stream.try_clone().map_err(|e| text(&e))?, services, instance };
    let stored = services.store.receive(rank, image, info, source).map_err(|e| text(&e))?;
    // The agent ends its stream when the rank has: by then it has told the pause as well. Nothing depends on it.
    let _ = stream.read(&mut [0]);
    let stdin = meta.stream_offsets[0];
    Ok(Image { image, clock: meta.clock, rsn: meta.rsn, stdin, bytes: stored.bytes })
}

/// Hands an image out; the stream ends early when a piece of it does not verify.
pub fn send(rank: Rank, image: ImageId, mut stream: Stream, services: &Services) {
    let images = services.store.images(rank);
    let meta = (images.iter().find(|i| i.image == image))
        .and_then(|i| postcard::from_bytes::<ImageMeta>(&i.info.meta).ok());
    let Some(meta) = meta else {
        let reason = format!("the store has no image {image} of rank {rank}");
        // The agent may be gone.
        let _ = frame::write(&mut stream, &ImageAnswer::Refused(reason));
        return;
    };
    let sent = stream
        .set_timeout(Some(STALL))
        .and_then(|()| frame::write(&mut stream, &ImageAnswer::Stream(meta)))
        .map_err(|e| e.to_string())
        .and_then(|()| {
            let mut out = BufWriter::with_capacity(1 << 20, &mut stream);
            services.store.send(rank, image, &mut out).map_err(|e| e.to_string())?;
            out.flush().map_err(|e| e.to_string())
        });
    if let Err(reason) = sent {
        let _ =
            services.inbound.send(Inbound::Note(format!("image {image} of rank {rank}: {reason}")));
    }
}
