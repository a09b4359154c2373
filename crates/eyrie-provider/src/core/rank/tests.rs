//! A rank over a path in memory, which knows no router: what is above the path knows none either.

use super::*;
use crate::core::asking::Asked;
use crate::core::matching::Outcome;
use crate::core::path::{Found, ImagePoint};
use crate::core::rma::{Kind, Region};
use eyrie_wire::page::What;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

#[test]
fn the_first_call_after_a_message_steps_aside_but_never_two_in_a_row() {
    let mut aside = Aside::default();
    let mut calls = |sends: &[bool]| -> Vec<bool> {
        let mut call = |sent: &bool| {
            if *sent {
                aside.sent();
            }
            aside.steps()
        };
        sends.iter().map(&mut call).collect()
    };
    assert_eq!(calls(&[false, true, false, false]), [false, true, false, false]);
    // A program that sends before every call still sees what comes.
    assert_eq!(calls(&[true; 5]), [true, false, true, false, true]);
}

/// A process that observes nothing, and whose time stands still.
struct Still;

impl World for Still {
    fn take_observed(&mut self, _: &mut dyn FnMut(u64, &[u8])) {}

    fn observed(&self) -> u64 {
        0
    }

    fn observed_waiting(&self) -> usize {
        0
    }

    fn observe_again(&mut self, _: Vec<u8>) {}

    fn skip_observed(&mut self, _: u64) {}

    fn signal(&mut self, _: u64, _: bool) -> Option<i32> {
        None
    }

    fn before_new(&mut self) {}

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn ticks(&self) -> u64 {
        0
    }

    fn processor_time_ns(&self) -> u64 {
        0
    }

    fn asked(&mut self, _: Asked) {}

    fn trace(&mut self, _: What, _: u64, _: u32, _: u64) {}
}

impl ImagePoint for Still {
    fn image_point(_: &mut impl Path<World = Still>) {}
}

/// The content of a message.
struct Bytes(Vec<u8>);

impl Content for Bytes {
    unsafe fn copy_to(&self, to: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller promises room for `len` bytes at `to`.
        unsafe { self.0.copy_to(to, len) }
    }
}

/// All messages to each rank, in their order.
type Messages = Rc<RefCell<Vec<Vec<(Rank, Envelope, Vec<u8>)>>>>;

/// Messages in memory. What became visible at which clock is kept, and can be followed again.
struct InMemory {
    number: Rank,
    messages: Messages,
    clock: u64,
    shown: usize,
    /// Clock, and how many messages were visible after it.
    determinants: Vec<(u64, usize)>,
    to_follow: VecDeque<(u64, usize)>,
    /// Messages that the rank has sent. One that re-executes does not send the first ones again.
    sent: u64,
    sent_before: u64,
    world: Still,
}

impl InMemory {
    fn new(number: Rank, messages: &Messages) -> InMemory {
        InMemory {
            number,
            messages: messages.clone(),
            clock: 0,
            shown: 0,
            determinants: Vec::new(),
            to_follow: VecDeque::new(),
            sent: 0,
            sent_before: 0,
            world: Still,
        }
    }

    /// The path of the rank's next process, which follows this one.
    fn again(&self) -> InMemory {
        let mut path = InMemory::new(self.number, &self.messages);
        path.to_follow = self.determinants.iter().copied().collect();
        path.sent_before = self.sent;
        path
    }

    fn show_up_to(&mut self, last: usize, show: &mut impl Show) -> Result<(), RankError> {
        let mut more = true;
        while more && self.shown < last {
            let (source, envelope, content) =
                self.messages.borrow()[self.number.index()][self.shown].clone();
            self.shown += 1;
            let arrived = Arrived { source, envelope, len: content.len() };
            more = show.show(&arrived, &Bytes(content))?;
        }
        Ok(())
    }
}

impl Path for InMemory {
    type World = Still;

    fn world(&self) -> &Still {
        &self.world
    }

    fn world_mut(&mut self) -> &mut Still {
        &mut self.world
    }

    fn number(&self) -> Rank {
        self.number
    }

    fn clock(&self) -> u64 {
        self.clock
    }

    fn rsn(&self) -> u64 {
        self.shown as u64
    }

    fn attach(&mut self) -> Result<(), RankError> {
        Ok(())
    }

    fn send(&mut self, to: Rank, envelope: Envelope, content: &[u8]) -> Result<(), RankError> {
        self.sent += 1;
        if self.sent > self.sent_before {
            self.messages.borrow_mut()[to.index()].push((self.number, envelope, content.into()));
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<Turn, RankError> {
        self.clock += 1;
        Ok(match self.to_follow.front() {
            None => Turn::New,
            Some((clock, _)) if *clock == self.clock => Turn::Again,
            Some(_) => Turn::Nothing,
        })
    }

    fn show_new(&mut self, _: bool, show: &mut impl Show) -> Result<Found, RankError> {
        let before = self.shown;
        let all = self.messages.borrow()[self.number.index()].len();
        self.show_up_to(all, show)?;
        let messages = self.shown > before;
        if messages {
            self.determinants.push((self.clock, self.shown));
        }
        Ok(Found { something: messages, messages })
    }

    fn show_again(&mut self, show: &mut impl Show) -> Result<(), RankError> {
        let (_, last) = self.to_follow.pop_front().expect("a turn to show again");
        self.show_up_to(last, show)
    }

    fn look_after(&mut self, _: Found, _: u64) -> Result<(), RankError> {
        Ok(())
    }

    fn end_progress(&mut self) {}

    fn flush(&mut self) -> Result<(), RankError> {
        Ok(())
    }

    fn store_observed(&mut self) -> Result<(), RankError> {
        Ok(())
    }

    fn settle(&mut self, _: Duration) -> Result<(), &'static str> {
        Ok(())
    }

    fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        std::iter::empty()
    }

    fn forget_connections(&mut self) {}

    fn reconnect(&mut self) -> Result<(), RankError> {
        Ok(())
    }
}

fn pair() -> (Messages, [RankCore<InMemory>; 2]) {
    let messages = Messages::default();
    messages.borrow_mut().resize(2, Vec::new());
    let ranks = [0, 1].map(|number| RankCore::new(InMemory::new(Rank(number), &messages)));
    (messages, ranks)
}

fn tagged(tag: u64) -> Envelope {
    Envelope::Tagged { tag, data: None }
}

/// Posts a receive of up to eight bytes.
fn post(rank: &mut RankCore<InMemory>, context: Context, tag: u64, buffer: &mut [u8; 8]) {
    let p = Posted {
        context,
        buffer: buffer.as_mut_ptr(),
        len: 8,
        source: None,
        tagged: true,
        tag,
        ignore: 0,
        multi: None,
        used: 0,
        report: true,
    };
    rank.post(p, |_| panic!("it has come already"));
}

/// What a progress call reports: the contexts of receives, and of requests that are over.
fn progress(rank: &mut RankCore<InMemory>) -> Vec<Context> {
    let mut contexts = Vec::new();
    rank.progress(Unread::Nothing, |event| match event {
        Event::Received(c) => {
            assert_eq!(c.outcome, Outcome::Received);
            contexts.push(c.context);
        }
        Event::Done(d) => {
            assert_eq!(d.error, 0);
            contexts.push(d.pending.context);
        }
    })
    .unwrap();
    contexts
}

#[test]
fn messages_meet_receives_in_progress_calls_only() {
    let (_, [mut a, mut b]) = pair();
    let mut first = [0; 8];
    let mut second = [0; 8];
    post(&mut b, 1, 7, &mut first);
    a.send(Rank(1), tagged(8), b"eight").unwrap();
    a.send(Rank(1), tagged(7), b"seven").unwrap();
    assert_eq!(progress(&mut b), [1]);
    let mut later = Vec::new();
    let p = Posted {
        context: 2,
        buffer: second.as_mut_ptr(),
        len: 8,
        source: Some(Rank(0)),
        tagged: true,
        tag: 8,
        ignore: 0,
        multi: None,
        used: 0,
        report: true,
    };
    b.post(p, |c| later.push((c.context, c.len)));
    assert_eq!((later, &first[..5], &second[..5]), (vec![(2, 5)], &b"seven"[..], &b"eight"[..]));
}

/// A read is answered before any later message may change what it reads.
#[test]
fn a_request_is_answered_before_later_messages_are_visible() {
    let (_, [mut a, mut b]) = pair();
    let mut window = *b"before..";
    let mut answer = [0u8; 8];
    let region = Region { base: window.as_mut_ptr() as usize, len: 8 };
    assert!(b.regions.add(1, region));
    let buffer = answer.as_mut_ptr();
    let reads = Pending { context: 1, kind: Kind::Read, report: true, buffer, len: 8 };
    let writes = Pending { context: 2, kind: Kind::Write, report: true, buffer, len: 0 };
    let key = 1;
    let offset = 0;
    a.request(Rank(1), reads, |request| Envelope::Read { key, offset, request, len: 8 }, &[])
        .unwrap();
    a.request(Rank(1), writes, |request| Envelope::Write { key, offset, request }, b"after...")
        .unwrap();
    assert!(progress(&mut b).is_empty());
    assert_eq!((window, b.path.rsn()), (*b"before..", 1), "the write is not visible yet");
    // An answer is a message that makes no call step aside: it is sent in one.
    assert!(progress(&mut b).is_empty());
    assert_eq!((window, b.path.rsn()), (*b"after...", 2));
    assert!(progress(&mut a).is_empty(), "the call after a request shows nothing");
    assert_eq!((progress(&mut a), answer), (vec![1, 2], *b"before.."));
}

/// A rank that follows its determinants is told the same at the same clocks.
#[test]
fn what_was_visible_is_visible_again_at_the_same_clock() {
    let (messages, [mut a, mut b]) = pair();
    let run = |b: &mut RankCore<InMemory>, before: &mut dyn FnMut(u64)| {
        let mut buffers = [[0; 8]; 4];
        for (context, buffer) in buffers.iter_mut().enumerate() {
            post(b, context, context as u64, buffer);
        }
        let mut told = Vec::new();
        for n in 0..8 {
            before(n);
            let contexts = progress(b);
            if n == 2 {
                b.send(Rank(0), tagged(n), b"word").unwrap();
            }
            told.push((b.path.clock(), contexts));
        }
        (told, buffers)
    };
    let first = run(&mut b, &mut |n| {
        if n % 2 == 1 {
            a.send(Rank(1), tagged(n / 2), &n.to_le_bytes()).unwrap();
        }
    });
    assert_eq!(first.0.iter().filter(|(_, contexts)| !contexts.is_empty()).count(), 4);
    let mut again = RankCore::new(b.path.again());
    assert_eq!(run(&mut again, &mut |_| {}), first);
    assert!(again.path.to_follow.is_empty());
    assert_eq!(messages.borrow()[0].len(), 1, "it was sent twice");
}
