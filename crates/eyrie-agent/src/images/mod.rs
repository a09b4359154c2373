//! Images of ranks: captures and their uploads, what an image needs besides, and ranks that come
//! from other nodes by them.

pub mod capture;
pub mod files;
pub mod incoming;
pub mod prepare;
pub mod transfer;
pub mod upload;
pub mod write_back;
pub mod writer;
