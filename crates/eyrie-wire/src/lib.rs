//! What the roles of a job send each other: frames of the data path, control messages and the
//! addresses and directories in them, versions, authentication; and what each format begins with.
//! Pure encoding and decoding: nothing here opens, reads or waits for anything, and
//! nothing here allocates by a length that a peer names.

pub mod agent;
pub mod auth;
pub mod control;
pub mod data;
pub mod directory;
pub mod domains;
pub mod entries;
pub mod facts;
pub mod formats;
pub mod health;
mod ids;
pub mod keeper;
pub mod page;
pub mod rank_address;
pub mod role_address;
pub mod signals;
pub mod traffic;

/// Version of everything in this crate. Processes with different versions refuse each other.
pub const VERSION: u16 = 20;

pub use ids::{DomainId, ImageId, Incarnation, NodeId, Rank, RankInstance, RouterId, StoreId};

#[cfg(test)]
mod tests {
    use super::VERSION;

    /// The sources that define what goes over connections, and into a saved job.
    const SOURCES: [&str; 20] = [
        include_str!("role_address.rs"),
        include_str!("agent.rs"),
        include_str!("control.rs"),
        include_str!("directory.rs"),
        include_str!("domains.rs"),
        include_str!("entries.rs"),
        include_str!("facts.rs"),
        include_str!("health.rs"),
        include_str!("ids.rs"),
        include_str!("keeper.rs"),
        include_str!("lib.rs"),
        include_str!("traffic.rs"),
        include_str!("data/determinant.rs"),
        include_str!("data/envelope.rs"),
        include_str!("data/header.rs"),
        include_str!("data/kind.rs"),
        include_str!("data/mod.rs"),
        include_str!("data/observed.rs"),
        include_str!("../../eyrie-router/src/protocol/orders.rs"),
        include_str!("../../eyrie-store/src/role/messages.rs"),
    ];

    /// The definitions of the types, without comments: what their encoding depends on.
    fn definitions() -> String {
        let mut found = String::new();
        for source in SOURCES {
            let mut within = false;
            for line in source.lines() {
                within |=
                    ["pub struct ", "pub enum ", "pub type "].iter().any(|b| line.starts_with(b));
                let code = line.split("//").next().unwrap_or_default();
                if within {
                    found.extend(code.split_whitespace());
                }
                within &= !(line.starts_with('}') || line.ends_with(';') && !line.starts_with(' '));
            }
        }
        found
    }

    /// Two processes of one version must read each other's messages. When this fails, raise
    /// [`VERSION`] unless it was raised since the last release, and put the new pair here.
    #[test]
    fn a_changed_message_has_a_new_version() {
        let hash = blake3::hash(definitions().as_bytes()).to_hex();
        let known = (20, "49b2c52c766d078f");
        assert_eq!((VERSION, &hash[..16]), known, "a message has changed: raise VERSION");
    }
}
