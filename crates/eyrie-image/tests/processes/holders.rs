//! State that the kernel does not know: the target with a holder, and its tests. And images that
//! another version of Eyrie has taken.

use super::harness::*;
use super::target::{print, take_image_with};
use eyrie_image::inspect::{summary, NamedInfo};
use eyrie_image::{Claim, Holder, Mode, Outcome};
use eyrie_image_format::named::{Named, Verdict, CONTENT_MAX};
use eyrie_image_format::stream::{Kind, RecordHeader, RECORD_HEADER_LEN};
use eyrie_image_format::{
    bytes_of, exit, fd_kind, take, Descriptor, Header, MetaHash, FILE_DESCRIPTOR, MAGIC,
};
use eyrie_store::{ImageInfo, Options, Store};
use eyrie_wire::{ImageId, Rank};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// A device with a register. No restorer knows its name.
struct Device {
    /// What the holder was asked, a digit each.
    asked: AtomicU32,
    is_optional: bool,
    /// Its descriptor, and the slot that it is to be.
    slot: (i32, u32),
}

impl Device {
    fn ask(&self, digit: u32) {
        let asked = self.asked.load(Ordering::Relaxed);
        self.asked.store(10 * asked + digit, Ordering::Relaxed);
    }
}

impl Holder for Device {
    fn before_capture(&self) -> Result<(), &'static str> {
        self.ask(1);
        Ok(())
    }

    fn claim(&self, fd: i32) -> Option<Claim> {
        (fd == self.slot.0).then_some(Claim::Slot(self.slot.1))
    }

    fn describe<'a>(&self, room: &'a mut [u8; CONTENT_MAX]) -> Option<Named<'a>> {
        self.ask(2);
        room[..3].copy_from_slice(b"abc");
        let is_optional = self.is_optional;
        Some(Named { name: "test-device", content: &room[..3], is_optional })
    }

    fn restore(&self) {
        self.ask(3);
    }

    fn resume(&self, outcome: &Outcome) {
        self.ask(match outcome {
            Outcome::Captured { .. } => 4,
            Outcome::Restored => 5,
            Outcome::Refused(_) => 6,
        });
    }
}

/// Takes an image, and says what the holder was asked. The arguments: how, whether the device is
/// optional, and which slot it is.
pub fn device(mode: Mode, args: &[String]) {
    // SAFETY: dup takes a number, and the new descriptor belongs to nothing else.
    let fd = unsafe { libc::dup(0) };
    let slot = (fd, args[1].parse().unwrap());
    let device = Device { asked: AtomicU32::new(0), is_optional: args[0] == "optional", slot };
    take_image_with(mode, &[&device]);
    print(&format!("asked {}\n", device.asked.load(Ordering::Relaxed)));
}

/// The image as a store gives it back.
fn through_a_store(image: &[u8]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { job: "holders".into(), ..Options::default() };
    let store = Store::create(dir.path().join("store"), options).unwrap();
    store.receive(Rank(7), ImageId(1), ImageInfo::default(), image).unwrap();
    let mut stored = Vec::new();
    store.send(Rank(7), ImageId(1), &mut stored).unwrap();
    assert!(stored == image, "the store gives another image");
    stored
}

fn captured(mode: &str, device: &str, slot: &str) -> (tempfile::TempDir, Vec<u8>, String) {
    let dir = make_dir();
    let mut running = start(dir.path(), &["device", mode, device, slot]);
    let image = running.read_image();
    let report = running.next_report();
    let image = image.join().unwrap();
    let said = String::from_utf8(running.wait().output).unwrap();
    (dir, image, format!("{report}; {said}"))
}

pub fn optional(mode: &str) {
    let (dir, image, said) = captured(mode, "optional", "15");
    assert!(said.starts_with("captured") && said.ends_with("asked 124\n"), "{said}");
    let content = b"abc".to_vec();
    let expected = NamedInfo { name: "test-device".into(), content, verdict: Verdict::Skip };
    let mut named = summary(&image[..]).unwrap().named;
    // The capture's own record comes behind those of holders.
    assert_eq!(named.pop().unwrap().name, "vdso");
    assert_eq!(named, [expected]);
    let ended = restore(dir.path(), &through_a_store(&image)).wait();
    assert!(ended.status.success(), "{:?} {:?}", ended.status, ended.reports);
    let note = "eyrie-restorer: the image has 'test-device', which this version of Eyrie does not \
                know: the process goes on without it";
    assert_eq!(ended.reports, [note, "restored"]);
    assert_eq!(ended.output, b"asked 1235\n");
}

pub fn required(mode: &str) {
    let (dir, image, _) = captured(mode, "required", "15");
    let image = through_a_store(&image);
    assert_eq!(summary(&image[..]).unwrap().named[0].verdict, Verdict::Refuse);
    let why = "the image has 'test-device', which this version of Eyrie does not know: restore it \
               with the version that took it";
    refused(dir.path(), &image, why);
}

/// A descriptor can be one of 16 slots.
pub fn slots() {
    let (_, image, said) = captured("async", "optional", "16");
    assert!(
        said.starts_with("refused: ") && said.contains("a slot number is 16 or more"),
        "{said}"
    );
    assert!(said.ends_with("asked 16\n"), "{said}");
    assert_eq!(image, b"");
    let (dir, image, _) = captured("async", "optional", "15");
    let other = changed(&image, |record, payload| {
        if (record.kind, record.flags) != (Kind::File, FILE_DESCRIPTOR) {
            return;
        }
        let (mut descriptor, _) = take::<Descriptor>(payload).unwrap();
        if descriptor.kind == fd_kind::SLOT && descriptor.arg == 15 {
            descriptor.arg = 16;
            payload[..size_of::<Descriptor>()].copy_from_slice(bytes_of(&descriptor));
        }
    });
    assert!(other != image);
    let ended = restore(dir.path(), &other).wait();
    assert_eq!(ended.status.code(), Some(exit::MALFORMED), "{:?}", ended.reports);
    let last = ended.reports.last().unwrap();
    assert!(last.contains("a descriptor is of an unknown kind or out of order"), "{last}");
}

/// An image of another format is refused with what to do, and anything else as no image.
pub fn other_formats() {
    let (dir, image, _) = captured("sync", "optional", "15");
    let header = |change: fn(&mut Header)| {
        changed(&image, |record, payload| {
            if record.kind == Kind::Header {
                let (mut header, _) = take::<Header>(payload).unwrap();
                change(&mut header);
                payload[..size_of::<Header>()].copy_from_slice(bytes_of(&header));
            }
        })
    };
    let why =
        "the image has format 6, and this version of Eyrie restores format 7: go on with the \
               version that took it, or start the job anew";
    let older = header(|header| header.version = 6);
    refused(dir.path(), &older, why);
    assert_eq!(summary(&older[..]).unwrap_err().to_string(), why);
    // The header of another format may be shorter or longer.
    for rest in [4, 4096] {
        let len = MAGIC.len() as u64 + 4 + rest;
        let record = RecordHeader { kind: Kind::Header, flags: 0, a: 0, b: 0, len };
        let mut older = [&record.encode()[..], &MAGIC, &6u32.to_le_bytes()].concat();
        older.resize(older.len() + rest as usize, 0);
        refused(dir.path(), &older, why);
        assert_eq!(summary(&older[..]).unwrap_err().to_string(), why);
    }
    let other = header(|header| header.magic = *b"EYRIELOG");
    let why = "this is not a sound image: its first bytes are not those of an image";
    refused(dir.path(), &other, why);
}

/// The image with its records changed, and a trailer that fits them.
fn changed(image: &[u8], mut change: impl FnMut(&RecordHeader, &mut [u8])) -> Vec<u8> {
    let mut changed = image.to_vec();
    let mut at = 0;
    let mut hash = MetaHash::new();
    loop {
        let (head, rest) = changed[at..].split_first_chunk_mut::<RECORD_HEADER_LEN>().unwrap();
        let record = RecordHeader::decode(head).unwrap();
        let payload = &mut rest[..record.len as usize];
        if record.kind == Kind::Trailer {
            payload.copy_from_slice(&hash.value().to_le_bytes());
            return changed;
        }
        change(&record, payload);
        if record.kind.is_description() {
            hash.update(head);
            hash.update(payload);
        }
        at += RECORD_HEADER_LEN + record.len as usize;
    }
}

fn refused(dir: &Path, image: &[u8], why: &str) {
    let ended = restore(dir, image).wait();
    assert_eq!(ended.status.code(), Some(exit::MALFORMED), "{:?}", ended.reports);
    assert_eq!(ended.reports, [format!("eyrie-restorer: {why}")]);
    assert_eq!(ended.output, b"");
}
