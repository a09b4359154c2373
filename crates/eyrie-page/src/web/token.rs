//! The token: who has it may act. It is drawn for each run of the page, and never kept.

use eyrie_wire::auth::random;

/// Length in bytes.
const LEN: usize = 24;

/// The token as users have it.
pub struct Token(String);

impl Token {
    /// A new one.
    #[must_use]
    pub fn draw() -> Token {
        Token(random::<LEN>().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// What it is compared by, in a time that tells nothing of it.
    pub fn hash(&self) -> blake3::Hash {
        blake3::hash(self.0.as_bytes())
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}
