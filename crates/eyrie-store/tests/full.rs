//! A full disk: the image that does not fit fails and says so, the earlier images stay, and its
//! space is freed.

use eyrie_wire::{ImageId, Rank};
use std::fs;
use std::path::Path;
use std::process::Command;

use eyrie_store::{ImageInfo, Options, ReceiveError, Store};

mod common;
use common::{Process, PAGES_PER_WINDOW};

/// Memory that shares its first half with the other generations of the rank.
fn stream(rank: u32, image: u64, windows: usize) -> Vec<u8> {
    let mut process = Process::new(rank, windows * PAGES_PER_WINDOW);
    process.touch(image, windows * PAGES_PER_WINDOW / 2, 1);
    process.stream(image)
}

fn receive(store: &Store, rank: u32, image: u64, windows: usize) -> Result<(), ReceiveError> {
    let stream = stream(rank, image, windows);
    store.receive(Rank(rank), ImageId(image), ImageInfo::default(), stream.as_slice()).map(drop)
}

fn assert_holds(store: &Store, rank: u32, expected: &[(u64, usize)]) {
    let images: Vec<_> = store.images(Rank(rank)).iter().map(|i| i.image).collect();
    let numbers: Vec<_> = expected.iter().map(|(image, _)| ImageId(*image)).collect();
    assert_eq!(images, numbers);
    for &(image, windows) in expected {
        let mut out = Vec::new();
        store.send(Rank(rank), ImageId(image), &mut out).unwrap();
        assert!(out == stream(rank, image, windows), "rank {rank}, image {image}");
    }
}

/// A tmpfs of 8 MiB, unmounted at the end.
struct Small(tempfile::TempDir);

impl Small {
    /// `None` without the right to mount.
    fn mount() -> Option<Small> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs"]).arg(dir.path());
        let mounted = mount.output().is_ok_and(|out| out.status.success());
        mounted.then_some(Small(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|s| s.success()) || std::thread::panicking());
    }
}

#[test]
fn on_a_full_disk_earlier_images_stay_and_space_comes_back() {
    let Some(small) = Small::mount() else {
        println!("no right to mount a small tmpfs: only the file size limit is tested");
        return;
    };
    let store = Store::create(
        small.0.path().join("store"),
        Options { keep: 2, sync: true, ..Options::default() },
    )
    .unwrap();
    receive(&store, 0, 1, 8).unwrap();
    receive(&store, 0, 2, 8).unwrap();
    let before = store.usage().unwrap();
    let error = receive(&store, 0, 3, 40).unwrap_err();
    assert!(error.is_full(), "{error}");
    let text = error.to_string();
    for part in ["rank 0, image 3", "earlier images stay valid", "packs/", "free space"] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    assert_eq!(store.usage().unwrap(), before);
    assert_holds(&store, 0, &[(2, 8), (1, 8)]);

    // Whatever space is left, down to none: every step of a receive meets the full disk once.
    let mut newest = vec![(2, 8), (1, 8)];
    let mut stored = 0;
    let mut failed = 0;
    for image in 3..60 {
        let filler = small.0.path().join("filler");
        leave_free(&filler, (image as usize - 3) * 24 * 1024);
        match receive(&store, 0, image, 8) {
            Ok(()) => {
                stored += 1;
                newest = vec![(image, 8), newest[0]];
            }
            Err(error) => {
                assert!(error.is_full(), "{error}");
                failed += 1;
            }
        }
        fs::remove_file(&filler).unwrap();
        assert_holds(&store, 0, &newest);
    }
    assert!(stored > 5 && failed > 5, "{stored} stored, {failed} failed");
    assert!(store.verify().unwrap().damaged.is_empty());
    drop(store);
    let store = Store::open(small.0.path().join("store")).unwrap();
    assert!(store.recovery().lost.is_empty());
    assert_holds(&store, 0, &newest);
}

#[test]
fn ranks_that_fill_the_disk_together_fail_cleanly() {
    let Some(small) = Small::mount() else { return };
    let store = Store::create(
        small.0.path().join("store"),
        Options { keep: 2, sync: true, ..Options::default() },
    )
    .unwrap();
    let results: Vec<_> = std::thread::scope(|scope| {
        let run = |rank| {
            scope.spawn({
                let store = &store;
                move || (1..=6).map(|image| receive(store, rank, image, 8)).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..4).map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let errors: Vec<_> = results.iter().flatten().filter_map(|r| r.as_ref().err()).collect();
    assert!(!errors.is_empty() && errors.iter().all(|e| e.is_full()), "{errors:?}");
    for (rank, results) in (0..).zip(&results) {
        let good = (1..).zip(results).filter(|(_, r)| r.is_ok()).map(|(image, _)| (image, 8));
        let mut good: Vec<_> = good.collect();
        good.reverse();
        good.truncate(2);
        assert_holds(&store, rank, &good);
    }
    for rank in 0..4 {
        store.discard_rank(Rank(rank)).unwrap();
    }
    assert_eq!(store.usage().unwrap(), eyrie_store::Usage { on_disk: 0, live: 0 });
}

/// Fills the file system and leaves about `free` bytes.
fn leave_free(filler: &Path, free: usize) {
    let block = vec![1; 4096];
    let mut file = fs::File::create(filler).unwrap();
    let mut len = 0;
    while std::io::Write::write_all(&mut file, &block).is_ok() {
        len += block.len();
    }
    file.set_len(len.saturating_sub(free) as u64).unwrap();
}

#[test]
fn beyond_the_file_size_limit_the_image_fails_and_smaller_ones_are_stored() {
    let dir = tempfile::tempdir().unwrap();
    let exe = std::env::current_exe().unwrap();
    // A shell sets the limit and ignores the signal; the child inherits both.
    let status = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 4096; exec \"$0\" --exact limited --ignored"])
        .arg(exe)
        .env("EYRIE_STORE_DIR", dir.path().join("store"))
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
#[ignore = "the process that the test above starts with a limit of 2 MiB"]
fn limited() {
    let dir = std::env::var("EYRIE_STORE_DIR").expect("started by the test above");
    let store = Store::create(dir, Options::default()).unwrap();
    receive(&store, 0, 1, 4).unwrap();
    let before = store.usage().unwrap();
    let error = receive(&store, 0, 2, 40).unwrap_err();
    assert!(error.is_full(), "{error}");
    assert_eq!(store.usage().unwrap(), before);
    receive(&store, 0, 3, 4).unwrap();
    assert_holds(&store, 0, &[(3, 4), (1, 4)]);
}
