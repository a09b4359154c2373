//! What the keeper writes into a region: its head, how much it may grow, and what is no longer
//! needed. The rank writes nothing of this, the keeper nothing else.

use crate::check::{seal, unseal, VALUE_MAX};
use crate::error::LedgerError;
use crate::layout::{head, own, Channel, Layout, MAGIC};
use crate::memory::{Memory, View};

/// Makes a region in zeroed memory, or gives it to the next incarnation of its rank. What lies in
/// it stays. The process of the incarnation before has ended.
pub fn prepare(memory: &impl Memory, layout: &Layout, incarnation: u32, granted: u64) {
    memory.store(head::WHO, seal(who(layout), layout.salt(head::WHO)));
    memory.store(head::INCARNATION, seal(u64::from(incarnation), layout.salt(head::INCARNATION)));
    grant(memory, layout, granted);
    memory.store_release(head::MAGIC, MAGIC);
}

/// The rank may use so many bytes of extents.
pub fn grant(memory: &impl Memory, layout: &Layout, bytes: u64) {
    memory.store(head::GRANTED, seal(bytes.min(VALUE_MAX), layout.salt(head::GRANTED)));
}

/// No image needs the messages up to this ssn any more, or of ORDER what lies up to this clock,
/// or of OBSERVED the bytes up to this one: the rank may use their memory for others. It never goes
/// back.
pub fn release(memory: &impl Memory, layout: &Layout, channel: Channel, up_to: u64) {
    let at = layout.released(layout.index(channel));
    let before = unseal(memory.load(at), layout.salt(at)).unwrap_or(0);
    if up_to > before {
        memory.store_release(at, seal(up_to.min(VALUE_MAX), layout.salt(at)));
    }
}

/// Up to where a channel is released. Nonsense counts as nothing: then memory is kept too long,
/// which the sentence of a full ledger says.
pub fn released(view: &impl View, layout: &Layout, channel: Channel) -> u64 {
    released_of(view, layout, layout.index(channel))
}

/// The same by the index of the channel.
pub(crate) fn released_of(view: &impl View, layout: &Layout, index: u32) -> u64 {
    let at = layout.released(index);
    unseal(view.load_acquire(at), layout.salt(at)).unwrap_or(0)
}

/// Bytes of extents that the rank may use.
pub fn granted(view: &impl View, layout: &Layout) -> u64 {
    unseal(view.load(head::GRANTED), layout.salt(head::GRANTED)).unwrap_or(0)
}

/// Bytes of extents that the rank waits for beyond what was granted; 0: it does not wait.
pub fn wanted(view: &impl View, layout: &Layout) -> u64 {
    unseal(view.load(own::WANTED), layout.salt(own::WANTED)).unwrap_or(0)
}

/// Bytes of extents that the region has ever used: they do not become fewer. Nonsense counts as
/// none.
pub fn used(view: &impl View, layout: &Layout) -> u64 {
    let end = unseal(view.load_acquire(own::END), layout.salt(own::END)).unwrap_or(0);
    end.min(layout.end()).saturating_sub(layout.extents())
}

/// The incarnation that may write the region.
///
/// # Errors
/// When this is no region of this rank in this job, of this version.
pub fn incarnation(view: &impl View, layout: &Layout) -> Result<u32, LedgerError> {
    let unusable = |what| LedgerError::Unusable { rank: layout.rank(), what };
    if layout.end() > view.bytes() {
        return Err(unusable("its memory is too short"));
    }
    if view.load_acquire(head::MAGIC) != MAGIC {
        return Err(unusable("it is of another version, or none"));
    }
    if unseal(view.load(head::WHO), layout.salt(head::WHO)) != Some(who(layout)) {
        return Err(unusable("it is of another rank, or another job"));
    }
    let word = view.load(head::INCARNATION);
    unseal(word, layout.salt(head::INCARNATION))
        .and_then(|n| u32::try_from(n).ok())
        .ok_or(unusable("its incarnation is nonsense"))
}

fn who(layout: &Layout) -> u64 {
    u64::from(layout.rank()) | u64::from(layout.ranks()) << 24
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Heap;

    #[test]
    fn a_region_is_of_its_rank_and_says_so() {
        let layout = Layout::new(2, 4, 1 << 20);
        let memory = Heap::new(1 << 20);
        assert!(incarnation(&memory, &layout).is_err(), "nothing was made yet");
        prepare(&memory, &layout, 7, 4096);
        assert_eq!(incarnation(&memory, &layout), Ok(7));
        assert_eq!(granted(&memory, &layout), 4096);
        for (rank, ranks) in [(1, 4), (2, 5)] {
            let other = Layout::new(rank, ranks, 1 << 20);
            assert!(incarnation(&memory, &other).is_err());
        }
    }

    #[test]
    fn what_was_released_stays_released() {
        let layout = Layout::new(0, 2, 1 << 20);
        let memory = Heap::new(1 << 20);
        release(&memory, &layout, Channel::Rank(1), 5);
        release(&memory, &layout, Channel::Rank(1), 3);
        assert_eq!(released_of(&memory, &layout, 1), 5);
        assert_eq!(released_of(&memory, &layout, 0), 0);
        memory.flip(layout.released(1), 4);
        assert_eq!(released_of(&memory, &layout, 1), 0, "nonsense releases nothing");
    }
}
