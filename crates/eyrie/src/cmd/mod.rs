//! One file per subcommand. Argument parsing and output only; the work is in the other crates.

pub mod plan;
