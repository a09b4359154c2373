//! Image streams between agents and the store, each on the thread of its connection.

use super::inbound::Inbound;
use super::listener::Door;
use crate::machine::{Image, Life};
use eyrie_store::ImageInfo;
use eyrie_transport::{frame, Stream};
use eyrie_wire::control::{ImageAnswer, ImageMeta};
use eyrie_wire::{ImageId, Incarnation, Rank};
use std::io::{self, BufWriter, Read, Write};
use std::time::Duration;

/// How long either end of a stream may be silent.
const STALL: Duration = Duration::from_secs(60);

/// Ends the stream of a rank that has got a later life meanwhile.
struct Present<'a> {
    stream: Stream,
    door: &'a Door,
    rank: Rank,
    incarnation: Incarnation,
}

impl Read for Present<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(buf)?;
        if !self.door.gate.is_present(self.rank, self.incarnation) {
            return Err(io::Error::other("the rank has died meanwhile"));
        }
        Ok(n)
    }
}

/// Takes an image in.
pub fn receive(
    rank: Rank,
    incarnation: Incarnation,
    image: ImageId,
    mut stream: Stream,
    door: &Door,
) {
    let life = Life { rank, incarnation };
    match take_in(life, image, &mut stream, door) {
        Ok(stored) => {
            // Before the agent knows: what it says of the image comes after this.
            let _ = door.inbound.send(Inbound::ImageStored { life, image: stored });
            // The agent may be gone.
            let _ = frame::write(&mut stream, &ImageAnswer::Stored);
        }
        Err(reason) => {
            // The agent tells the controller, with the rank's own reason if there is one.
            if frame::write(&mut stream, &ImageAnswer::Refused(reason.clone())).is_err() {
                let _ = door.inbound.send(Inbound::ImageFailed { life, image, reason });
            }
        }
    }
}

fn take_in(life: Life, image: ImageId, stream: &mut Stream, door: &Door) -> Result<Image, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    stream.set_timeout(Some(STALL)).map_err(|e| text(&e))?;
    let meta: ImageMeta = frame::read(stream).map_err(|e| text(&e))?;
    let Life { rank, incarnation } = life;
    if meta.incarnation != incarnation {
        return Err(format!("it is of incarnation {}, not {incarnation}", meta.incarnation));
    }
    let _ = door.inbound.send(Inbound::ImageBegun { life, image });
    let info = ImageInfo {
        incarnation: incarnation.into(),
        clock: meta.clock,
        position: meta.position,
        meta: postcard::to_stdvec(&meta).map_err(|e| text(&e))?,
    };
    let source =
        Present { stream: stream.try_clone().map_err(|e| text(&e))?, door, rank, incarnation };
    let stored = door.store.receive(rank, image, info, source).map_err(|e| text(&e))?;
    // The agent ends its stream when the rank has: by then it has told the pause as well. Nothing depends on it.
    let _ = stream.read(&mut [0]);
    let (clock, position) = (meta.clock, meta.position);
    let stdin = meta.stream_offsets[0];
    Ok(Image { image, clock, position, stdin, bytes: stored.bytes })
}

/// Hands an image out; the stream ends early when a piece of it does not verify.
pub fn send(rank: Rank, image: ImageId, mut stream: Stream, door: &Door) {
    let images = door.store.images(rank);
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
            door.store.send(rank, image, &mut out).map_err(|e| e.to_string())?;
            out.flush().map_err(|e| e.to_string())
        });
    if let Err(reason) = sent {
        let _ = door.inbound.send(Inbound::Note(format!("image {image} of rank {rank}: {reason}")));
    }
}
