//! A checkpoint under way: its state changes by the table of [`crate::machine::state`] and by
//! nothing else. It ends when its image counts, or fails.

use crate::machine::images::copies::Copies;
use crate::machine::state::{next, CaptureEvent, CaptureName, CAPTURES};
use eyrie_store::role::Stored;
use eyrie_wire::ImageId;
use eyrie_wire::StoreId;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The state of a capture with what is known in it ([`CaptureName`] says what each means).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum CaptureState {
    Asked,
    Arriving,
    Stored(Stored),
    Checked,
    Usable(Stored),
}

/// An event of the table with what comes with it.
#[derive(Clone, Copy, Debug)]
enum CaptureStep {
    Begun,
    Stored(Stored),
    Checked,
}

impl CaptureStep {
    fn event(&self) -> CaptureEvent {
        match self {
            CaptureStep::Begun => CaptureEvent::Begun,
            CaptureStep::Stored(_) => CaptureEvent::Stored,
            CaptureStep::Checked => CaptureEvent::Checked,
        }
    }
}

/// A checkpoint under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Capture {
    image: ImageId,
    asked: Duration,
    /// When it must have begun to arrive, or must be over.
    until: Duration,
    pause: Option<Duration>,
    /// The store that its agent hands it to.
    store: StoreId,
    copies: Copies,
    /// The rank stands still from then on.
    hold: bool,
    state: CaptureState,
}

impl Capture {
    /// One that is asked for now.
    pub fn new(
        image: ImageId,
        store: StoreId,
        hold: bool,
        asked: Duration,
        until: Duration,
    ) -> Capture {
        let pause = None;
        let copies = Copies::default();
        let state = CaptureState::Asked;
        Capture { image, asked, until, pause, store, copies, hold, state }
    }

    /// Its image begins to arrive, and is to be there until then. False: it had begun.
    pub fn begin(&mut self, until: Duration) -> bool {
        let begins = self.advance(CaptureStep::Begun);
        if begins {
            self.until = until;
        }
        begins
    }

    /// The store that it was handed to has it whole. One that has not been seen to begin has until
    /// then for what is left.
    pub fn store_whole(&mut self, image: Stored, until: Duration) {
        if !self.has_begun() {
            self.until = until;
        }
        self.advance(CaptureStep::Stored(image));
    }

    /// Its agent has found all files that it needs.
    pub fn check(&mut self) {
        self.advance(CaptureStep::Checked);
    }

    /// The rank stood still for so long.
    pub fn note_pause(&mut self, pause: Duration) {
        self.pause = Some(pause);
    }

    /// A store is lost. Returns whether the image is lost with it: it was to be handed to that
    /// store, or no other has it.
    pub fn lose_store(&mut self, store: StoreId) -> bool {
        self.copies.lose(store);
        match self.stored() {
            None => self.store == store,
            Some(_) => self.copies.are_lost(),
        }
    }

    /// Where copies of it are, to be changed.
    pub fn copies_mut(&mut self) -> &mut Copies {
        &mut self.copies
    }

    /// Where copies of it are.
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    pub fn image(&self) -> ImageId {
        self.image
    }

    /// When it was asked for.
    pub fn asked(&self) -> Duration {
        self.asked
    }

    /// When it must have begun to arrive, or must be over.
    pub fn until(&self) -> Duration {
        self.until
    }

    /// For how long the rank stood still, once that is known.
    pub fn pause(&self) -> Option<Duration> {
        self.pause
    }

    /// The store that its agent hands it to.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Whether the rank stands still from then on.
    pub fn holds(&self) -> bool {
        self.hold
    }

    /// Changes the state as the table says; false, and nothing else, when it has no row for it.
    fn advance(&mut self, step: CaptureStep) -> bool {
        let Some(name) = next(CAPTURES, self.name(), step.event()) else { return false };
        self.state = match (name, step, self.stored()) {
            (CaptureName::Arriving, ..) => CaptureState::Arriving,
            (CaptureName::Stored, CaptureStep::Stored(image), _) => CaptureState::Stored(image),
            (CaptureName::Checked, ..) => CaptureState::Checked,
            (CaptureName::Usable, CaptureStep::Stored(image), _)
            | (CaptureName::Usable, _, Some(image)) => CaptureState::Usable(image),
            _ => return false,
        };
        true
    }

    pub fn name(&self) -> CaptureName {
        match self.state {
            CaptureState::Asked => CaptureName::Asked,
            CaptureState::Arriving => CaptureName::Arriving,
            CaptureState::Stored(_) => CaptureName::Stored,
            CaptureState::Checked => CaptureName::Checked,
            CaptureState::Usable(_) => CaptureName::Usable,
        }
    }

    /// Whether its image has begun to arrive.
    pub fn has_begun(&self) -> bool {
        self.name() != CaptureName::Asked
    }

    /// The image, when the store that it was handed to has it whole.
    pub fn stored(&self) -> Option<Stored> {
        match self.state {
            CaptureState::Stored(image) | CaptureState::Usable(image) => Some(image),
            _ => None,
        }
    }

    /// The image, when its agent has found all files that it needs as well: it counts as soon as
    /// enough stores have it.
    pub fn usable(&self) -> Option<Stored> {
        self.stored().filter(|_| self.name() == CaptureName::Usable)
    }

    /// What has to come before it counts, in words.
    pub fn lacks(&self) -> &'static str {
        match self.state {
            CaptureState::Asked => "its image has not arrived",
            CaptureState::Arriving | CaptureState::Checked => "the whole image has not arrived",
            CaptureState::Stored(_) => "its agent has not checked the image",
            CaptureState::Usable(_) => "not all stores have the image",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: Stored = Stored {
        image: ImageId(7),
        clock: 1,
        rsn: 1,
        observed: 0,
        stdin: 0,
        bytes: 1,
        file_bytes: 0,
    };

    fn step(event: CaptureEvent) -> CaptureStep {
        match event {
            CaptureEvent::Begun => CaptureStep::Begun,
            CaptureEvent::Stored => CaptureStep::Stored(IMAGE),
            CaptureEvent::Checked => CaptureStep::Checked,
        }
    }

    /// One that has come to this state by rows of the table.
    fn capture_in(state: CaptureName) -> Capture {
        use CaptureEvent::{Begun, Checked, Stored};
        let way: &[CaptureEvent] = match state {
            CaptureName::Asked => &[],
            CaptureName::Arriving => &[Begun],
            CaptureName::Stored => &[Begun, Stored],
            CaptureName::Checked => &[Begun, Checked],
            CaptureName::Usable => &[Begun, Checked, Stored],
        };
        let mut capture =
            Capture::new(ImageId(7), StoreId(0), false, Duration::ZERO, Duration::ZERO);
        way.iter().for_each(|event| assert!(capture.advance(step(*event)), "{state:?}: {event:?}"));
        capture
    }

    #[test]
    fn a_capture_changes_its_state_by_every_row_of_the_table_and_by_nothing_else() {
        use CaptureName::*;
        for state in [Asked, Arriving, Stored, Checked, Usable] {
            for event in [CaptureEvent::Begun, CaptureEvent::Stored, CaptureEvent::Checked] {
                let mut capture = capture_in(state);
                let wanted = next(CAPTURES, state, event);
                assert_eq!(capture.advance(step(event)), wanted.is_some(), "{state:?}: {event:?}");
                assert_eq!(capture.name(), wanted.unwrap_or(state));
            }
        }
    }

    #[test]
    fn it_is_usable_when_it_is_stored_and_checked_whichever_comes_first() {
        for way in [
            [CaptureEvent::Stored, CaptureEvent::Checked],
            [CaptureEvent::Checked, CaptureEvent::Stored],
        ] {
            let mut capture = capture_in(CaptureName::Arriving);
            assert!(capture.advance(step(way[0])) && capture.usable().is_none());
            assert!(capture.advance(step(way[1])));
            assert_eq!(capture.usable(), Some(IMAGE));
        }
    }
}
