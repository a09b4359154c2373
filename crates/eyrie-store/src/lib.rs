//! The checkpoint store of one job. It receives process images, stores unchanged chunks once,
//! commits each image atomically and sends it verified. It must never send a byte that it has not
//! verified, and never let an image count before it is whole on disk. docs/store.md has the format
//! and the guarantees.

mod catalog;
mod chunk;
mod copy;
mod disk;
mod error;
mod intake;
mod join;
mod manifest;
mod options;
mod receive;
pub mod role;
mod send;
mod since;
mod store;
mod window;

pub use copy::{Copied, CopyError};
pub use error::{IoError, ReceiveError, SendError, StoreError, StreamError};
pub use manifest::{ImageId, ImageInfo, MAX_META};
pub use options::Options;
pub use receive::Committed;
pub use send::{Damage, VerifyReport};
pub use store::{ImageSummary, Recovery, Store, Usage};
