//! The network of a job's hosts: as the user says it, or found out: from Slurm, from the hosts'
//! names, or by measuring between them. Every way of finding out has a bound, and says why it has
//! found nothing. Nothing here decides where ranks go: that is eyrie-placement's.

mod find;
mod found;
mod measure;
mod slurm;
mod start;

pub use find::find;
pub use found::{files, names, Found, Sureness, AUTO};
pub use measure::Way;
pub use start::{Asked, Spares};
