//! Why a rank is not captured.

/// Why a rank is not captured.
pub struct Refusal {
    pub reason: String,
    /// It may well succeed the next time, and nothing need be done.
    pub passing: bool,
}

impl Refusal {
    pub fn lasting(reason: impl std::fmt::Display) -> Refusal {
        Refusal { reason: reason.to_string(), passing: false }
    }
}
