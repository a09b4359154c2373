//! The error of this crate. Every other file may use it; it must use none of them.

/// Why a network, layout or file was refused: one line that names the value and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TopologyError(pub String);

impl TopologyError {
    /// An error with this message on one line: control characters of quoted input become blanks.
    pub fn new(message: impl Into<String>) -> Self {
        let message: String = message.into();
        TopologyError(message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }

    /// The same with the line of the file that it is about; 0 if that is not known.
    pub fn at_line(self, line: usize) -> Self {
        match line {
            0 => self,
            _ => TopologyError(format!("line {line}: {}", self.0)),
        }
    }
}

/// Returns an error with a formatted message.
#[macro_export]
macro_rules! refuse {
    ($($arg:tt)*) => { Err($crate::error::TopologyError::new(format!($($arg)*))) };
}
