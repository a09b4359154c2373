//! libfabric from both sides: its binary interface, which Eyrie's provider implements (`abi`), and
//! the site's own libfabric, opened when it is needed, to read another process's memory (`site`).
//! Nothing here may need a symbol of libfabric at load time.

pub mod abi;
pub mod site;
