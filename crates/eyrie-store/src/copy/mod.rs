//! Copies of images from store to store. Only the chunks that the receiver lacks are sent. The
//! sender verifies each of them, and so does the receiver.
//!
//! - sender: the manifest as it is on disk, in a piece
//! - receiver: one bit for each chunk of the manifest, lowest first: whether it is wanted
//! - sender: the wanted chunks in their stored form, in order, as many whole ones in a piece as fit
//!
//! A piece is its length (u32, little-endian) and that many bytes. Length 0 says that no more
//! pieces follow, and a frame with text says why.

mod give;
mod piece;
mod take;

pub use take::{Copied, CopyError};
