//! Figures of channels, for people and for when images are taken. No message may depend on them:
//! they have no check.

use crate::extents::Extent;
use crate::layout::{channel, Channel, Layout};
use crate::memory::View;

/// Figures of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Bytes of the extents that it keeps.
    pub kept: u64,
    /// The ssn of its newest message; 0 of ORDER and OBSERVED.
    pub newest: u64,
    /// Bytes of the payload of all its messages since the start up to the newest one, or of all
    /// that was observed; 0 of ORDER.
    pub payload: u64,
}

/// How often a channel is read whose rank sends meanwhile. After that the bytes may be those of a
/// later message.
const MOST_TRIES: u32 = 16;

/// The figures of a channel at present.
pub fn of(view: &impl View, layout: &Layout, channel: Channel) -> Figures {
    let line = layout.channel(layout.index(channel));
    let kept = view.load(line + channel::BYTES);
    let mut newest = view.load_acquire(line + channel::NEWEST);
    for _ in 0..MOST_TRIES {
        let payload = view.load_acquire(line + channel::PAYLOAD[(newest % 2) as usize]);
        let now = view.load_acquire(line + channel::NEWEST);
        if now == newest {
            return Figures { kept, newest, payload };
        }
        newest = now;
    }
    let payload = view.load(line + channel::PAYLOAD[(newest % 2) as usize]);
    Figures { kept, newest, payload }
}

/// What the first extent that a channel keeps begins with: a ssn, of OBSERVED a byte, of ORDER a
/// clock. 0 where there is none.
pub fn first(view: &impl View, layout: &Layout, channel: Channel) -> u64 {
    let index = layout.index(channel);
    let at = view.load_acquire(layout.channel(index) + channel::FIRST);
    Extent::read(view, layout, index, at).map_or(0, |extent| extent.first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Envelope;
    use crate::heap::Heap;
    use crate::region;
    use crate::writer::{Message, Sizes, Writer};

    fn send(writer: &mut Writer<&Heap>, bytes: usize) {
        let envelope = Envelope::default();
        let payload = &vec![7; bytes];
        writer.append(&Message { to: 1, envelope, clock: 0, payload }, || ()).unwrap();
    }

    #[test]
    fn what_was_sent_and_observed_is_counted_once_also_by_later_incarnations() {
        let memory = Heap::new(4 << 20);
        let layout = Layout::new(0, 2, 4 << 20);
        region::prepare(&memory, &layout, 1, 4 << 20);
        assert_eq!(of(&memory, &layout, Channel::Rank(1)), Figures::default());
        let open = || Writer::open(&memory, layout, |_| 0, Sizes::default()).unwrap();
        let mut writer = open();
        (0..100).for_each(|_| send(&mut writer, 1000));
        writer.observe(1, &[7; 300]).unwrap();
        let mut writer = open();
        (0..101).for_each(|_| send(&mut writer, 1000));
        writer.observe(1, &[7; 50]).unwrap();
        let Figures { kept, newest, payload } = of(&memory, &layout, Channel::Rank(1));
        assert_eq!((newest, payload), (101, 101_000));
        assert_eq!(first(&memory, &layout, Channel::Rank(1)), 1);
        assert!(kept > payload);
        assert_eq!(of(&memory, &layout, Channel::Observed).payload, 350);
        assert_eq!(of(&memory, &layout, Channel::Rank(0)), Figures::default());
        region::release(&memory, &layout, Channel::Rank(1), 101);
        (0..300).for_each(|_| send(&mut writer, 1000));
        assert!(first(&memory, &layout, Channel::Rank(1)) > 1, "the first ones are gone");
    }
}
