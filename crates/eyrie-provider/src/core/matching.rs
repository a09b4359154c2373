//! Matching of visible messages with posted receives. It is pure except for the copy into the
//! receiver's buffer. It must see messages in their total order and receives in the order of the
//! calls, and nothing else: the same order gives the same matches.

use eyrie_wire::Rank;
use std::collections::VecDeque;
use std::io;

/// Opaque pointer of the MPI library that names an operation.
pub type Context = usize;

/// The envelope of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    pub source: Rank,
    pub tagged: bool,
    pub tag: u64,
    /// Immediate data, if the sender gave some.
    pub data: Option<u64>,
    /// Bytes.
    pub len: usize,
}

/// Where the content of an arriving message is.
pub trait Content {
    /// Copies the first `len` bytes to `to`.
    ///
    /// # Safety
    /// `to` must be valid for `len` bytes.
    ///
    /// # Errors
    /// When it cannot be read.
    unsafe fn copy_to(&self, to: *mut u8, len: usize) -> io::Result<()>;
}

impl Content for [u8] {
    unsafe fn copy_to(&self, to: *mut u8, len: usize) -> io::Result<()> {
        let bytes = self.get(..len).ok_or(io::ErrorKind::UnexpectedEof)?;
        // SAFETY: the caller vouches for `to`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len) };
        Ok(())
    }
}

impl Content for &[u8] {
    unsafe fn copy_to(&self, to: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: handed on to the caller.
        unsafe { (**self).copy_to(to, len) }
    }
}

/// Where the content of a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// No two receives of a process have the same.
    pub receive: u64,
    pub buffer: *mut u8,
    /// Bytes that go there.
    pub len: usize,
}

/// A receive that waits for its message.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    pub context: Context,
    pub buffer: *mut u8,
    /// Bytes.
    pub len: usize,
    /// Only from this rank.
    pub source: Option<Rank>,
    pub tagged: bool,
    pub tag: u64,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
    /// One buffer for many messages, until less than this is left in it.
    pub multi: Option<usize>,
    /// Bytes used so far of such a buffer.
    pub used: usize,
    /// Report the completion.
    pub report: bool,
}

impl Posted {
    fn takes(&self, e: &Envelope) -> bool {
        matches(self.source, self.tag, self.ignore, e)
    }
}

fn matches(source: Option<Rank>, tag: u64, ignore: u64, e: &Envelope) -> bool {
    source.is_none_or(|s| s == e.source) && (!e.tagged || (tag ^ e.tag) & !ignore == 0)
}

/// What a receive or a probe ended with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Received,
    /// Only the first bytes fit: `over` bytes did not.
    Truncated {
        over: usize,
    },
    Canceled,
    /// Probe: a message like this is there.
    Found,
    /// Probe: none is there.
    NotFound,
}

/// A finished receive, for the completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    pub context: Context,
    pub outcome: Outcome,
    pub tagged: bool,
    pub tag: u64,
    pub data: Option<u64>,
    pub len: usize,
    pub buffer: *mut u8,
    /// The buffer for many messages is given back.
    pub last_of_multi: bool,
    pub report: bool,
}

/// A visible message that no receive has taken.
#[derive(Clone)]
struct Message {
    envelope: Envelope,
    content: Vec<u8>,
    /// A probe has claimed it for the receive with this context.
    claimed: Option<Context>,
}

/// The queues of an endpoint.
#[derive(Clone, Default)]
pub struct Matching {
    /// Posted receives, each with its number, and unexpected messages: untagged and tagged ones.
    posted: [VecDeque<(u64, Posted)>; 2],
    unexpected: [VecDeque<Message>; 2],
    /// Receives posted so far.
    receives: u64,
}

/// How a probe looks.
pub struct Probe {
    pub context: Context,
    pub source: Option<Rank>,
    pub tag: u64,
    pub ignore: u64,
    pub claim: bool,
    pub discard: bool,
}

impl Matching {
    /// A message becomes visible.
    ///
    /// # Errors
    /// When its content cannot be read; it has not become visible then.
    pub fn arrive(
        &mut self,
        e: Envelope,
        content: &(impl Content + ?Sized),
    ) -> io::Result<Option<Completion>> {
        let posted = &mut self.posted[usize::from(e.tagged)];
        let Some(i) = posted.iter().position(|(_, p)| p.takes(&e)) else {
            let mut bytes = Vec::with_capacity(e.len);
            // SAFETY: the capacity is `e.len`, all of which is written before it counts.
            unsafe {
                content.copy_to(bytes.as_mut_ptr(), e.len)?;
                bytes.set_len(e.len);
            }
            let message = Message { envelope: e, content: bytes, claimed: None };
            self.unexpected[usize::from(e.tagged)].push_back(message);
            return Ok(None);
        };
        let receive = &mut posted[i].1;
        let completion = fill(receive, &e, content)?;
        if receive.multi.is_none() || completion.last_of_multi {
            posted.remove(i);
        }
        Ok(Some(completion))
    }

    /// A receive is posted. Messages that came before it may complete it at once.
    pub fn post(&mut self, mut p: Posted, mut done: impl FnMut(Completion)) {
        let unexpected = &mut self.unexpected[usize::from(p.tagged)];
        while let Some(i) =
            unexpected.iter().position(|m| m.claimed.is_none() && p.takes(&m.envelope))
        {
            let m = unexpected.remove(i).expect("just found");
            let completion = fill_kept(&mut p, &m.envelope, &m.content);
            let over = p.multi.is_none() || completion.last_of_multi;
            done(completion);
            if over {
                return;
            }
        }
        self.receives += 1;
        self.posted[usize::from(p.tagged)].push_back((self.receives, p));
    }

    /// Where the content of a message goes that will be the next one of its source. `None`: that
    /// depends on what others send, or on what the program does.
    pub fn place_of(&self, e: &Envelope) -> Option<Place> {
        let mut posted = self.posted[usize::from(e.tagged)].iter();
        let (receive, p) = posted.find(|(_, p)| p.takes(e))?;
        let settled = p.source.is_some() && p.multi.is_none();
        settled.then(|| Place { receive: *receive, buffer: p.buffer, len: e.len.min(p.len) })
    }

    /// Receives the message that a probe has claimed for `p.context`; with `discard` it is thrown
    /// away.
    pub fn receive_claimed(&mut self, mut p: Posted, discard: bool) -> Option<Completion> {
        let unexpected = &mut self.unexpected[usize::from(p.tagged)];
        let i = unexpected.iter().position(|m| m.claimed == Some(p.context))?;
        let m = unexpected.remove(i).expect("just found");
        if discard {
            p.len = 0;
            let e = Envelope { len: 0, ..m.envelope };
            return Some(fill_kept(&mut p, &e, &[]));
        }
        Some(fill_kept(&mut p, &m.envelope, &m.content))
    }

    /// Looks for a tagged message without receiving it.
    pub fn probe(&mut self, probe: &Probe) -> Completion {
        let unexpected = &mut self.unexpected[1];
        let found = unexpected.iter_mut().position(|m| {
            m.claimed.is_none() && matches(probe.source, probe.tag, probe.ignore, &m.envelope)
        });
        let mut completion = Completion {
            context: probe.context,
            outcome: Outcome::NotFound,
            tagged: true,
            tag: probe.tag,
            data: None,
            len: 0,
            buffer: std::ptr::null_mut(),
            last_of_multi: false,
            report: true,
        };
        let Some(i) = found else { return completion };
        let m = &mut unexpected[i];
        completion.outcome = Outcome::Found;
        completion.tag = m.envelope.tag;
        completion.data = m.envelope.data;
        completion.len = m.envelope.len;
        if probe.claim {
            m.claimed = Some(probe.context);
        } else if probe.discard {
            unexpected.remove(i);
        }
        completion
    }

    /// Takes back a posted receive, if it is still there.
    pub fn cancel(&mut self, context: Context) -> Option<Completion> {
        for posted in &mut self.posted {
            if let Some(i) = posted.iter().position(|(_, p)| p.context == context) {
                let (_, p) = posted.remove(i).expect("just found");
                return Some(Completion {
                    context,
                    outcome: Outcome::Canceled,
                    tagged: p.tagged,
                    tag: p.tag,
                    data: None,
                    len: 0,
                    buffer: p.buffer,
                    last_of_multi: false,
                    report: true,
                });
            }
        }
        None
    }

    /// An endpoint closes: its receives are gone.
    pub fn forget_posted(&mut self) {
        self.posted.iter_mut().for_each(VecDeque::clear);
    }
}

/// Receives a message that is kept here: reading it cannot fail.
fn fill_kept(p: &mut Posted, e: &Envelope, content: &[u8]) -> Completion {
    fill(p, e, content).expect("as long as its envelope says")
}

fn fill(p: &mut Posted, e: &Envelope, content: &(impl Content + ?Sized)) -> io::Result<Completion> {
    let buffer = p.buffer.wrapping_add(p.used);
    let room = p.len - p.used;
    let len = e.len.min(room);
    if len > 0 {
        // SAFETY: the MPI library gave a buffer of `p.len` bytes, of which `p.used` are taken.
        unsafe { content.copy_to(buffer, len)? };
    }
    let mut last_of_multi = false;
    if let Some(least) = p.multi {
        // The next message starts at a multiple of 8, as the first does.
        p.used = (p.used + len).next_multiple_of(8).min(p.len);
        last_of_multi = p.len - p.used < least.max(1);
    }
    let over = e.len - len;
    Ok(Completion {
        context: p.context,
        outcome: if over > 0 { Outcome::Truncated { over } } else { Outcome::Received },
        tagged: e.tagged,
        tag: e.tag,
        data: e.data,
        len,
        buffer,
        last_of_multi,
        report: p.report,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(context: Context, buffer: &mut [u8], source: Option<Rank>, tag: u64) -> Posted {
        Posted {
            context,
            buffer: buffer.as_mut_ptr(),
            len: buffer.len(),
            source,
            tagged: true,
            tag,
            ignore: 0,
            multi: None,
            used: 0,
            report: true,
        }
    }

    fn envelope(source: Rank, tag: u64, len: usize) -> Envelope {
        Envelope { source, tagged: true, tag, data: Some(9), len }
    }

    fn post(m: &mut Matching, p: Posted) -> Vec<Completion> {
        let mut out = Vec::new();
        m.post(p, |c| out.push(c));
        out
    }

    #[test]
    fn receives_match_in_order_of_posting_and_messages_in_order_of_arrival() {
        let mut m = Matching::default();
        let mut a = [0u8; 4];
        let mut b = [0u8; 4];
        assert!(post(&mut m, receive(1, &mut a, None, 5)).is_empty());
        assert!(post(&mut m, receive(2, &mut b, Some(Rank(3)), 5)).is_empty());
        let first = m.arrive(envelope(Rank(3), 5, 4), b"abcd".as_slice()).unwrap().unwrap();
        assert_eq!((first.context, first.outcome, first.data), (1, Outcome::Received, Some(9)));
        assert!(m.arrive(envelope(Rank(2), 5, 4), b"2222".as_slice()).unwrap().is_none());
        let second = m.arrive(envelope(Rank(3), 5, 4), b"efgh".as_slice()).unwrap().unwrap();
        assert_eq!(second.context, 2);
        assert_eq!((&a, &b), (b"abcd", b"efgh"));
        assert!(m.arrive(envelope(Rank(2), 5, 2), b"yy".as_slice()).unwrap().is_none());
        let got = post(&mut m, receive(3, &mut a, None, 5));
        assert_eq!((got[0].context, &a), (3, b"2222"));
    }

    #[test]
    fn a_long_message_is_truncated_and_the_rest_of_the_buffer_is_safe() {
        let mut m = Matching::default();
        let mut a = [0u8; 3];
        post(&mut m, receive(1, &mut a[..2], None, 5));
        let c = m.arrive(envelope(Rank(0), 5, 3), b"xyz".as_slice()).unwrap().unwrap();
        assert_eq!((c.outcome, c.len, &a), (Outcome::Truncated { over: 1 }, 2, b"xy\0"));
    }

    #[test]
    fn a_claimed_message_is_for_its_claimer_only() {
        let mut m = Matching::default();
        m.arrive(envelope(Rank(1), 7, 2), b"hi".as_slice()).unwrap();
        let look = |context, claim| Probe {
            context,
            source: None,
            tag: 7,
            ignore: 0,
            claim,
            discard: false,
        };
        assert_eq!(m.probe(&look(5, false)).outcome, Outcome::Found);
        assert_eq!(m.probe(&look(5, true)).outcome, Outcome::Found);
        assert_eq!(m.probe(&look(6, false)).outcome, Outcome::NotFound);
        let mut a = [0u8; 2];
        assert!(post(&mut m, receive(8, &mut a, None, 7)).is_empty());
        let c = m.receive_claimed(receive(5, &mut a, None, 0), false).unwrap();
        assert_eq!((c.outcome, c.len, &a), (Outcome::Received, 2, b"hi"));
        assert_eq!(m.cancel(8).unwrap().outcome, Outcome::Canceled);
        assert!(m.cancel(8).is_none());
    }

    #[test]
    fn one_buffer_takes_many_messages_until_too_little_is_left() {
        let mut m = Matching::default();
        let mut a = [0u8; 32];
        let p = Posted { tagged: false, multi: Some(12), ..receive(1, &mut a, None, 0) };
        assert!(post(&mut m, p).is_empty());
        let e = |len| Envelope { source: Rank(0), tagged: false, tag: 0, data: None, len };
        let c = m.arrive(e(3), b"abc".as_slice()).unwrap().unwrap();
        assert!(!c.last_of_multi && c.buffer == a.as_mut_ptr());
        let c = m.arrive(e(10), b"0123456789".as_slice()).unwrap().unwrap();
        assert!(c.last_of_multi && c.buffer == a.as_mut_ptr().wrapping_add(8));
        assert!(m.arrive(e(1), b"z".as_slice()).unwrap().is_none());
        assert_eq!(&a[..18], b"abc\x00\x00\x00\x00\x000123456789");
    }

    #[test]
    fn a_place_is_settled_only_where_no_other_source_can_send_to_it() {
        let mut m = Matching::default();
        let mut a = [0u8; 8];
        let mut b = [0u8; 8];
        let mut c = [0u8; 8];
        post(&mut m, receive(1, &mut a, None, 4));
        post(&mut m, receive(2, &mut b, Some(Rank(3)), 5));
        post(&mut m, receive(3, &mut c, Some(Rank(3)), 5));
        let multi =
            Posted { tagged: false, multi: Some(1), ..receive(4, &mut a, Some(Rank(3)), 0) };
        post(&mut m, multi);
        assert_eq!(m.place_of(&envelope(Rank(3), 4, 4)), None, "any source");
        assert_eq!(m.place_of(&envelope(Rank(2), 5, 4)), None, "no receive");
        assert_eq!(m.place_of(&Envelope { tagged: false, ..envelope(Rank(3), 0, 4) }), None);
        let place = m.place_of(&envelope(Rank(3), 5, 9)).unwrap();
        assert_eq!((place.buffer, place.len), (b.as_mut_ptr(), 8), "the first one, and no more");
        m.cancel(2);
        let next = m.place_of(&envelope(Rank(3), 5, 4)).unwrap();
        assert_eq!((next.buffer, next.len), (c.as_mut_ptr(), 4));
        assert_ne!(next.receive, place.receive);
    }
}
