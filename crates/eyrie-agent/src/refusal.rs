//! Why a rank is not captured.

/// Why a rank is not captured.
pub struct Refusal {
    pub reason: String,
    /// The next capture may well succeed, and the user need not act.
    pub passing: bool,
}

impl Refusal {
    pub fn lasting(reason: impl std::fmt::Display) -> Refusal {
        Refusal { reason: reason.to_string(), passing: false }
    }
}
