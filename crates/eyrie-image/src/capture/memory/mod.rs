//! The address space: which mappings exist, what they map, which pages hold content, and the
//! content that is copied while the process stands still.

mod address_space;
mod advice;
mod changes;
mod contents;
mod first_look;
mod own;
mod pages;
mod ranges;
mod scan;
mod smaps;
mod spared;

pub use address_space::AddressSpace;
pub use advice::{give_back, lift, Lifted};
pub use changes::{mark_meanwhile, Changes};
pub use contents::Contents;
pub use first_look::FirstLook;
pub use pages::{write_files, write_guards, write_pages, Carried};
pub use ranges::Range;
pub use scan::Scan;
pub use spared::Spared;
