//! process images: format and capture.
