//! Delivery streams of several ranks of another domain over one connection: a *trunk*. Each record
//! on it names the rank: a frame of its stream, or a word about it. A receiver whose rank has no
//! room asks that nothing more comes for that rank, so no rank waits for another one. Decides
//! nothing about messages. It must never hold more of a stream than what was under way.

use eyrie_wire::data::MAX_FRAME;
use eyrie_wire::Rank;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::protocol::ConnId;

/// Trunks between two gateways in each direction: a connection carries no more in a round trip
/// than the kernel keeps for it.
pub const TRUNKS: usize = 4;

/// A record's head: rank, and the length of the frame or the word (u32 each, little-endian).
const HEAD_LEN: usize = 8;
/// What a word has and no length.
const WORD: u32 = 1 << 31;

/// A word about a rank's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// To the sender: nothing more is to come for now.
    Stop = 1,
    /// To the sender: more may come again.
    Go = 2,
    /// To the receiver: this stream has ended, and may begin again.
    Closed = 3,
}

/// What a record has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// A whole frame, as far as its length says.
    Frame(&'a [u8]),
    Word(Word),
}

/// Appends a frame of a rank's stream, which `put` appends.
pub fn put_frame(out: &mut Vec<u8>, rank: Rank, put: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend(rank.0.to_le_bytes());
    out.extend([0; 4]);
    put(out);
    let len = (out.len() - at - HEAD_LEN) as u32;
    out[at + 4..at + HEAD_LEN].copy_from_slice(&len.to_le_bytes());
}

/// Appends a word about a rank's stream.
pub fn put_word(out: &mut Vec<u8>, rank: Rank, word: Word) {
    out.extend(rank.0.to_le_bytes());
    out.extend((WORD | word as u32).to_le_bytes());
}

/// The first record of some bytes, its rank and its length; `None`: it is not whole.
///
/// # Errors
/// What is wrong with it.
pub fn parse(bytes: &[u8]) -> Result<Option<(Rank, Record<'_>, usize)>, &'static str> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_LEN>() else { return Ok(None) };
    let [rank, second] =
        [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    if second & WORD != 0 {
        let word = match second & !WORD {
            1 => Word::Stop,
            2 => Word::Go,
            3 => Word::Closed,
            _ => return Err("an unknown word on a trunk"),
        };
        return Ok(Some((Rank(rank), Record::Word(word), HEAD_LEN)));
    }
    let len = second as usize;
    if len == 0 || len > MAX_FRAME {
        return Err("a record of a wrong length on a trunk");
    }
    let whole = |frame| (Rank(rank), Record::Frame(frame), HEAD_LEN + len);
    Ok(rest.get(..len).map(whole))
}

/// A rank's stream on a trunk, at its sender.
struct Channel {
    trunk: ConnId,
    rank: Rank,
    /// The receiver has no room for more.
    stopped: bool,
    /// There was more when there was no room.
    starved: Cell<bool>,
}

/// All streams on trunks, by numbers of connections of their own.
#[derive(Default)]
pub struct Channels {
    all: FxHashMap<ConnId, Channel>,
    by_rank: FxHashMap<(ConnId, Rank), ConnId>,
    /// Of each trunk the streams that had more when there was no room, in their order.
    starved: RefCell<FxHashMap<ConnId, VecDeque<ConnId>>>,
}

impl Channels {
    pub fn add(&mut self, id: ConnId, trunk: ConnId, rank: Rank) {
        self.all.insert(id, Channel { trunk, rank, stopped: false, starved: Cell::new(false) });
        self.by_rank.insert((trunk, rank), id);
    }

    /// The trunk of a stream, and its rank.
    pub fn of(&self, id: ConnId) -> Option<(ConnId, Rank)> {
        self.all.get(&id).map(|channel| (channel.trunk, channel.rank))
    }

    /// The stream of this rank on a trunk.
    pub fn find(&self, trunk: ConnId, rank: Rank) -> Option<ConnId> {
        self.by_rank.get(&(trunk, rank)).copied()
    }

    /// A stream has ended.
    pub fn remove(&mut self, id: ConnId) {
        if let Some(channel) = self.all.remove(&id) {
            self.by_rank.remove(&(channel.trunk, channel.rank));
        }
    }

    /// A trunk has ended: the streams that it had.
    pub fn remove_trunk(&mut self, trunk: ConnId) -> Vec<ConnId> {
        self.starved.get_mut().remove(&trunk);
        let of_it = self.all.iter().filter(|(_, channel)| channel.trunk == trunk);
        let of_it: Vec<ConnId> = of_it.map(|(id, _)| *id).collect();
        of_it.iter().for_each(|id| self.remove(*id));
        of_it
    }

    pub fn set_stopped(&mut self, id: ConnId, stopped: bool) {
        if let Some(channel) = self.all.get_mut(&id) {
            channel.stopped = stopped;
        }
    }

    /// Whether the stream may have more, where its trunk has room or not. One that may not for
    /// want of room is remembered.
    pub fn has_room(&self, id: ConnId, trunk_has_room: bool) -> bool {
        let Some(channel) = self.all.get(&id) else { return false };
        if channel.stopped || trunk_has_room {
            return !channel.stopped;
        }
        if !channel.starved.replace(true) {
            self.starved.borrow_mut().entry(channel.trunk).or_default().push_back(id);
        }
        false
    }

    /// The next stream of a trunk that had more when there was no room.
    pub fn next_starved(&self, trunk: ConnId) -> Option<ConnId> {
        let mut starved = self.starved.borrow_mut();
        let queue = starved.get_mut(&trunk)?;
        while let Some(id) = queue.pop_front() {
            if let Some(channel) = self.all.get(&id) {
                channel.starved.set(false);
                return Some(id);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_whole_in_pieces_of_any_size() {
        let mut bytes = Vec::new();
        let frames = [vec![7; 5], vec![9; MAX_FRAME]];
        for (rank, frame) in (3..).map(Rank).zip(&frames) {
            put_frame(&mut bytes, rank, |out| out.extend(frame));
            put_word(&mut bytes, rank, Word::Stop);
        }
        put_word(&mut bytes, Rank(1), Word::Go);
        put_word(&mut bytes, Rank(1), Word::Closed);
        let mut expected = Vec::new();
        for (rank, frame) in (3..).map(Rank).zip(&frames) {
            expected.extend([(rank, Record::Frame(frame)), (rank, Record::Word(Word::Stop))]);
        }
        expected.extend([Word::Go, Word::Closed].map(|word| (Rank(1), Record::Word(word))));
        let mut rest = &bytes[..];
        for record in expected {
            let (rank, found, len) = parse(rest).unwrap().unwrap();
            assert_eq!((rank, found), record);
            for part in [0, 1, HEAD_LEN - 1, len - 1] {
                assert_eq!(parse(&rest[..part]), Ok(None));
            }
            rest = &rest[len..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for second in [0, MAX_FRAME as u32 + 1, WORD, WORD | 4, u32::MAX] {
            let bytes = [1u32.to_le_bytes(), second.to_le_bytes()].concat();
            assert!(parse(&bytes).is_err(), "{second:x}");
        }
    }

    #[test]
    fn streams_without_room_have_their_turns() {
        let mut channels = Channels::default();
        for (id, rank) in [(10, 0), (11, 1), (12, 2)] {
            channels.add(id, 5, Rank(rank));
        }
        assert!(channels.has_room(10, true) && channels.next_starved(5).is_none());
        for id in [12, 10, 12, 11] {
            assert!(!channels.has_room(id, false));
        }
        channels.remove(10);
        assert_eq!(channels.next_starved(5), Some(12));
        assert!(!channels.has_room(12, false));
        assert_eq!([0; 3].map(|_| channels.next_starved(5)), [Some(11), Some(12), None]);
        channels.set_stopped(11, true);
        assert!(!channels.has_room(11, true) && !channels.has_room(11, false));
        assert!(channels.next_starved(5).is_none(), "it waits for its receiver");
        channels.set_stopped(11, false);
        assert!(channels.has_room(11, true));
        let mut ended = channels.remove_trunk(5);
        ended.sort_unstable();
        assert_eq!(ended, [11, 12]);
        assert!(channels.find(5, Rank(1)).is_none() && channels.of(12).is_none());
    }
}
