//! The ledger: what a rank sends, in which order it has received, and what it has observed, in
//! memory that outlives its process. On one host the ledger *is* the channel: a message that is
//! written into it is logged and delivered by the same stores.
//!
//! Nothing here makes a system call (but for pages, ahead of their use), takes a lock or waits, and
//! nothing on the way of a message allocates. All of it is generic over its memory ([`memory`]): a
//! mapping of a shared file, memory of one process in tests, loom's model. Who makes the file, who
//! sleeps and who decides what is released is above: the keeper and the provider.
//!
//! # Parts
//!
//! A job has one file with a *region* for each rank ([`layout`]). A region has one writer, its
//! rank ([`writer::Writer`]). All others map it read-only ([`reader::Reader`]); so no process can
//! damage the ledger of another, and one that dies holds nothing. The keeper writes two places of a
//! region, and nothing else while its rank lives: how much the rank may use, and what is released
//! ([`region`]).
//!
//! For each destination a region has a *channel*: a chain of *extents* with one *entry* for each
//! message, in order. The reader knows where the next entry will be. A look that finds nothing is
//! one load; one that finds a message of 24 bytes or fewer brings one line of the cache. ORDER
//! ([`order`]) and OBSERVED ([`observed`]) are channels, too: streams of bytes without entries.
//!
//! [`bells`] are hints beside it: who sleeps, and who has sent something. They are written by all,
//! and a stray write there costs time only.
//!
//! # What holds
//!
//! - **A killed writer.** It may be killed between any two stores. An entry is published by one
//!   store of one word, behind all of its content; a place that is not published is zero. The next
//!   incarnation finds the ends of its chains by walking, and what is in no chain is free
//!   (`tests/deaths.rs`).
//! - **A rank that is executed again** sends again what it sent since its image. Each message is
//!   compared with the one that lies there, byte for byte, and not written.
//! - **A reader that starts again** begins behind any message that is not released. It may do so
//!   while the writer takes extents off the chain: then it looks the place up once more.
//! - **An extent is used again** when all of it is released and something behind it, too. So no
//!   reader stands at its end and waits there.
//! - **Wrong bytes.** Whatever lies in a region, a reader ends with the right message or an error
//!   that names the last sound one. It follows only what has an end: numbers along a chain grow,
//!   and jumps without a message between them are counted (`tests/flips.rs`).
//! - **Orderings.** Each release, acquire and fence is needed, and enough (`tests/loom.rs`). On
//!   x86 all but the fences are plain loads and stores.
//!
//! # What a check finds
//!
//! Each entry has 32 bits of CRC-32C over its line, its channel and its ssn: all changes of up to
//! five bits, all within 32 neighbouring bits, and of others all but one in 2^32. Heads of extents
//! have the same, and the streams over all that was published in an extent. Sizes of extents,
//! `filled` of large messages, grants and releases have 16 bits beside their value: all changes
//! within 16 neighbouring bits, of others all but one in 65,536.
//!
//! **Payload of more than 24 bytes is not checked.** A line costs 5 ns. 64 KiB would cost 2.5 µs on
//! either side, where copying them costs 2.0 and the whole message 4 to 10. So a process that
//! writes wildly into a message of its own, between sending it and the receiver's copy, sends wrong
//! content. It could as well have done so before it sent it. Wrong bytes in older payload are found
//! when the rank is executed again; a receiver that is restored before that would take them. A page
//! that the hardware damages is the kernel's to report.
//!
//! # What it costs
//!
//! Half round trips in µs, medians of three runs of `examples/pingpong.rs` on two cores that had
//! little else to do, with a determinant for each message. Who waits at a socket or a pipe sleeps;
//! who waits here looks. Beside busy processes the median can be that of a time slice (0.1 ms at
//! 8 B and 64 KiB, 4 ms at 1 MiB): how to wait is for the layer above.
//!
//! | bytes | ledger | Unix socket | pipe |
//! |---|---|---|---|
//! | 8 | 0.16 to 0.37 | 4 to 18 | 3 to 22 |
//! | 64 KiB | 3.6 to 9.7 | 12 to 28 | 13 to 37 |
//! | 1 MiB | 46 to 57 | 114 to 169 | 230 to 1200 |
//!
//! # Where this differs from the plan of the direct path
//!
//! - Number and check are *one* word, published by one store. So a wrong number is no longer taken
//!   for a message that is not there yet: a place is zero, or right, or damaged. The check has 32
//!   bits in place of 16, at the same price.
//! - The check does not hold the incarnation: messages that are sent again must be equal, and a
//!   chain has messages of several incarnations. It holds the rank and the channel.
//! - One-sided requests have their three more words in the line, where short payload would be: one
//!   line less each.
//! - `filled` of a large message has a line of its own: the writer does not take the head's line
//!   away from the reader with each step.
//! - A jump takes no ssn. It is written before the head of its extent names the next one, so
//!   following the heads never finds more than following the jumps.
//! - The streams have one published word an extent (length and check of all before) and no entries:
//!   a determinant costs its own 1 to 4 bytes, and wrong bytes in it are found all the same.
//! - The next extent of a channel is a quarter of what the channel keeps, between 4 KiB and 4 MiB:
//!   little channels do not grow for ever.
//! - Free neighbours are put together when nothing else fits, and larger extents are cut.
//! - CHANNELS has no last extent: it would have to be right, and the heads say it. It has the bytes
//!   of payload that were sent, besides ([`figures`]).
//!
//! # What is not here
//!
//! Files, mappings, futexes, grants by the keeper, files of spilled messages, several hosts (room
//! is left, see [`layout`]). Whatever is damaged ends the job with its sentence.

pub mod bells;
mod check;
mod cursor;
mod entry;
pub mod error;
mod extents;
pub mod figures;
pub mod heap;
pub mod layout;
pub mod mapped;
pub mod memory;
pub mod mutation;
pub mod observed;
pub mod order;
pub mod reader;
pub mod region;
mod space;
pub mod spilled;
mod stream;
mod varint;
pub mod writer;

pub use entry::{Entry, Envelope, Filled, INLINE, LONGEST};
