//! What a ledger needs of its memory: words that several processes load and store, and bytes. The
//! code above is the same over a mapping of a shared file ([`crate::mapped`]), over memory of one
//! process ([`crate::heap`]) and over loom's model of memory (`tests/loom.rs`). A reader has a
//! [`View`] only: it cannot store.
//!
//! All words of a region have 64 bits and lie at multiples of 8, so each of them is stored and
//! loaded whole. No method may wait, allocate or make a system call but [`Memory::populate`].

/// Memory that can be looked at.
///
/// Places are byte offsets. The methods may panic when a place lies outside or is no multiple of 8:
/// the code above compares all that it has read from a region with its bounds first.
pub trait View {
    /// Bytes.
    fn bytes(&self) -> u64;

    /// Loads a word; nothing is said of other words (relaxed).
    fn load(&self, at: u64) -> u64;

    /// Loads a word: what was stored before it by [`Memory::store_release`] is seen after it.
    fn load_acquire(&self, at: u64) -> u64;

    /// Copies bytes out.
    fn read(&self, at: u64, to: &mut [u8]);

    /// A fence of sequential consistency.
    fn fence(&self);
}

/// Memory that can be written, too.
pub trait Memory: View {
    /// Stores a word (relaxed).
    fn store(&self, at: u64, word: u64);

    /// Stores a word after all that this process has stored before.
    fn store_release(&self, at: u64, word: u64);

    /// Copies bytes in.
    fn write(&self, at: u64, from: &[u8]);

    /// Makes sure that there are pages for these bytes, which will be written soon. False: there is
    /// no memory for them, and writing them could end the process.
    fn populate(&self, _at: u64, _bytes: u64) -> bool {
        true
    }
}

/// Memory of bells and boards: words of 32 bits at multiples of 4, because a futex has 32 bits.
pub trait Hints {
    /// Loads a word (relaxed).
    fn load(&self, at: u64) -> u32;

    /// Stores a word (relaxed).
    fn store(&self, at: u64, word: u32);

    /// Adds to a word, in one step for all processes (release).
    fn add(&self, at: u64, n: u32);

    /// A fence of sequential consistency.
    fn fence(&self);
}

impl<V: View> View for &V {
    fn bytes(&self) -> u64 {
        (**self).bytes()
    }
    fn load(&self, at: u64) -> u64 {
        (**self).load(at)
    }
    fn load_acquire(&self, at: u64) -> u64 {
        (**self).load_acquire(at)
    }
    fn read(&self, at: u64, to: &mut [u8]) {
        (**self).read(at, to);
    }
    fn fence(&self) {
        (**self).fence();
    }
}

impl<M: Memory> Memory for &M {
    fn store(&self, at: u64, word: u64) {
        (**self).store(at, word);
    }
    fn store_release(&self, at: u64, word: u64) {
        (**self).store_release(at, word);
    }
    fn write(&self, at: u64, from: &[u8]) {
        (**self).write(at, from);
    }
    fn populate(&self, at: u64, bytes: u64) -> bool {
        (**self).populate(at, bytes)
    }
}
