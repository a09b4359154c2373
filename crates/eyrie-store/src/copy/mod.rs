//! Copies of images from store to store. Only the chunks go over that the other store does not
//! have; each is verified by the store that gives it and by the one that takes it.
//!
//! giving: the manifest as it stands on disk, a piece
//! taking: one bit for each chunk of the manifest, lowest first: whether it is wanted
//! giving: the wanted chunks in their stored form, in order, as many whole ones in a piece as fit
//!
//! A piece is its length (u32, little-endian) and so many bytes. Length 0 says that no more comes,
//! and why: a frame with text follows.

mod give;
mod piece;
mod take;

pub use take::{Copied, CopyError};
