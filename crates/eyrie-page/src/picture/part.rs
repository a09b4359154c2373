//! A part of the picture that knows when it changed last, so that only what has changed is sent.

/// Counts the changes of a picture; 0 is before all of them.
pub type Version = u64;

/// A part of the picture.
#[derive(Debug)]
pub struct Part<T> {
    now: T,
    changed: Version,
}

impl<T: Clone + PartialEq> Part<T> {
    pub fn new(now: T, changed: Version) -> Part<T> {
        Part { now, changed }
    }

    pub fn get(&self) -> &T {
        &self.now
    }

    /// Lets `edit` change it in this version. What stays as it was is no change.
    pub fn edit(&mut self, version: Version, edit: impl FnOnce(&mut T)) {
        let before = self.now.clone();
        edit(&mut self.now);
        if self.now != before {
            self.changed = version;
        }
    }

    /// What it is, if it has changed after this version.
    pub fn since(&self, version: Version) -> Option<&T> {
        (self.changed > version).then_some(&self.now)
    }
}
