//! Bytes of a region are flipped, anywhere. A receiver that lived before, and one that starts from
//! the first message, then see the right messages, or fewer and an error; never another message.
//! What is not in any check is payload of more than 24 bytes: there just those bytes are wrong.
//! Nothing panics or goes on for ever; a writer that opens the region again says what is wrong, or
//! goes on.

mod common;

use common::{layout, mix, region, writer, Sample, BYTES, RANKS, SIZES};
use eyrie_ledger::heap::Heap;
use eyrie_ledger::memory::{Memory, View};
use eyrie_ledger::observed::ObservedReader;
use eyrie_ledger::order::OrderReader;
use eyrie_ledger::reader::Reader;
use eyrie_ledger::writer::Writer;
use eyrie_ledger::{region as agent, INLINE};
use proptest::prelude::*;

const RECORDS: u64 = 100;

/// A region with messages to all ranks, an order and what was observed.
fn filled(seed: u64, sent: u64) -> Heap {
    let memory = region(BYTES);
    let mut writer = writer(&memory);
    for ssn in 1..=sent {
        for to in 0..RANKS {
            writer.append(&Sample::new(seed, to, ssn).message(), || ()).unwrap();
        }
    }
    for n in 1..=RECORDS {
        writer.record(n * 3, &shown(n)).unwrap();
        writer.observe(n * 3, &part(n)).unwrap();
    }
    memory
}

fn shown(n: u64) -> Vec<(u32, u32)> {
    (0..mix(n, 0) % 3).map(|k| ((mix(n, k) % u64::from(RANKS)) as u32, 1 + n as u32 % 2)).collect()
}

fn part(n: u64) -> Vec<u8> {
    (0..1 + mix(n, 1) % 300).map(|k| mix(n, k) as u8).collect()
}

/// Where what was written ends.
fn used(memory: &Heap) -> u64 {
    (0..memory.bytes() / 8).rev().find(|n| memory.load(n * 8) != 0).unwrap_or(0) * 8 + 8
}

/// Reads a channel to its end, or to an error. Payload that is not in the check may differ where it
/// was flipped, and only there.
fn receive(seed: u64, sent: u64, reader: &mut Reader<&Heap>, to: u32, flipped: usize) {
    while let Ok(Some(entry)) = reader.look() {
        let sample = Sample::new(seed, to, entry.ssn);
        assert_eq!((entry.envelope, entry.clock), (sample.envelope, sample.clock));
        assert_eq!(entry.len, sample.payload.len() as u64);
        let Ok(whole) = reader.filled(&entry) else { return };
        assert_eq!(whole, entry.len, "it was whole before");
        let mut payload = vec![0; sample.payload.len()];
        reader.read(&entry, 0, &mut payload);
        let wrong = payload.iter().zip(&sample.payload).filter(|(a, b)| a != b).count();
        let checked = payload.len() <= INLINE && entry.envelope.more.is_none();
        assert!(wrong <= if checked { 0 } else { flipped }, "message {} to {to}", entry.ssn);
        reader.pass(&entry);
    }
    // Zeros look like a message that was not sent yet: the newest number says that there is one.
    assert!(reader.count() == sent || reader.look_for_lost().is_err() || reader.count() == 0);
}

/// All that can be read of a region with wrong bytes in it.
fn look_at_all(seed: u64, sent: u64, memory: &Heap, live: &mut [Reader<&Heap>], flipped: usize) {
    for (to, live) in (0..).zip(live) {
        receive(seed, sent, live, to, flipped);
        receive(seed, sent, &mut Reader::new(memory, layout(), to, 0), to, flipped);
    }
    if let Ok(mut order) = OrderReader::open(memory, layout(), 0) {
        let mut n = 0;
        while let Ok(Some(record)) = order.next() {
            n += 1;
            assert_eq!((record.clock, record.shown), (n * 3, shown(n).as_slice()));
        }
    }
    if let Ok(mut observed) = ObservedReader::open(memory, layout(), 0) {
        let mut n = 0;
        while let Ok(Some(found)) = observed.next() {
            n += 1;
            assert_eq!((found.clock, found.bytes), (n * 3, part(n).as_slice()));
        }
    }
}

/// What the agent would do then: another incarnation.
fn open_again(seed: u64, sent: u64, memory: &Heap, image: u64) {
    agent::prepare(memory, &layout(), 2, BYTES);
    let Ok(mut writer) = Writer::open(memory, layout(), |_| image, SIZES) else { return };
    for ssn in image + 1..sent + 9 {
        for to in 0..RANKS {
            if writer.append(&Sample::new(seed, to, ssn).message(), || ()).is_err() {
                return;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes_never_make_another_message(
        seed in 0..8u64,
        consumed in 0..60u64,
        flips in prop::collection::vec((any::<u64>(), 1..=255u8), 1..4),
        heads: bool,
        image in 0..60u64,
    ) {
        let memory = filled(seed, 60);
        let sent = 60;
        let mut live: Vec<_> =
            (0..RANKS).map(|to| Reader::new(&memory, layout(), to, consumed)).collect();
        for reader in &mut live {
            reader.look().unwrap();
        }
        let end = used(&memory);
        for (at, bits) in &flips {
            // Half of the cases aim at lines that begin at pages: heads of extents, and tables.
            let at = if heads { at % end / 4096 * 4096 + at % 128 } else { at % end };
            memory.flip(at, *bits);
        }
        look_at_all(seed, sent, &memory, &mut live, flips.len());
        open_again(seed, sent, &memory, image);
    }
}

/// Whole words of nonsense and of zeros, over everything but long payload: each word by itself.
#[test]
fn no_word_of_a_region_can_be_made_another_message() {
    let seed = 3;
    let sent = 10;
    let memory = filled(seed, sent);
    let used = used(&memory);
    let step = if std::env::var_os("EYRIE_TEST_MORE").is_some() { 8 } else { 8 * 61 };
    for at in (0..used).step_by(step) {
        for word in [0, u64::MAX, memory.load(at) + 1, memory.load(at) ^ 1 << (at / 8 % 64)] {
            let was = memory.load(at);
            Memory::store(&memory, at, word);
            look_at_all(seed, sent, &memory, &mut [], 8);
            Memory::store(&memory, at, was);
        }
    }
}

fn cases() -> u32 {
    if std::env::var_os("EYRIE_TEST_MORE").is_some() {
        10_000
    } else {
        150
    }
}
