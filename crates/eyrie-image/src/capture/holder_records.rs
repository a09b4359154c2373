//! The records in which holders describe their state.

use super::scratch::{List, Scratch};
use crate::holder::Holder;
use crate::refusal::Refusal;
use eyrie_image_format::named::CONTENT_MAX;
use eyrie_image_format::stream::RecordHeader;

/// A record of a holder's.
#[derive(Clone, Copy)]
pub struct Described {
    pub header: RecordHeader,
    /// The name, then the content.
    pub payload: &'static [u8],
}

/// Has all holders describe their state.
///
/// # Safety
/// Must not outlive the scratch.
pub unsafe fn describe(
    scratch: &mut Scratch,
    holders: &[&dyn Holder],
) -> Result<List<Described>, Refusal> {
    // SAFETY: the caller does not use the result after the scratch is released.
    let mut all = unsafe { scratch.list(holders.len())? };
    for holder in holders {
        let mut room = [0; CONTENT_MAX];
        let Some(named) = holder.describe(&mut room) else { continue };
        let header = named.header().ok_or(Refusal::Request("a name or its content is too long"))?;
        // SAFETY: the caller does not use the result after the scratch is released.
        let payload = unsafe { scratch.take::<u8>(header.len as usize)? };
        let (name, content) = payload.split_at_mut(named.name.len());
        name.copy_from_slice(named.name.as_bytes());
        content.copy_from_slice(named.content);
        all.push(Described { header, payload })?;
    }
    Ok(all)
}
