//! Process images: format, capture and what a restore needs. Nothing here allocates on the capture path.

pub mod stream;
