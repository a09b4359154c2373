//! What all parts of this crate share: how the job is named, and how a line is said.

use std::sync::Arc;

/// Says a line to the user.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// The job, as it is named to monitoring systems.
#[derive(Clone, Debug)]
pub struct Named {
    pub job: String,
    /// The name of this domain, where the job has several.
    pub domain: Option<String>,
}
