//! A rank writes its own region: messages, order, what it has observed. It is the only process that
//! does, so it takes no lock; it may be killed between any two stores, and the next incarnation
//! goes on from what lies there. It must never change what it has published.
//!
//! A new incarnation sends again what it sent before. Each such message is compared, byte for byte,
//! with the one that lies there, and nothing is written. What was released meanwhile is gone, and
//! passed over.

use crate::check::VALUE_MAX;
use crate::cursor::Cursor;
use crate::entry::{self, Entry, Envelope, Filled, Form, Line, INLINE, LONGEST};
use crate::error::{LedgerError, Sign};
use crate::extents::Extent;
use crate::layout::{channel, Channel, Layout, Rank, LINE};
use crate::memory::Memory;
use crate::mutation::{active, Mutation};
use crate::observed::{ObservedReader, ObservedTail};
use crate::order::{OrderReader, OrderTail};
use crate::space::Space;

/// When messages are large, and in what steps they are written then.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Longest payload that is published at once, in bytes.
    pub at_once: usize,
    /// Bytes of a step.
    pub step: usize,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { at_once: 64 << 10, step: 64 << 10 }
    }
}

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub to: Rank,
    pub envelope: Envelope,
    /// The low bits of the sender's clock.
    pub clock: u32,
    pub payload: &'a [u8],
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It is in the ledger now.
    New,
    /// It was there already, the same.
    Again,
    /// It was there already, with other content of the same length. The content that lies there
    /// counts: its receiver may have seen it.
    Differs,
    /// It was there before, and was released.
    Released,
}

/// The end of a channel.
#[derive(Debug)]
struct Outgoing {
    cursor: Cursor,
    /// ssn of the next message that the rank sends.
    next: u64,
    /// An earlier incarnation may have sent this message.
    again: bool,
    /// Bytes of payload since the start.
    payload: u64,
}

/// Writes a region.
#[derive(Debug)]
pub struct Writer<M> {
    space: Space<M>,
    to: Vec<Outgoing>,
    order: OrderTail,
    observed: ObservedTail,
    sizes: Sizes,
    /// The channel that is next looked at whether it has pages ahead.
    ahead: u32,
}

impl<M: Memory> Writer<M> {
    /// Opens a region for a rank that has sent `sent` messages to each rank, by its image: none
    /// when it starts from the beginning. The keeper has prepared it; no other process writes it.
    ///
    /// # Errors
    /// When the region is damaged, or lacks what the image says was sent.
    pub fn open(
        memory: M,
        layout: Layout,
        sent: impl Fn(Rank) -> u64,
        sizes: Sizes,
    ) -> Result<Writer<M>, LedgerError> {
        let mut newest = vec![0; layout.ranks() as usize];
        let mut space = Space::open(memory, layout, |memory, index, last| {
            let Some(newest) = newest.get_mut(index as usize) else { return Ok(*last) };
            let (end, ssn) = end_of(memory, layout, index, last)?;
            *newest = ssn;
            Ok(end)
        })?;
        let mut to = Vec::with_capacity(newest.len());
        for (index, newest) in (0..).zip(newest) {
            to.push(Outgoing::open(&mut space, index, sent(index), newest)?);
        }
        let order = {
            let mut reader = OrderReader::at_last(&space.memory, layout, u64::MAX)?;
            while reader.next()?.is_some() {}
            OrderTail::behind(&reader)
        };
        let observed = {
            let mut reader = ObservedReader::open(&space.memory, layout, u64::MAX)?;
            while reader.next()?.is_some() {}
            ObservedTail::behind(&reader)
        };
        Ok(Writer { space, to, order, observed, sizes, ahead: 0 })
    }

    /// Sends a message. `published` is called whenever there is something to look at for a receiver
    /// that sleeps: once, and for a large message when it is begun and when it is whole.
    ///
    /// # Errors
    /// When there is no room: it can be tried again, with the same message. When the rank sends
    /// something other than before its death. When the ledger is damaged.
    ///
    /// # Panics
    /// When the job has no such rank.
    #[inline]
    pub fn append(
        &mut self,
        message: &Message,
        mut published: impl FnMut(),
    ) -> Result<Sent, LedgerError> {
        if self.to[message.to as usize].again {
            if let Some(sent) = self.repeat(message, &mut published)? {
                return Ok(sent);
            }
        }
        let form = self.form(message)?;
        let len = message.payload.len() as u64;
        let bytes = entry::bytes(form, len);
        let index = message.to;
        let out = &self.to[index as usize];
        if out.cursor.at == 0 || bytes + LINE > out.cursor.end - out.cursor.at {
            self.turn(index, bytes + LINE)?;
        }
        let at = self.to[index as usize].cursor.at;
        match form {
            Form::Large => {
                self.space.ready(index, at + entry::payload(form))?;
                self.space.page(index, at + bytes)?;
            }
            _ => self.space.ready(index, at + bytes + LINE)?,
        }
        let (entry, line) = self.put(message, form, at);
        self.publish(index, &entry, &line);
        published();
        if form == Form::Large {
            self.fill(index, &entry, message.payload, Filled { bytes: 0, turn: 0 })?;
            published();
        }
        self.pass(index, &entry);
        Ok(Sent::New)
    }

    /// Whether the next message to a rank lies in the ledger already, or was released: an earlier
    /// incarnation has sent it.
    ///
    /// # Errors
    /// When the ledger is damaged.
    ///
    /// # Panics
    /// When the job has no such rank.
    #[inline]
    pub fn has_sent(&mut self, to: Rank) -> Result<bool, LedgerError> {
        let out = &mut self.to[to as usize];
        if !out.again {
            return Ok(false);
        }
        Ok(out.next < out.cursor.ssn || out.cursor.look(&self.space.memory)?.is_some())
    }

    /// Records that these messages became visible at this clock, before the progress call returns.
    /// Channels are those of the sources. An empty list: nothing more became visible up to here.
    ///
    /// # Errors
    /// When there is no room: it can be tried again.
    ///
    /// # Panics
    /// When this clock was recorded already.
    #[inline]
    pub fn record(&mut self, clock: u64, shown: &[(Rank, u32)]) -> Result<(), LedgerError> {
        self.order.record(&mut self.space, clock, shown)
    }

    /// Keeps what the rank has observed up to this clock, before it sends anything that depends on
    /// it.
    ///
    /// # Errors
    /// When there is no room: it can be tried again.
    ///
    /// # Panics
    /// When the part is empty or too long.
    pub fn observe(&mut self, clock: u64, part: &[u8]) -> Result<(), LedgerError> {
        self.observed.observe(&mut self.space, clock, part)
    }

    /// Makes pages that will be needed soon, while the rank waits for others: a new page costs more
    /// than what is written there. A call looks at one channel, and is short.
    #[inline]
    pub fn make_ahead(&mut self) {
        let Some(out) = self.to.get(self.ahead as usize) else {
            self.ahead = 0;
            return;
        };
        let at = out.cursor.at;
        if at == 0 || !self.space.make_ahead(self.ahead, at) {
            self.ahead += 1;
        }
    }

    /// The clock of the last determinant. A rank that is executed again records nothing up to it.
    pub fn recorded(&self) -> u64 {
        self.order.clock()
    }

    /// Bytes that were observed so far.
    pub fn observed(&self) -> u64 {
        self.observed.end()
    }

    /// Messages sent to a rank so far, by this incarnation and those before its image.
    ///
    /// # Panics
    /// When the job has no such rank.
    pub fn sent(&self, to: Rank) -> u64 {
        self.to[to as usize].next - 1
    }

    /// ssn of the newest message to a rank that lies in the ledger: for the boards, which a new
    /// incarnation writes anew.
    ///
    /// # Panics
    /// When the job has no such rank.
    pub fn newest(&self, to: Rank) -> u64 {
        let line = self.space.layout.channel(self.space.layout.index(Channel::Rank(to)));
        self.space.memory.load(line + channel::NEWEST)
    }

    /// Bytes of extents that the region has ever used. They do not become fewer.
    pub fn bytes(&self) -> u64 {
        self.space.bytes()
    }

    fn form(&self, message: &Message) -> Result<Form, LedgerError> {
        let len = message.payload.len();
        if len as u64 > LONGEST.min(VALUE_MAX) {
            let rank = self.space.layout.rank();
            return Err(LedgerError::TooLong { rank, bytes: len as u64 });
        }
        Ok(match len {
            _ if len > self.sizes.at_once => Form::Large,
            _ if len <= INLINE && message.envelope.more.is_none() => Form::Inline,
            _ => Form::Plain,
        })
    }

    /// Goes on in a new extent.
    #[cold]
    fn turn(&mut self, index: u32, bytes: u64) -> Result<(), LedgerError> {
        let out = &mut self.to[index as usize];
        let number =
            self.space.chains[index as usize].last.map_or(0, |last| last.base[0].saturating_add(1));
        let extent = self.space.extend(index, bytes, out.next, [number, 0])?;
        let memory = &self.space.memory;
        memory.store(extent.content(), 0);
        if out.cursor.at != 0 {
            let seed = self.space.layout.seed(index);
            put_line(memory, out.cursor.at, &entry::jump(extent.at));
            let word = entry::first_word(seed, out.next, &entry::jump(extent.at));
            publish_word(memory, out.cursor.at, word);
        }
        // Behind the jump: who follows the heads finds no message that who follows jumps does not.
        self.space.link(index, extent);
        out.cursor.enter(&extent);
        Ok(())
    }

    /// Writes an entry but for the word that publishes it.
    #[inline]
    fn put(&self, message: &Message, form: Form, at: u64) -> (Entry, Line) {
        let memory = &self.space.memory;
        let ssn = self.to[message.to as usize].next;
        let len = message.payload.len() as u64;
        let mut inline = [0; INLINE];
        if form == Form::Inline {
            inline[..message.payload.len()].copy_from_slice(message.payload);
        }
        let envelope = message.envelope;
        let clock = message.clock;
        let entry = Entry { ssn, envelope, len, clock, inline, at, form };
        if !active(Mutation::KeepNextPlace) {
            // What comes next must not look like an entry, whatever lay there before.
            memory.store(at + entry.bytes(), 0);
        }
        match form {
            Form::Plain => memory.write(entry.payload(), message.payload),
            Form::Large => {
                let nothing = Filled { bytes: 0, turn: 0 };
                memory.store(at + LINE, entry::filled_word(at + LINE, ssn, nothing));
            }
            Form::Inline | Form::Jump => {}
        }
        let line = entry.line();
        put_line(memory, at, &line);
        (entry, line)
    }

    /// Publishes an entry.
    #[inline]
    fn publish(&mut self, index: u32, entry: &Entry, line: &Line) {
        let memory = &self.space.memory;
        let layout = &self.space.layout;
        let out = &mut self.to[index as usize];
        out.payload = out.payload.wrapping_add(entry.len);
        memory.store(payload_word(layout, index, entry.ssn), out.payload);
        publish_word(memory, entry.at, entry::first_word(out.cursor.seed(), entry.ssn, line));
        let newest = layout.channel(index) + channel::NEWEST;
        if active(Mutation::RelaxedNewest) {
            memory.store(newest, entry.ssn)
        } else {
            memory.store_release(newest, entry.ssn)
        }
    }

    /// Writes the rest of the payload of a large message, while its receiver copies.
    fn fill(
        &mut self,
        index: u32,
        entry: &Entry,
        payload: &[u8],
        mut filled: Filled,
    ) -> Result<(), LedgerError> {
        while filled.bytes < entry.len {
            let from = filled.bytes;
            let step = (entry.len - from).min(self.sizes.step as u64);
            let at = entry.payload() + from;
            if let Err(error) = self.space.ready(index, at + step) {
                // The next try compares what is there, and goes on.
                self.to[index as usize].again = true;
                return Err(error);
            }
            let memory = &self.space.memory;
            memory.write(at, &payload[from as usize..(from + step) as usize]);
            filled.bytes += step;
            let word = entry::filled_word(entry.at + LINE, entry.ssn, filled);
            if active(Mutation::RelaxedFilled) {
                memory.store(entry.at + LINE, word)
            } else {
                memory.store_release(entry.at + LINE, word)
            }
        }
        Ok(())
    }

    /// Goes on behind a message.
    #[inline]
    fn pass(&mut self, index: u32, entry: &Entry) {
        let out = &mut self.to[index as usize];
        out.cursor.pass(entry);
        out.next += 1;
    }

    /// Compares a message with the one that an earlier incarnation has written. `None`: it has
    /// written none.
    #[cold]
    fn repeat(
        &mut self,
        message: &Message,
        published: &mut impl FnMut(),
    ) -> Result<Option<Sent>, LedgerError> {
        let index = message.to;
        let memory = &self.space.memory;
        let out = &mut self.to[index as usize];
        if out.next < out.cursor.ssn {
            out.next += 1;
            return Ok(Some(Sent::Released));
        }
        let Some(entry) = out.cursor.look(memory)? else {
            out.again = false;
            return Ok(None);
        };
        self.space.chains[index as usize].hold = out.cursor.extent;
        let filled = entry
            .filled(memory)
            .ok_or_else(|| out.cursor.damaged("how much of it is written is nonsense"))?;
        // Not the clock: behind the last determinant the rank may have asked more or less often for
        // messages than before, in vain.
        let len = message.payload.len() as u64;
        if (entry.envelope, entry.len) != (message.envelope, len) {
            let before = Sign { tag: entry.envelope.words[0], bytes: entry.len };
            let now = Sign { tag: message.envelope.words[0], bytes: len };
            let rank = self.space.layout.rank();
            let ssn = entry.ssn;
            return Err(LedgerError::Diverged { rank, to: index, ssn, before, now });
        }
        let same = has_content(memory, &entry, &message.payload[..filled.bytes as usize]);
        if filled.bytes < entry.len {
            // No receiver has shown a part of a message: all of it may be written anew. One that
            // has copied some of it sees that by the turn, at the latest when the message is whole.
            let mut from = filled;
            if !same {
                from = Filled { bytes: 0, turn: filled.turn.wrapping_add(1) };
                let word = entry::filled_word(entry.at + LINE, entry.ssn, from);
                memory.store_release(entry.at + LINE, word);
            }
            self.fill(index, &entry, message.payload, from)?;
            published();
        } else if !same {
            self.pass(index, &entry);
            return Ok(Some(Sent::Differs));
        }
        self.pass(index, &entry);
        Ok(Some(Sent::Again))
    }
}

impl Outgoing {
    /// The place behind `sent` messages in a channel whose newest message is `newest`.
    fn open<M: Memory>(
        space: &mut Space<M>,
        index: u32,
        sent: u64,
        newest: u64,
    ) -> Result<Outgoing, LedgerError> {
        let first = space.first(index)?.map_or(1, |extent| extent.first);
        let mut cursor = Cursor::new(space.layout, index, first.max(sent + 1));
        let again = cursor.look(&space.memory)?.is_some() || sent + 1 < cursor.ssn;
        if cursor.at != 0 {
            space.chains[index as usize].hold = cursor.extent;
            let line = space.layout.channel(index);
            space.memory.store_release(line + channel::NEWEST, newest);
        }
        let payload = space.memory.load(payload_word(&space.layout, index, newest));
        Ok(Outgoing { cursor, next: sent + 1, again, payload })
    }
}

/// Where the content of a channel ends, whose last extent is `last` by the heads, and its newest
/// message.
fn end_of(
    memory: &impl Memory,
    layout: Layout,
    index: u32,
    last: &Extent,
) -> Result<(Extent, u64), LedgerError> {
    let mut cursor = Cursor::new(layout, index, last.first);
    cursor.enter(last);
    while let Some(entry) = cursor.look(memory)? {
        cursor.pass(&entry);
    }
    let newest = cursor.ssn - 1;
    if cursor.extent == last.at {
        return Ok((*last, newest));
    }
    Extent::read(memory, &layout, index, cursor.extent)
        .ok()
        .filter(|end| Some(end.base[0]) == last.base[0].checked_add(1))
        .map(|end| (end, newest))
        .ok_or_else(|| cursor.damaged("an extent is not in its chain"))
}

/// Where the bytes of the payload of all messages of a channel up to this one are.
#[inline]
fn payload_word(layout: &Layout, index: u32, ssn: u64) -> u64 {
    layout.channel(index) + channel::PAYLOAD[(ssn % 2) as usize]
}

fn put_line(memory: &impl Memory, at: u64, line: &Line) {
    for (word, at) in line.iter().zip((at + 8..).step_by(8)) {
        memory.store(at, *word);
    }
}

/// Stores the word that publishes an entry or a jump.
#[inline]
fn publish_word(memory: &impl Memory, at: u64, word: u64) {
    if active(Mutation::RelaxedEntry) {
        memory.store(at, word)
    } else {
        memory.store_release(at, word)
    }
}

/// Whether the payload of an entry begins with these bytes.
fn has_content(memory: &impl Memory, entry: &Entry, payload: &[u8]) -> bool {
    match entry.form {
        Form::Inline => entry.inline[..payload.len()] == *payload,
        _ => payload.chunks(4096).zip((entry.payload()..).step_by(4096)).all(|(part, at)| {
            let mut there = [0; 4096];
            memory.read(at, &mut there[..part.len()]);
            there[..part.len()] == *part
        }),
    }
}
