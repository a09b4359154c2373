//! The encoding of a rank's stream of observations: values of clocks, and results of calls. A clock
//! that is read again and again must cost a fraction of a byte. It must never read a clock or
//! allocate.

/// Clocks, by the kernel's numbers; values are in microseconds.
pub const CLOCKS: usize = 16;
/// The value of time(2), in seconds.
pub const SECONDS: usize = 12;

/// The meaning of the first byte of an item. Below [`NEAR`]: up to 31 values of the same clock that
/// are equal to the last one, then one that is 1 or 2 higher.
const NEAR: u8 = 0x40;
/// From there to [`CLOCK`]: one that is 3 or more higher.
const FIRST_NEAR: i64 = 3;
/// Another clock: 16 of them, and by how much it is higher than its last value.
const CLOCK: u8 = 0xe0;
/// So many values that are equal to the last one.
const EQUAL: u8 = 0xf0;
/// The same clock, and by how much it is higher.
const FAR: u8 = 0xf1;
/// The result of a call: a number.
const RESULT: u8 = 0xf2;
/// The record of a call: so many bytes, which mean nothing here.
const RECORD: u8 = 0xf3;

/// A call returned what was asked for: its kind. Its result can be had again.
const DONE: u8 = 0xf4;
/// So many more of the last kind.
const DONE_AGAIN: u8 = 0xf5;

/// The byte that ends a record.
pub const WHOLE: u8 = 0x5a;

/// The kind of a call that a reader skips: the known stream ended in the middle of its item.
const NO_CALL: u8 = 0;

/// How many bytes are missing of an item of which these are known. With so many zeros added, a
/// reader skips the item, or reads fewer values than there were. `None`: this is no item.
pub fn missing(bytes: &[u8]) -> Option<usize> {
    let (first, rest) = bytes.split_first()?;
    let mut behind = rest;
    let whole = number(&mut behind);
    match *first {
        RECORD => match whole {
            Some(len) => usize::try_from(len).ok()?.checked_sub(behind.len()),
            // Its length ends with the zero.
            None => {
                let known = rest.iter().rev().fold(0, |n, byte| n << 7 | usize::from(byte & 0x7f));
                Some(1 + known)
            }
        },
        DONE => rest.is_empty().then_some(1),
        CLOCK..EQUAL | EQUAL | FAR | RESULT | DONE_AGAIN => whole.is_none().then_some(1),
        _ => None,
    }
}

/// At most so many bytes are added by one value. A record adds its own bytes as well.
pub const MOST: usize = 32;

/// Something observed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    Clock {
        clock: usize,
        value: i64,
    },
    Result(i64),
    /// A call of this kind came out as it was asked for.
    Done(u8),
    /// Its bytes are the last ones that were used.
    Record {
        len: usize,
    },
}

/// Where bytes go.
pub trait Sink {
    fn push(&mut self, byte: u8);

    fn extend(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.push(*byte));
    }
}

pub fn put_number<S: Sink>(out: &mut S, n: u64) {
    let mut rest = n;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Small numbers of either sign as small numbers.
pub fn folded(n: i64) -> u64 {
    (n << 1 ^ n >> 63) as u64
}

pub fn unfolded(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// The state that writer and reader share: the last value of each clock, and the last clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Last {
    pub values: [i64; CLOCKS],
    clock: usize,
}

impl Last {
    pub const fn new() -> Last {
        Last { values: [0; CLOCKS], clock: 0 }
    }
}

/// Writes a stream. Equal values are counted and written with the next item. So are calls of one
/// kind that returned what was asked for.
#[derive(Clone, Debug)]
pub struct Writer {
    equal: u64,
    done: u64,
    kind: u8,
}

impl Writer {
    pub const fn new() -> Writer {
        Writer { equal: 0, done: 0, kind: 0 }
    }

    #[inline]
    pub fn clock<S: Sink>(&mut self, last: &mut Last, clock: usize, value: i64, out: &mut S) {
        let higher = value.wrapping_sub(last.values[clock]);
        if self.done > 0 {
            self.settle(out);
        }
        if clock == last.clock && higher == 0 {
            self.equal += 1;
            return;
        }
        last.values[clock] = value;
        if clock == last.clock && self.equal < 32 && (higher == 1 || higher == 2) {
            out.push((self.equal as u8) << 1 | (higher - 1) as u8);
            self.equal = 0;
            return;
        }
        self.other(last, clock, higher, out);
    }

    fn other<S: Sink>(&mut self, last: &mut Last, clock: usize, higher: i64, out: &mut S) {
        self.settle(out);
        let near = FIRST_NEAR..FIRST_NEAR + i64::from(CLOCK - NEAR);
        if clock != last.clock {
            last.clock = clock;
            out.push(CLOCK | clock as u8);
            put_number(out, folded(higher));
        } else if near.contains(&higher) {
            out.push(NEAR + (higher - FIRST_NEAR) as u8);
        } else {
            out.push(FAR);
            put_number(out, folded(higher));
        }
    }

    pub fn result<S: Sink>(&mut self, value: i64, out: &mut S) {
        self.settle(out);
        out.push(RESULT);
        put_number(out, folded(value));
    }

    /// Writes a record, its parts one behind another.
    pub fn record<S: Sink>(&mut self, parts: [&[u8]; 2], out: &mut S) {
        self.settle(out);
        out.push(RECORD);
        put_number(out, (parts[0].len() + parts[1].len() + 1) as u64);
        parts.iter().for_each(|part| out.extend(part));
        out.push(WHOLE);
    }

    /// A call of this kind came out as it was asked for.
    pub fn done<S: Sink>(&mut self, kind: u8, out: &mut S) {
        if self.equal > 0 || self.kind != kind {
            self.settle(out);
        }
        self.kind = kind;
        self.done += 1;
    }

    /// Whether there are items that were only counted.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.equal == 0 && self.done == 0
    }

    /// Writes the items that were only counted.
    pub fn settle<S: Sink>(&mut self, out: &mut S) {
        if self.equal > 0 {
            out.push(EQUAL);
            put_number(out, std::mem::take(&mut self.equal));
        }
        let done = std::mem::take(&mut self.done);
        if done > 0 {
            out.push(DONE);
            out.push(self.kind);
        }
        if done > 1 {
            out.push(DONE_AGAIN);
            put_number(out, done - 1);
        }
    }
}

/// Reads a stream.
#[derive(Clone, Debug)]
pub struct Reader {
    /// How many values come next that equal the last one, and the item behind them.
    equal: u64,
    then: Option<Item>,
    /// How many calls of the last kind come first.
    done: u64,
    kind: u8,
}

impl Reader {
    pub const fn new() -> Reader {
        Reader { equal: 0, then: None, done: 0, kind: 0 }
    }

    /// Whether everything that was read has been taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.equal == 0 && self.then.is_none() && self.done == 0
    }

    /// The next item. `bytes` are those behind the last ones that were used. The number of bytes
    /// that this item uses is added to `used`. `None`: there is no more, or no whole item.
    #[inline]
    pub fn peek(&mut self, last: &Last, bytes: &[u8], used: &mut usize) -> Option<Item> {
        if self.is_empty() {
            let mut rest = bytes;
            let read = self.read(last, &mut rest);
            *used += bytes.len() - rest.len();
            read?;
        }
        if self.equal > 0 {
            return Some(Item::Clock { clock: last.clock, value: last.values[last.clock] });
        }
        if self.done > 0 {
            return Some(Item::Done(self.kind));
        }
        self.then
    }

    /// Drops a record that was read and not taken. Returns how many bytes it has in the stream.
    pub fn drop_record(&mut self) -> Option<usize> {
        match self.then.take_if(|item| matches!(item, Item::Record { .. }))? {
            Item::Record { len } => {
                let digits = (usize::BITS - (len | 1).leading_zeros()).div_ceil(7) as usize;
                Some(1 + digits + len)
            }
            _ => None,
        }
    }

    /// It has been observed again.
    #[inline]
    pub fn take(&mut self, last: &mut Last) {
        if self.equal > 0 {
            self.equal -= 1;
        } else if self.done > 0 {
            self.done -= 1;
        } else if let Some(Item::Clock { clock, value }) = self.then.take() {
            last.clock = clock;
            last.values[clock] = value;
        }
    }

    /// Reads an item. An empty item is skipped, and counts as used also when it is the last.
    fn read(&mut self, last: &Last, bytes: &mut &[u8]) -> Option<()> {
        loop {
            let mut rest = *bytes;
            self.read_any(last, &mut rest)?;
            *bytes = rest;
            if self.done > 0 && self.kind == NO_CALL {
                self.done = 0;
            }
            if !self.is_empty() {
                return Some(());
            }
        }
    }

    fn read_any(&mut self, last: &Last, bytes: &mut &[u8]) -> Option<()> {
        let clock = last.clock;
        let at = |clock: usize, higher: i64| {
            let value = last.values[clock].wrapping_add(higher);
            Some(Item::Clock { clock, value })
        };
        let mut equal = 0;
        let then = match byte(bytes)? {
            b if b < NEAR => {
                equal = u64::from(b >> 1);
                at(clock, i64::from(b & 1) + 1)
            }
            b if b < CLOCK => at(clock, i64::from(b - NEAR) + FIRST_NEAR),
            b if b < EQUAL => at((b - CLOCK) as usize, unfolded(number(bytes)?)),
            EQUAL => {
                equal = number(bytes)?;
                None
            }
            FAR => at(clock, unfolded(number(bytes)?)),
            RESULT => Some(Item::Result(unfolded(number(bytes)?))),
            RECORD => {
                let len = usize::try_from(number(bytes)?).ok()?;
                *bytes = bytes.get(len..)?;
                Some(Item::Record { len })
            }
            DONE => {
                (self.done, self.kind) = (1, byte(bytes)?);
                None
            }
            DONE_AGAIN => {
                self.done = number(bytes)?;
                None
            }
            _ => return None,
        };
        (self.equal, self.then) = (equal, then);
        Some(())
    }
}

pub fn byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

pub fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let b = byte(bytes)?;
        n |= u64::from(b & 0x7f) << shift;
        if b < 0x80 {
            return Some(n);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Sink for Vec<u8> {
        fn push(&mut self, byte: u8) {
            Vec::push(self, byte);
        }
    }

    fn written(items: &[Item], cuts: &[usize]) -> Vec<u8> {
        let mut writer = Writer::new();
        let mut last = Last::new();
        let mut out = Vec::new();
        for (n, item) in items.iter().enumerate() {
            let before = out.len();
            match *item {
                Item::Clock { clock, value } => writer.clock(&mut last, clock, value, &mut out),
                Item::Result(value) => writer.result(value, &mut out),
                Item::Done(kind) => writer.done(kind, &mut out),
                Item::Record { len } => writer.record([&vec![7; len], b"more"], &mut out),
            }
            let len = if let Item::Record { len } = *item { len + 5 } else { 0 };
            assert!(out.len() - before <= MOST + len);
            if cuts.contains(&n) {
                writer.settle(&mut out);
            }
        }
        writer.settle(&mut out);
        out
    }

    fn read(bytes: &[u8]) -> Vec<Item> {
        let mut reader = Reader::new();
        let mut last = Last::new();
        let mut used = 0;
        let mut items = Vec::new();
        loop {
            let from = used;
            let Some(item) = reader.peek(&last, &bytes[from..], &mut used) else { break };
            assert_eq!(reader.peek(&last, &bytes[used..], &mut used), Some(item));
            items.push(match item {
                Item::Record { len } => {
                    let record = [&vec![7; len - 5][..], b"more", &[WHOLE]].concat();
                    assert!(bytes[..used].ends_with(&record));
                    Item::Record { len: len - 5 }
                }
                item => item,
            });
            reader.take(&mut last);
        }
        assert_eq!(used, bytes.len());
        items
    }

    /// A small random generator, because this library needs none elsewhere.
    fn random(state: &mut u64) -> u64 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    #[test]
    fn what_was_written_is_read() {
        let mut state = 1;
        for round in 0..2000 {
            let mut values = [0i64; CLOCKS];
            let mut clock = 0;
            let items: Vec<Item> = (0..random(&mut state) % 200)
                .map(|_| {
                    let r = random(&mut state);
                    if r % 10 == 0 {
                        clock = (r >> 8) as usize % CLOCKS;
                    }
                    let higher = match r >> 4 & 15 {
                        0 => r as i64 - (1 << 30),
                        1 => 1 << (r >> 9 & 62),
                        2..=5 => (r >> 9 & 255) as i64,
                        6..=8 => (r >> 9 & 3) as i64,
                        9 => return Item::Result(r as i64 - (1 << 30)),
                        10 => return Item::Record { len: (r >> 9 & 255) as usize },
                        11..=13 => return Item::Done((r >> 13 & 1) as u8 + 1),
                        _ => 0,
                    };
                    values[clock] = values[clock].wrapping_add(higher);
                    Item::Clock { clock, value: values[clock] }
                })
                .collect();
            let cuts: Vec<usize> = (0..3).map(|_| random(&mut state) as usize % 200).collect();
            assert_eq!(read(&written(&items, &cuts)), items, "round {round}");
        }
    }

    #[test]
    fn a_loop_that_polls_a_clock_costs_less_than_a_byte_a_value() {
        let poll = |every_ns: i64, n: i64| -> usize {
            let items: Vec<Item> =
                (0..n).map(|i| Item::Clock { clock: 1, value: i * every_ns / 1000 }).collect();
            written(&items, &[]).len()
        };
        assert!(poll(40, 1_000_000) < 50_000);
        assert!(poll(300, 100_000) < 40_000);
        assert!(poll(1_700, 100_000) < 100_010);
        assert!(poll(150_000, 100_000) < 100_010);
    }

    #[test]
    fn calls_of_one_kind_cost_less_than_a_byte() {
        assert!(written(&vec![Item::Done(7); 1000], &[]).len() < 8);
    }

    /// Wherever the known stream ends, items that are written behind it can be read.
    #[test]
    fn an_item_of_which_a_part_is_known_is_passed_over() {
        let items = [
            Item::Clock { clock: 3, value: 70_000 },
            Item::Clock { clock: 3, value: 70_000 },
            Item::Clock { clock: 5, value: -9 },
            Item::Done(7),
            Item::Record { len: 300 },
            Item::Result(100_000),
        ];
        let many = [vec![Item::Done(9); 500], vec![Item::Clock { clock: 1, value: 3 }; 700]];
        let all = [&items[..], &many.concat(), &items].concat();
        let bytes = written(&all, &[]);
        for known in 0..bytes.len() {
            let mut again = bytes[..known].to_vec();
            let mut reader = Reader::new();
            let mut last = Last::new();
            let mut used = 0;
            loop {
                let from = used;
                let Some(_) = reader.peek(&last, &again[from..], &mut used) else { break };
                reader.take(&mut last);
            }
            let rest = again[used..].to_vec();
            assert_eq!(rest.is_empty(), missing(&rest).is_none(), "{rest:x?}");
            again.resize(again.len() + missing(&rest).unwrap_or(0), 0);
            for is_more in [false, true] {
                if is_more {
                    Writer::new().result(77, &mut again);
                }
                let mut reader = Reader::new();
                let mut last = Last::new();
                let mut used = 0;
                let mut read = Vec::new();
                loop {
                    let from = used;
                    let Some(item) = reader.peek(&last, &again[from..], &mut used) else { break };
                    read.push(item);
                    reader.take(&mut last);
                }
                let is_read = read.last() == Some(&Item::Result(77));
                assert!(!is_more || is_read, "{known} of {}", bytes.len());
                assert_eq!(used, again.len());
            }
        }
    }

    #[test]
    fn nonsense_ends_a_stream() {
        for bytes in [&[0xff][..], &[FAR, 0x80], &[CLOCK], &[RECORD, 2, 1], &[DONE], &[DONE_AGAIN]]
        {
            let mut reader = Reader::new();
            let mut used = 0;
            assert_eq!(reader.peek(&Last::new(), bytes, &mut used), None);
            assert_eq!(used, 0);
        }
    }
}
