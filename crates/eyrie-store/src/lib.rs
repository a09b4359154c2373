//! the checkpoint server: receives, verifies, keeps and serves process images.
