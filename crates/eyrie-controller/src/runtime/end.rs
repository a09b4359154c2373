//! Whether the end of the job has come for this controller, and how it ends.

/// The end of a job.
#[derive(Default)]
pub struct End {
    /// The exit code, when the end has come.
    code: Option<i32>,
    /// The user has ended the job, and waits.
    is_quick: bool,
    /// Another controller goes on with the job.
    is_replaced: bool,
}

impl End {
    /// The end has come.
    pub fn come(&mut self, code: i32) {
        self.code = Some(code);
    }

    /// The exit code, when the end has come.
    pub fn code(&self) -> Option<i32> {
        self.code
    }

    pub fn has_come(&self) -> bool {
        self.code.is_some()
    }

    /// The user waits for the end.
    pub fn hurry(&mut self) {
        self.is_quick = true;
    }

    pub fn is_quick(&self) -> bool {
        self.is_quick
    }

    /// Another controller goes on with the job.
    pub fn replace(&mut self) {
        self.is_replaced = true;
    }

    pub fn is_replaced(&self) -> bool {
        self.is_replaced
    }
}
