//! The store that sends a copy of an image to another store.

use super::piece::{write_piece, write_refusal, HEAD, MAX_PIECE};
use crate::error::SendError;
use crate::manifest::{ImageId, Manifest};
use crate::send::Reader;
use crate::store::Store;
use eyrie_wire::Rank;
use std::io::{Read, Write};

impl Store {
    /// Sends a copy of an image to the store at the other end of `stream`. Returns how many bytes
    /// of chunks that store asked for. The image stays readable until then, even when it is
    /// discarded meanwhile. `stream` bounds its own waits.
    ///
    /// # Errors
    /// When there is no such image, a chunk of it is damaged (the other store has been told), or
    /// the connection broke.
    pub fn copy_to(
        &self,
        rank: Rank,
        image: ImageId,
        stream: &mut (impl Read + Write),
    ) -> Result<u64, SendError> {
        let given = match self.pin(rank, image) {
            Some(pin) => self.give(&pin.manifest, stream),
            None => Err(SendError::NoImage { rank, image }),
        };
        if let Err(error @ (SendError::NoImage { .. } | SendError::Damaged { .. })) = &given {
            // The other store may be gone. It also learns from the end of the stream.
            let _ = write_refusal(stream, &error.to_string());
        }
        given
    }

    fn give(
        &self,
        manifest: &Manifest,
        stream: &mut (impl Read + Write),
    ) -> Result<u64, SendError> {
        let rank = manifest.rank;
        let image = manifest.image;
        let gone = |source| SendError::Write { rank, image, source };
        let mut piece = vec![0; HEAD];
        piece.append(&mut manifest.encode());
        write_piece(stream, &mut piece).map_err(gone)?;
        let mut wanted = vec![0; manifest.chunks.len().div_ceil(8)];
        stream.read_exact(&mut wanted).map_err(gone)?;
        let mut reader = Reader::new(self);
        let mut piece = vec![0; HEAD + MAX_PIECE];
        let mut filled = HEAD;
        let mut given = 0;
        for (number, chunk) in manifest.chunks.iter().enumerate() {
            if wanted[number / 8] & 1 << (number % 8) == 0 {
                continue;
            }
            let len = chunk.stored_len as usize;
            if filled + len > piece.len() {
                write_piece(stream, &mut piece[..filled]).map_err(gone)?;
                filled = HEAD;
            }
            let read = reader.read_stored(chunk, &mut piece[filled..filled + len]);
            read.map_err(|reason| self.damaged(manifest, number, reason))?;
            filled += len;
            given += len as u64;
        }
        if filled > HEAD {
            write_piece(stream, &mut piece[..filled]).map_err(gone)?;
        }
        Ok(given)
    }
}
