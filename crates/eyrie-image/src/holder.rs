//! State of a process that the kernel does not know: connections that mean something to others, a
//! library's own tables, the memory of a device. Whatever part of the process has such state
//! implements [`Holder`], and the capture asks it at four moments. Holders must not allocate or
//! take locks until the capture is over: any lock of the process may be held.

use crate::outcome::Outcome;
use eyrie_image_format::named::{Named, CONTENT_MAX};

/// How a descriptor comes back that is a holder's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// As the descriptor that the restorer is given with this number, below
    /// [`eyrie_image_format::HELD_FROM`]; as /dev/null if there is none. 0, 1 and 2 are standard
    /// input, output and error.
    Slot(u32),
    /// As a dead socket: reads return end of file, writes EPIPE.
    Dropped,
}

/// A part of the process with state that the kernel does not know. The four moments follow each
/// other as they stand here. Holders are asked in the order of [`crate::Request::holders`].
pub trait Holder {
    /// Before a capture: all threads stand still, and nothing was looked at yet. So what the
    /// process does to others, such as its output, is either before the image or after it. An
    /// error, in words for the user, refuses the image.
    fn before_capture(&self) -> Result<(), &'static str> {
        Ok(())
    }

    /// How a descriptor comes back; `None`: it is not the holder's.
    fn claim(&self, _fd: i32) -> Option<Claim> {
        None
    }

    /// What the image says of the state, for its readers and for restorers that do not know it.
    /// `room` is for the content. `None`: the image says nothing, and any restorer takes it.
    fn describe<'a>(&self, _room: &'a mut [u8; CONTENT_MAX]) -> Option<Named<'a>> {
        None
    }

    /// Whether the holder itself maps a file again in a restored process, with the content that the
    /// image has of it. It is asked of a shared mapping of a file that is mapped to be read only,
    /// which begins at `start`. Otherwise the file stays mapped. Only with
    /// [`crate::Request::names_stay`].
    fn maps_again(&self, _start: usize) -> bool {
        false
    }

    /// In a restored process, in the thread that took the image. The holder's memory is as it was
    /// when it described its state. All other threads still stand still, and all signals are
    /// blocked: it must allocate nothing, and wait for no other thread.
    fn restore(&self) {}

    /// The capture is over, in the original or in a restored process, and other threads run. In a
    /// restored one all holders have restored their state. It is also called when the image was
    /// refused, even before [`Holder::before_capture`].
    fn resume(&self, _outcome: &Outcome) {}
}

/// Descriptors that come back as slots, with their numbers. For a process that has no other state
/// than the kernel's.
pub struct Given<'a>(pub &'a [(i32, u32)]);

impl Holder for Given<'_> {
    fn claim(&self, fd: i32) -> Option<Claim> {
        let given = self.0.iter().find(|(given, _)| *given == fd);
        given.map(|(_, slot)| Claim::Slot(*slot))
    }
}
