//! The writer of a region is killed at any store, again and again; each incarnation starts from
//! some image, sends again what it sent before, and goes on. Receivers that live through all of it,
//! and receivers that start from images of their own, see each message once, in order, byte for
//! byte; and the order and what was observed are those that were written.

mod common;

use common::{layout, mix, region, Sample, BYTES, RANKS, SIZES};
use eyrie_ledger::error::LedgerError;
use eyrie_ledger::figures::{self, Figures};
use eyrie_ledger::heap::Heap;
use eyrie_ledger::layout::Channel;
use eyrie_ledger::observed::ObservedReader;
use eyrie_ledger::order::{Determinant, OrderReader};
use eyrie_ledger::reader::Reader;
use eyrie_ledger::writer::{Sent, Writer};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Send so many messages to a rank.
    Send(u32, u8),
    /// Record a progress call, or several.
    Record(u8),
    Observe(u16),
    /// Images allow what a receiver has consumed to be released, but for so many messages.
    Release(u32, u8),
    /// Images allow the order to be released, but for so many records.
    ReleaseOrder(u8),
    /// The process stops after so many more stores, of which the logarithm is named.
    Die(u8, u16),
    /// A receiver starts again, so many messages before what it has consumed.
    Restart(u32, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..RANKS, 1..12u8).prop_map(|(to, n)| Step::Send(to, n)),
        2 => (1..40u8).prop_map(Step::Record),
        1 => (1..3000u16).prop_map(Step::Observe),
        2 => (0..RANKS, 0..6u8).prop_map(|(to, n)| Step::Release(to, n)),
        1 => any::<u8>().prop_map(Step::ReleaseOrder),
        2 => (0..14u8, any::<u16>()).prop_map(|(log, n)| Step::Die(log, n)),
        1 => (0..RANKS, any::<u8>()).prop_map(|(to, n)| Step::Restart(to, n)),
    ];
    prop::collection::vec(step, 1..60)
}

/// A clock, and what became visible at it.
type Shown = (u64, Vec<(u32, u32)>);

struct World<'a> {
    seed: u64,
    memory: &'a Heap,
    writer: Writer<&'a Heap>,
    incarnation: u32,
    readers: Vec<Reader<&'a Heap>>,
    sent: Vec<u64>,
    released: Vec<u64>,
    records: Vec<Shown>,
    order_released: u64,
    observed: Vec<u8>,
}

impl<'a> World<'a> {
    fn new(seed: u64, memory: &'a Heap) -> World<'a> {
        World {
            seed,
            memory,
            writer: Writer::open(memory, layout(), |_| 0, SIZES).unwrap(),
            incarnation: 1,
            readers: (0..RANKS).map(|to| Reader::new(memory, layout(), to, 0)).collect(),
            sent: vec![0; RANKS as usize],
            released: vec![0; RANKS as usize],
            records: Vec::new(),
            order_released: 0,
            observed: Vec::new(),
        }
    }

    fn step(&mut self, number: usize, step: &Step) {
        match *step {
            Step::Send(to, n) => (0..n).for_each(|_| self.send(to)),
            Step::Record(n) => (0..n).for_each(|k| self.record(mix(number as u64, u64::from(k)))),
            Step::Observe(n) => {
                let part: Vec<u8> =
                    (0..n).map(|k| mix(number as u64, u64::from(k)) as u8).collect();
                let result = self.writer.observe(number as u64, &part);
                if self.fits(result) {
                    self.observed.extend(part);
                }
            }
            Step::Release(to, but) => {
                let up_to = self.readers[to as usize].count().saturating_sub(u64::from(but));
                let released = &mut self.released[to as usize];
                *released = up_to.max(*released);
                eyrie_ledger::region::release(self.memory, &layout(), Channel::Rank(to), up_to);
            }
            Step::ReleaseOrder(but) => {
                let n = self.records.len().saturating_sub(usize::from(but));
                if let Some((clock, _)) = self.records[..n].last() {
                    self.order_released = self.order_released.max(*clock);
                    let order = Channel::Order;
                    eyrie_ledger::region::release(self.memory, &layout(), order, *clock);
                }
            }
            Step::Die(log, n) => self.memory.stop_after(u64::from(n) % (1 << log)),
            Step::Restart(to, back) => {
                let count = self.readers[to as usize].count().saturating_sub(u64::from(back));
                let count = count.max(self.released[to as usize]);
                self.readers[to as usize] = Reader::new(self.memory, layout(), to, count);
            }
        }
        if self.memory.stopped() {
            self.restart(number as u64);
        }
        for to in 0..RANKS {
            self.receive(to);
        }
        self.check_figures();
    }

    fn send(&mut self, to: u32) {
        let ssn = &mut self.sent[to as usize];
        *ssn += 1;
        let sample = Sample::new(self.seed, to, *ssn);
        match self.writer.append(&sample.message(), || ()) {
            // The process is dead: what it would do now does not count.
            _ if self.memory.stopped() => {}
            Ok(sent) => assert_eq!(sent, Sent::New),
            Err(LedgerError::Full { .. }) => *ssn -= 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn record(&mut self, n: u64) {
        let clock = self.records.last().map_or(0, |(clock, _)| *clock) + 1 + (n >> 8) % 90;
        let entry = |k| ((mix(n, k) % u64::from(RANKS)) as u32, 1 + (mix(n, k) >> 40) as u32 % 3);
        let shown: Vec<_> = (0..n % 4).map(entry).collect();
        let result = self.writer.record(clock, &shown);
        if self.fits(result) {
            self.records.push((clock, shown));
        }
    }

    /// Whether there was room.
    fn fits(&self, result: Result<(), LedgerError>) -> bool {
        match result {
            _ if self.memory.stopped() => true,
            Ok(()) => true,
            Err(LedgerError::Full { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// The process has ended; another incarnation starts from an image.
    fn restart(&mut self, n: u64) {
        self.memory.stop_after(u64::MAX);
        self.check_figures();
        // What the last incarnation believed to have recorded may not be there.
        self.check_order();
        self.check_observed();
        let image: Vec<u64> =
            (0..).zip(&self.sent).map(|(to, sent)| mix(n, to) % (sent + 1)).collect();
        self.check_receivers_are_not_ahead();
        self.incarnation += 1;
        let granted = eyrie_ledger::region::granted(self.memory, &layout());
        eyrie_ledger::region::prepare(self.memory, &layout(), self.incarnation, granted);
        // An image is taken between messages: it counts those only that are whole.
        let (there, whole): (Vec<_>, Vec<_>) = (0..RANKS).map(|to| self.count_there(to)).unzip();
        let image: Vec<u64> = image.iter().zip(&whole).map(|(i, t)| *i.min(t)).collect();
        let count = |to: u32| image[to as usize];
        self.writer = Writer::open(self.memory, layout(), count, SIZES).unwrap();
        for to in 0..RANKS {
            assert_eq!(self.writer.newest(to), there[to as usize]);
            for ssn in image[to as usize] + 1..=self.sent[to as usize] {
                let sample = Sample::new(self.seed, to, ssn);
                let sent = match self.writer.append(&sample.message(), || ()) {
                    Ok(sent) => sent,
                    Err(LedgerError::Full { .. }) => {
                        self.sent[to as usize] = ssn - 1;
                        break;
                    }
                    Err(error) => panic!("{error}"),
                };
                assert_eq!(sent == Sent::New, ssn > there[to as usize], "message {ssn} to {to}");
                assert!(sent != Sent::Released || ssn <= self.released[to as usize]);
            }
        }
        self.records.truncate(
            self.records.iter().take_while(|(clock, _)| *clock <= self.writer.recorded()).count(),
        );
        self.observed.truncate(self.writer.observed() as usize);
        self.check_figures();
    }

    /// The bytes that were sent to a rank are those of all messages up to the newest one, whenever
    /// the writer was killed, and however often it was.
    fn check_figures(&self) {
        for to in 0..RANKS {
            let Figures { newest, payload, .. } =
                figures::of(self.memory, &layout(), Channel::Rank(to));
            let sent: u64 = (1..=newest).map(|ssn| Sample::bytes(self.seed, to, ssn)).sum();
            assert_eq!(payload, sent, "bytes of {newest} messages to {to}");
        }
    }

    /// Messages of which at least the head is in the ledger, and those that are whole.
    fn count_there(&self, to: u32) -> (u64, u64) {
        let mut whole = self.readers[to as usize].count();
        let mut reader = Reader::new(self.memory, layout(), to, whole);
        while let Some(entry) = reader.look().unwrap() {
            whole += u64::from(reader.filled(&entry).unwrap() == entry.len);
            reader.pass(&entry);
        }
        (reader.count(), whole)
    }

    fn check_receivers_are_not_ahead(&self) {
        for (reader, sent) in self.readers.iter().zip(&self.sent) {
            assert!(reader.count() <= *sent);
        }
    }

    fn receive(&mut self, to: u32) {
        let reader = &mut self.readers[to as usize];
        while let Some(entry) = reader.look().unwrap() {
            assert_eq!(entry.ssn, reader.count() + 1);
            let sample = Sample::new(self.seed, to, entry.ssn);
            assert_eq!(reader.filled(&entry), Ok(entry.len), "its writer lives");
            assert_eq!(sample.difference(reader, &entry), None, "message {} to {to}", entry.ssn);
            reader.pass(&entry);
        }
        assert_eq!(reader.look_for_lost(), Ok(()));
        assert_eq!(reader.count(), self.sent[to as usize]);
    }

    /// What is in the ledger of the order is what was recorded, but for the end.
    fn check_order(&self) {
        let mut reader = OrderReader::open(self.memory, layout(), self.order_released).unwrap();
        let mut records =
            self.records.iter().skip_while(|(clock, _)| *clock <= self.order_released);
        while let Some(record) = reader.next().unwrap() {
            let (clock, shown) = records.next().expect("a record was written");
            assert_eq!(record, Determinant { clock: *clock, shown });
        }
    }

    fn check_observed(&self) {
        let mut reader = ObservedReader::open(self.memory, layout(), 0).unwrap();
        while let Some(part) = reader.next().unwrap() {
            let from = part.from as usize;
            assert_eq!(part.bytes, &self.observed[from..from + part.bytes.len()]);
        }
    }
}

fn run(seed: u64, granted: u64, steps: &[Step]) {
    let memory = region(granted);
    let mut world = World::new(seed, &memory);
    for (number, step) in steps.iter().enumerate() {
        world.step(number, step);
    }
    memory.stop_after(0);
    world.restart(seed);
    let last = (OrderReader::open(&memory, layout(), world.order_released).unwrap(), world.records);
    let (mut reader, records) = last;
    let behind = |record: &&Shown| record.0 > world.order_released;
    for (clock, shown) in records.iter().filter(behind) {
        assert_eq!(reader.next().unwrap(), Some(Determinant { clock: *clock, shown }));
    }
    assert_eq!(reader.next().unwrap(), None);
}

/// A short life with all that happens to a region, and a death at each of its stores.
#[test]
fn a_death_at_any_store_loses_nothing() {
    let life = [
        Step::Send(0, 30),
        Step::Send(1, 12),
        Step::Record(120),
        Step::Observe(2500),
        Step::Release(0, 0),
        Step::Send(0, 20),
        Step::Observe(2500),
        Step::Record(120),
        Step::ReleaseOrder(0),
        Step::Send(2, 5),
        Step::Restart(0, 2),
        Step::Release(1, 3),
        Step::Send(1, 20),
    ];
    let all = 1 << 40;
    let memory = region(BYTES);
    memory.stop_after(all);
    let mut world = World::new(1, &memory);
    life.iter().enumerate().for_each(|(number, step)| world.step(number, step));
    let stores = all - memory.stores_left();
    // Most of them are payload.
    let step = if std::env::var_os("EYRIE_TEST_MORE").is_some() { 5 } else { 97 };
    for death in (0..stores).step_by(step) {
        let memory = region(BYTES);
        let mut world = World::new(1, &memory);
        memory.stop_after(death);
        life.iter().enumerate().for_each(|(number, step)| world.step(number, step));
        world.restart(1);
        (0..RANKS).for_each(|to| world.receive(to));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn all_messages_come_once_and_in_order(seed: u64, steps in steps()) {
        run(seed, BYTES, &steps);
    }

    /// The same where memory runs out now and then.
    #[test]
    fn a_full_region_loses_nothing(seed: u64, steps in steps()) {
        run(seed, 300 << 10, &steps);
    }
}

fn cases() -> u32 {
    if std::env::var_os("EYRIE_TEST_MORE").is_some() {
        10_000
    } else {
        200
    }
}
