//! The numbers by which a job's parts are known, each a type of its own, so that no number is taken
//! for another. Nothing else is here.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $number:ty) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $number);

        impl $name {
            /// The one behind it.
            #[must_use]
            pub const fn next(self) -> $name {
                $name(self.0 + 1)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        /// The number alone, so that lists of them are read easily.
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<$name, Self::Err> {
                text.parse().map($name)
            }
        }
    };
}

/// Numbers that count from 0 without gaps, so that they index a list.
macro_rules! index {
    ($name:ident) => {
        impl $name {
            /// Its place in a list of all.
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The first `count` of them.
            pub fn first(count: u32) -> std::iter::Map<std::ops::Range<u32>, fn(u32) -> $name> {
                (0..count).map($name)
            }
        }
    };
}

id! {
    /// A process of the MPI job, numbered as in MPI_COMM_WORLD.
    Rank, u32
}
index!(Rank);

/// So that ranges of ranks can be kept in a set.
impl rangemap::StepLite for Rank {
    fn add_one(&self) -> Rank {
        Rank(self.0.wrapping_add(1))
    }

    fn sub_one(&self) -> Rank {
        Rank(self.0.wrapping_sub(1))
    }
}

id! {
    /// A node of the job, numbered from 0; spares follow the nodes that start with ranks.
    NodeId, u32
}
index!(NodeId);

id! {
    /// A router, numbered from 0.
    RouterId, u32
}
index!(RouterId);

id! {
    /// A domain of the job, numbered from 0 in the order of its file.
    DomainId, u32
}
index!(DomainId);

id! {
    /// A store: 0 for the first, never used again for another.
    StoreId, u32
}
index!(StoreId);

id! {
    /// Number of the processes that a rank has had: 1 for the first.
    Incarnation, u32
}

id! {
    /// A process image of a rank: 1 for the first, increasing; 0 where there is none.
    ImageId, u64
}

/// One incarnation of a rank. At most the newest one of a rank may send.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RankInstance {
    pub rank: Rank,
    pub incarnation: Incarnation,
}

impl std::fmt::Display for RankInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "incarnation {} of rank {}", self.incarnation, self.rank)
    }
}
