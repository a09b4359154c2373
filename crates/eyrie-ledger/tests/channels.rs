//! A job of 128 ranks in one memory, long chains that are released as they are read, regions that
//! are full, and what a rank that sends something else is told.

mod common;

use common::{layout, mix, region, writer, Sample, BYTES, SIZES};
use eyrie_ledger::error::LedgerError;
use eyrie_ledger::heap::Heap;
use eyrie_ledger::layout::{Channel, Layout};
use eyrie_ledger::memory::View;
use eyrie_ledger::order::OrderReader;
use eyrie_ledger::reader::Reader;
use eyrie_ledger::writer::{Message, Sent, Writer};
use eyrie_ledger::{region as agent, Envelope};

fn message(to: u32, payload: &[u8]) -> Message<'_> {
    Message { to, envelope: Envelope::default(), clock: 0, payload }
}

#[test]
fn each_of_128_ranks_hears_from_each() {
    const N: u32 = 128;
    let bytes = 2 << 20;
    let layouts: Vec<_> = (0..N).map(|rank| Layout::new(rank, N, bytes)).collect();
    let memories: Vec<_> = (0..N).map(|_| Heap::new(bytes)).collect();
    for (memory, layout) in memories.iter().zip(&layouts) {
        agent::prepare(memory, layout, 1, bytes);
        let mut writer = Writer::open(memory, *layout, |_| 0, SIZES).unwrap();
        for ssn in 1..=5u64 {
            for to in 0..N {
                let payload = (mix(u64::from(layout.rank()), u64::from(to)) + ssn).to_le_bytes();
                writer.append(&message(to, &payload), || ()).unwrap();
            }
        }
        assert!(writer.bytes() <= u64::from(N) * 4096, "an extent of 4 KiB for each");
    }
    for to in 0..N {
        for (memory, layout) in memories.iter().zip(&layouts) {
            let mut reader = Reader::new(memory, *layout, to, 0);
            for ssn in 1..=5u64 {
                let entry = reader.look().unwrap().unwrap();
                let mut payload = [0; 8];
                reader.read(&entry, 0, &mut payload);
                let expected = mix(u64::from(layout.rank()), u64::from(to)) + ssn;
                assert_eq!(u64::from_le_bytes(payload), expected);
                reader.pass(&entry);
            }
            assert!(reader.look().unwrap().is_none());
        }
    }
}

/// The memory goes round: what is released as it is read needs no more than a few extents.
#[test]
fn a_stream_that_is_released_stays_in_its_memory() {
    let memory = region(BYTES);
    let mut writer = writer(&memory);
    let mut reader = Reader::new(&memory, layout(), 1, 0);
    for ssn in 1..=40_000u64 {
        let sample = Sample::new(5, 1, ssn);
        writer.append(&sample.message(), || ()).unwrap();
        let entry = reader.look().unwrap().unwrap();
        assert_eq!(sample.difference(&reader, &entry), None);
        reader.pass(&entry);
        agent::release(&memory, &layout(), Channel::Rank(1), ssn.saturating_sub(40));
    }
    assert!(writer.bytes() < 4 << 20, "{} bytes for 40 messages that are kept", writer.bytes());
}

/// A receiver has read all of an extent and has not looked since: the extent stays until something
/// behind it is released.
#[test]
fn an_extent_that_a_receiver_stands_in_is_not_used_again() {
    let memory = region(BYTES);
    let mut writer = writer(&memory);
    let mut reader = Reader::new(&memory, layout(), 1, 0);
    // 62 lines are an extent of 4 KiB.
    for ssn in 1..=62u64 {
        writer.append(&message(1, &ssn.to_le_bytes()), || ()).unwrap();
        let entry = reader.look().unwrap().unwrap();
        reader.pass(&entry);
    }
    agent::release(&memory, &layout(), Channel::Rank(1), 62);
    writer.append(&message(1, b"in the next"), || ()).unwrap();
    for _ in 0..100 {
        writer.append(&message(2, b"to another one"), || ()).unwrap();
    }
    let entry = reader.look().unwrap().unwrap();
    assert_eq!((entry.ssn, entry.len), (63, 11));
    reader.pass(&entry);
    let used = writer.bytes();
    agent::release(&memory, &layout(), Channel::Rank(1), 63);
    for _ in 0..62 {
        writer.append(&message(2, b"to another one"), || ()).unwrap();
    }
    assert_eq!(writer.bytes(), used, "now it was used");
    assert!(reader.look().unwrap().is_none());
}

/// The same where the order is read, and its extent is full.
#[test]
fn an_extent_that_the_order_is_read_from_is_not_used_again() {
    let memory = region(BYTES);
    let mut writer = writer(&memory);
    let mut reader = OrderReader::open(&memory, layout(), 0).unwrap();
    let last = 4096 - 64;
    for clock in 1..=last {
        writer.record(clock, &[(0, 1)]).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().clock, clock);
    }
    agent::release(&memory, &layout(), Channel::Order, last);
    writer.record(last + 1, &[(0, 1)]).unwrap();
    for _ in 0..100 {
        writer.append(&message(2, b"to another one"), || ()).unwrap();
    }
    assert_eq!(reader.next().unwrap().unwrap().clock, last + 1);
    let used = writer.bytes();
    agent::release(&memory, &layout(), Channel::Order, last + 1);
    for _ in 0..62 {
        writer.append(&message(2, b"to another one"), || ()).unwrap();
    }
    assert_eq!(writer.bytes(), used, "now it was used");
    assert_eq!(reader.next().unwrap(), None);
    assert_eq!(
        OrderReader::open(&memory, layout(), last).unwrap().next().unwrap().unwrap().clock,
        last + 1
    );
}

#[test]
fn a_full_region_says_so_and_goes_on_when_there_is_room() {
    let memory = region(64 << 10);
    let mut writer = writer(&memory);
    let payload = [7; 1000];
    let mut sent = 0;
    let error = loop {
        match writer.append(&message(1, &payload), || ()) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    let LedgerError::Full { rank: 0, bytes, granted: 65_536 } = error else { panic!("{error}") };
    assert_eq!(agent::wanted(&memory, &layout()), bytes);
    assert_eq!(writer.append(&message(1, &payload), || ()), Err(error), "as long as it is so");
    assert!(writer.append(&message(2, &payload), || ()).is_err(), "to another rank, too");
    // Room by release.
    agent::release(&memory, &layout(), Channel::Rank(1), sent);
    assert_eq!(writer.append(&message(1, &payload), || ()), Ok(Sent::New));
    assert_eq!(agent::wanted(&memory, &layout()), 0);
    // Room by a grant.
    while writer.append(&message(1, &payload), || ()).is_ok() {}
    agent::grant(&memory, &layout(), 1 << 20);
    assert_eq!(writer.append(&message(1, &payload), || ()), Ok(Sent::New));
    let mut reader = Reader::new(&memory, layout(), 1, writer.sent(1) - 1);
    assert!(reader.look().unwrap().is_some());
    let long = vec![1; BYTES as usize];
    let error = writer.append(&message(1, &long), || ()).unwrap_err();
    assert!(matches!(error, LedgerError::TooLong { .. }), "{error}");
}

#[test]
fn a_large_message_is_seen_growing_and_woken_for_twice() {
    let memory = region(BYTES);
    let mut writer = writer(&memory);
    let reader = std::cell::RefCell::new(Reader::new(&memory, layout(), 1, 0));
    let payload: Vec<u8> = (0..5 << 20).map(|n: u32| mix(u64::from(n), 0) as u8).collect();
    let mut seen = Vec::new();
    let look = || {
        let mut reader = reader.borrow_mut();
        let entry = reader.look().unwrap().unwrap();
        seen.push(reader.filled(&entry).unwrap());
    };
    assert_eq!(writer.append(&message(1, &payload), look), Ok(Sent::New));
    assert_eq!(seen, [0, payload.len() as u64]);
    let mut reader = reader.into_inner();
    let entry = reader.look().unwrap().unwrap();
    let mut read = vec![0; payload.len()];
    reader.read(&entry, 0, &mut read);
    assert_eq!(read, payload);
    reader.pass(&entry);
    assert!(reader.look().unwrap().is_none());
}

/// No message is lost or seen half when the system has no memory for the rest of it.
#[test]
fn a_large_message_goes_on_when_there_is_memory_again() {
    let memory = region(BYTES);
    let mut writer = writer(&memory);
    let payload: Vec<u8> = (0..5 << 20).map(|n: u32| mix(u64::from(n), 0) as u8).collect();
    let error = writer.append(&message(1, &payload), || memory.set_full(true)).unwrap_err();
    assert!(matches!(error, LedgerError::NoMemory { rank: 0, .. }), "{error}");
    let mut reader = Reader::new(&memory, layout(), 1, 0);
    let entry = reader.look().unwrap().unwrap();
    assert!(reader.filled(&entry).unwrap() < entry.len);
    assert_eq!(writer.append(&message(1, &payload), || ()), Err(error));
    memory.set_full(false);
    assert_eq!(writer.append(&message(1, &payload), || ()), Ok(Sent::Again));
    assert_eq!(reader.filled(&entry), Ok(entry.len));
    assert_eq!(writer.append(&message(1, b"next"), || ()), Ok(Sent::New));
    reader.pass(&entry);
    assert_eq!(reader.look().unwrap().unwrap().len, 4);
}

#[test]
fn who_sends_something_else_after_its_death_is_told_what_differs() {
    let memory = region(BYTES);
    let payload = [1; 5000];
    writer(&memory).append(&message(1, &payload), || ()).unwrap();
    let mut other = payload;
    other[4999] = 2;
    let mut later = message(1, &payload);
    later.clock = 9;
    let mut tagged = message(1, &payload);
    tagged.envelope.words[0] = 8;
    let mut other_kind = message(1, &payload);
    other_kind.envelope.kind += 1;
    for (message, expected) in [
        (message(1, &payload[1..]), "tag 0x0 and 4999 bytes"),
        (tagged, "tag 0x8 and 5000 bytes"),
        (other_kind, "tag 0x0 and 5000 bytes as another kind of message"),
    ] {
        let error = writer(&memory).append(&message, || ()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "message 1 from rank 0 to rank 1 was sent with tag 0x0 and 5000 bytes, and is sent \
                 again with {expected}"
            )
        );
    }
    assert_eq!(writer(&memory).append(&later, || ()), Ok(Sent::Again));
    assert_eq!(writer(&memory).append(&message(1, &other), || ()), Ok(Sent::Differs));
    assert_eq!(writer(&memory).append(&message(1, &payload), || ()), Ok(Sent::Again));
}

/// From an image that counts more than is there a rank cannot go on.
#[test]
fn a_ledger_that_ends_before_what_an_image_has_is_an_error() {
    let memory = region(BYTES);
    let mut w = writer(&memory);
    (1..=3).for_each(|_| assert_eq!(w.append(&message(1, b"x"), || ()), Ok(Sent::New)));
    let open = |sent: u64| Writer::open(&memory, layout(), |to| [0, sent, 0][to as usize], SIZES);
    assert!(open(3).is_ok());
    let error = open(4).err().unwrap().to_string();
    assert!(error.contains("the next one is missing"), "{error}");
}

/// A region whose message 18 is nonsense: the sentence that users read.
#[test]
fn a_damaged_ledger_names_its_rank_and_the_last_sound_message() {
    let memory = region(BYTES);
    let mut w = writer(&memory);
    for _ in 0..20 {
        w.append(&message(1, b"sound"), || ()).unwrap();
    }
    // Message n lies in line n of the first extent.
    memory.flip(layout().extents() + 18 * 64 + 41, 1);
    let mut reader = Reader::new(&memory, layout(), 1, 0);
    for _ in 0..17 {
        let entry = reader.look().unwrap().unwrap();
        reader.pass(&entry);
    }
    let error = reader.look().unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 0's ledger is damaged behind message 17 to rank 1 (its check is wrong)"
    );
    assert_eq!(reader.look().unwrap_err(), error, "and stays so");
    let again = Writer::open(&memory, layout(), |_| 0, SIZES).unwrap_err();
    assert_eq!(again, error);
    // Zeros are found by the newest number.
    memory.flip(layout().extents() + 18 * 64 + 41, 1);
    let at = layout().extents() + 18 * 64;
    let word = memory.load(at);
    (0..8).for_each(|n| memory.flip(at + n, (word >> (8 * n)) as u8));
    assert!(reader.look().unwrap().is_none());
    let error = reader.look_for_lost().unwrap_err();
    assert!(error.to_string().contains("behind message 17 to rank 1"), "{error}");
}

#[test]
fn what_was_released_cannot_be_asked_for() {
    let memory = region(BYTES);
    let mut w = writer(&memory);
    for _ in 0..500 {
        w.append(&message(1, &[3; 300]), || ()).unwrap();
    }
    agent::release(&memory, &layout(), Channel::Rank(1), 400);
    for _ in 0..1000 {
        w.append(&message(1, &[3; 300]), || ()).unwrap();
    }
    assert!(Reader::new(&memory, layout(), 1, 400).look().unwrap().is_some());
    let error = Reader::new(&memory, layout(), 1, 3).look().unwrap_err();
    assert!(matches!(error, LedgerError::Gone { wanted: 4, .. }), "{error}");
    // A sender that starts from an old image passes over it.
    let mut w = Writer::open(&memory, layout(), |to| [0, 3, 0][to as usize], SIZES).unwrap();
    assert_eq!(w.append(&message(1, &[3; 300]), || ()), Ok(Sent::Released));
    let sent: Vec<_> =
        (5..=1500).map(|_| w.append(&message(1, &[3; 300]), || ()).unwrap()).collect();
    assert!(sent.is_sorted_by_key(|sent| *sent == Sent::Again), "released, then again: {sent:?}");
    assert_eq!(w.append(&message(1, &[4; 30]), || ()), Ok(Sent::New));
}

/// What usual determinants cost, and that unusual ones survive.
#[test]
fn determinants_have_one_to_four_bytes() {
    let memory = Heap::new(BYTES);
    let layout = Layout::new(0, 200, BYTES);
    agent::prepare(&memory, &layout, 1, BYTES);
    let mut writer = Writer::open(&memory, layout, |_| 0, SIZES).unwrap();
    let all: Vec<_> = (0..200).map(|channel| (channel, channel * 7 + 1)).collect();
    type Case<'a> = (u64, &'a [(u32, u32)], u64);
    let records: [Case; 9] = [
        (1, &[(0, 1)], 1),
        (40, &[(0, 1)], 1),
        (41, &[(3, 1)], 2),
        (42, &[(3, 1)], 1),
        (200, &[(3, 1)], 2),
        (201, &[(3, 2), (4, 1)], 4),
        (202, &[], 2),
        (203, &[(199, 1)], 3),
        (1 << 40, &all, 6 + 31 + 169 * 2 + 199 + 181),
    ];
    let published = layout.extents() + 56;
    let length = || memory.load(published) as u32;
    let mut before = 0;
    for (clock, shown, most) in records {
        writer.record(clock, shown).unwrap();
        let bytes = u64::from(length() - before);
        assert!(bytes <= most, "{bytes} bytes for {shown:?} at clock {clock}");
        before = length();
    }
    let mut reader = OrderReader::open(&memory, layout, 41).unwrap();
    for (clock, shown, _) in &records[3..] {
        let record = reader.next().unwrap().unwrap();
        assert_eq!((record.clock, record.shown), (*clock, *shown));
    }
    assert_eq!(reader.next().unwrap(), None);
    assert_eq!(writer.recorded(), 1 << 40);
}
