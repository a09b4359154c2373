//! How much is measured.

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How often each side is measured, in turn.
    pub rounds: u32,
    /// Small sizes and short runs: to see that everything works.
    pub quick: bool,
}
