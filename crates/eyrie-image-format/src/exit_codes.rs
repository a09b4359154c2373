//! Exit codes: of the restorer, and of the process that writes an image.

/// Exit codes of the restorer. A restore that ends with one of these has printed one line on
/// standard error and has run no instruction of the restored program.
pub mod exit {
    /// The stream ended before its trailer.
    pub const TRUNCATED: i32 = 120;
    /// Kernel, vDSO, CPU or address-space layout differ from where the image was taken.
    pub const FINGERPRINT: i32 = 121;
    /// A file the image needs is missing, has changed, or cannot be opened.
    pub const FILE: i32 = 122;
    /// The stream is not an image, or contradicts itself.
    pub const MALFORMED: i32 = 123;
    /// The kernel refused a step (out of memory, a limit, a missing feature).
    pub const KERNEL: i32 = 124;
    /// The restorer itself is at fault.
    pub const INTERNAL: i32 = 125;
    /// Wrong arguments.
    pub const USAGE: i32 = 126;
}

/// Exit codes of the image-writing child of an asynchronous capture.
pub mod writer_exit {
    /// The whole image was written.
    pub const DONE: i32 = 0;
    /// The reader of the stream has closed it.
    pub const READER_GONE: i32 = 112;
    /// The kernel refused a step; the stream has no trailer.
    pub const FAILED: i32 = 113;
    /// The child found mappings missing. It has told its parent, and another child follows; or its
    /// parent did not wait for it, and there is no image.
    pub const TRY_AGAIN: i32 = 114;
}
