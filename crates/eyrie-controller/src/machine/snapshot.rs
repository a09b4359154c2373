//! The whole state of the machine as bytes, so that another one goes on without what this one has
//! heard. Users who wait for answers are not in it: their connections end with their controller.

use super::reactor::Machine;

impl Machine {
    /// The state between two events.
    ///
    /// # Errors
    /// None but those of the encoding.
    pub fn snapshot(&self) -> postcard::Result<Vec<u8>> {
        postcard::to_stdvec(self)
    }

    /// Goes on from such a state; ranks are placed as before.
    ///
    /// # Errors
    /// When these bytes are none, or of another version of Eyrie.
    pub fn restore(&mut self, snapshot: &[u8]) -> postcard::Result<()> {
        let mut restored: Machine = postcard::from_bytes(snapshot)?;
        std::mem::swap(&mut restored.placement, &mut self.placement);
        *self = restored;
        Ok(())
    }
}
