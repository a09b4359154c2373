//! The tests. Their targets are in target.rs (the walk), shapes.rs, threads.rs, within.rs,
//! registers.rs and tracked.rs.

use super::harness::*;
use super::target::Random;
use eyrie_image::inspect::summary;
use eyrie_image::processor::Level;
use eyrie_image_format::named::{PROCESSOR, VDSO};
use eyrie_image_format::stream::{Kind, RecordHeader};
use eyrie_image_format::{
    bytes_of, exit, object_kind, take, writer_exit, Context, Demand, MetaHash,
};
use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Write};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

type Test = (&'static str, fn());

pub const TESTS: &[Test] = &[
    ("walk_async_ends_as_undisturbed", || walk_survives(libc::SIGUSR1)),
    ("walk_sync_ends_as_undisturbed", || walk_survives(libc::SIGUSR2)),
    ("chain_of_generations_leaves_nothing_behind", chain),
    ("unprivileged", unprivileged),
    ("memory_of_every_shape_async", || same_sight("memory", &["async"])),
    ("memory_of_every_shape_sync", || same_sight("memory", &["sync"])),
    ("sparse_mappings_async", || sparse("async")),
    ("sparse_mappings_sync", || sparse("sync")),
    ("sparse_mappings_unprivileged", || sparse("unprivileged")),
    ("kernel_state_async", || same_sight("state", &["async"])),
    ("kernel_state_sync", || same_sight("state", &["sync"])),
    ("files_and_descriptors_async", || files("async")),
    ("files_and_descriptors_sync", || files("sync")),
    ("pipes_and_waiters_async", || same_sight("within", &["async"])),
    ("pipes_and_waiters_sync", || same_sight("within", &["sync"])),
    ("files_of_the_kernel_async", || same_sight("kernel files", &["async"])),
    ("files_of_the_kernel_sync", || same_sight("kernel files", &["sync"])),
    ("a_setting_that_this_kernel_lacks", setting_of_another_kernel),
    ("settings_async", || same_sight("settings", &["async"])),
    ("settings_sync", || same_sight("settings", &["sync"])),
    ("locks_async", || same_sight("locks", &["async"])),
    ("locks_sync", || same_sight("locks", &["sync"])),
    ("locks_that_others_have_got", locks_of_others),
    ("timers_async", || same_sight("timers", &["async"])),
    ("timers_sync", || same_sight("timers", &["sync"])),
    ("what_was_not_changed_is_inherited", inherited),
    ("log_that_is_turned_over_async", || log_turned_over("async")),
    ("log_that_is_turned_over_sync", || log_turned_over("sync")),
    ("log_that_others_have_turned_over", log_of_others),
    ("written_under_a_temporary_name", temporary_name),
    ("working_directory_that_is_gone_async", || same_sight("nowhere", &["async"])),
    ("working_directory_that_is_gone_sync", || same_sight("nowhere", &["sync"])),
    ("shared_file_deleted_meanwhile_async", || shared_file("async")),
    ("shared_file_deleted_meanwhile_sync", || shared_file("sync")),
    ("shared_file_on_a_disk", shared_disk_file),
    ("file_mapped_to_be_read_and_changed_by_write", || changed_by_write("rolls back")),
    ("file_mapped_to_be_read_and_changed_in_a_job", || changed_by_write("names stay")),
    ("file_mapped_to_be_read_that_no_holder_takes", stays_mapped),
    ("mapped_files_are_named", mapped_files),
    ("on_an_overlay_of_two_file_systems", on_an_overlay),
    ("blocked_in_read", || blocked("read")),
    ("blocked_in_poll", || blocked("poll")),
    ("blocked_in_nanosleep", || blocked("sleep")),
    ("threads_async", || threads("async", "first", false)),
    ("threads_sync", || threads("sync", "first", false)),
    ("threads_captured_by_another", || threads("async", "other", false)),
    ("threads_captured_by_another_sync", || threads("sync", "other", false)),
    ("threads_unprivileged", || threads("async", "other", true)),
    ("threads_of_three_generations", pool),
    ("threads_stand_still_until_holders_have_restored", || holder_first("first")),
    ("threads_stand_still_for_another_ones_holders", || holder_first("other")),
    ("interrupted_calls_go_on_when_their_threads_do", hooks),
    ("first_thread_that_has_ended_async", || without_the_first("async")),
    ("first_thread_that_has_ended_sync", || without_the_first("sync")),
    ("thread_that_does_not_stop_is_waited_for_once", deaf),
    ("incremental_images_are_full_ones_with_less_in_them", super::tracked::compare),
    ("holder_of_optional_state_async", || super::holders::optional("async")),
    ("holder_of_optional_state_sync", || super::holders::optional("sync")),
    ("holder_of_required_state_async", || super::holders::required("async")),
    ("holder_of_required_state_sync", || super::holders::required("sync")),
    ("slots_are_sixteen", super::holders::slots),
    ("images_of_other_formats_are_refused", super::holders::other_formats),
    ("python", python),
    ("refusals_are_named_and_harmless", refusals),
    ("excluded_memory_is_left_out", exclude),
    ("writer_is_the_agents_child_and_holds_nothing", writer),
    ("reader_that_goes_away_async", || reader_goes(libc::SIGUSR1)),
    ("reader_that_goes_away_sync", || reader_goes(libc::SIGUSR2)),
    ("truncated_streams_never_run", truncated),
    ("random_streams_are_refused", random_streams),
    ("damaged_descriptions_never_run", damaged),
    ("other_nodes_images_are_refused", other_node),
    ("a_process_that_keeps_to_its_level_demands_no_more", keeps_to_its_level),
    ("registers_beyond_the_level_are_demanded_and_kept", registers_beyond_the_level),
    ("registers_that_are_asked_for_are_demanded", asks_for_registers_beyond_the_level),
    ("another_kernels_clocks_are_found_where_the_old_ones_were_async", || other_kernel("async")),
    ("another_kernels_clocks_are_found_where_the_old_ones_were_sync", || other_kernel("sync")),
    ("changed_files_are_refused", changed_files),
    ("program_and_libraries_in_images_async", || carried("async")),
    ("program_and_libraries_in_images_sync", || carried("sync")),
    ("python_without_its_libraries", python_elsewhere),
];

const STEPS: &str = "30000";

fn walk_dir() -> tempfile::TempDir {
    let dir = make_dir();
    let input: Vec<u8> =
        (0..100_003u32).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8).collect();
    std::fs::write(dir.path().join("input"), input).unwrap();
    dir
}

fn undisturbed_walk() -> (Vec<u8>, Vec<(String, Vec<u8>)>) {
    let dir = walk_dir();
    let ended = start(dir.path(), &["walk", STEPS]).wait();
    assert!(ended.status.success(), "{:?} {:?}", ended.status, ended.reports);
    (ended.output, contents(dir.path()))
}

fn written_by(image: &[u8]) -> usize {
    summary(image).unwrap().header.rsn as usize
}

fn succeeded(ended: &Ended) {
    assert!(ended.status.success(), "{:?} {:?}", ended.status, ended.reports);
}

fn walk_survives(signal: i32) {
    let (output, files) = undisturbed_walk();
    let dir = walk_dir();
    let running = start(dir.path(), &["walk", STEPS]);
    running.wait_for_output();
    let (image, report) = running.capture(signal);
    assert!(report.starts_with("captured"), "{report}");
    let mut shown = running.kill().output;
    shown.truncate(written_by(&image));
    let ended = restore(dir.path(), &image).wait();
    succeeded(&ended);
    assert_eq!(ended.reports, ["restored"]);
    shown.extend_from_slice(&ended.output);
    assert!(shown == output, "the output differs");
    assert!(contents(dir.path()) == files, "the files differ");
}

fn chain() {
    let (output, files) = undisturbed_walk();
    let dir = walk_dir();
    let mut running = start(dir.path(), &["walk", STEPS]);
    let mut shown = Vec::new();
    let mut mappings = Vec::new();
    for generation in 0..7 {
        running.wait_for_output();
        let signal = if generation % 2 == 0 { libc::SIGUSR1 } else { libc::SIGUSR2 };
        let (image, report) = running.capture(signal);
        assert!(report.starts_with("captured"), "generation {generation}: {report}");
        let what = summary(&image[..]).unwrap();
        let end = what.header.rsn as usize;
        let before = shown.len();
        shown.extend_from_slice(&running.kill().output);
        shown.truncate(end.max(before));
        assert_eq!(shown.len(), end);
        mappings.push(what.mappings.len());
        running = restore(dir.path(), &image);
        assert_eq!(running.next_report(), "restored");
    }
    let ended = running.wait();
    succeeded(&ended);
    shown.extend_from_slice(&ended.output);
    assert!(shown == output, "the output differs");
    assert!(contents(dir.path()) == files, "the files differ");
    // malloc maps and unmaps blocks in between; leftovers would add up with each generation.
    let most = mappings.iter().max().unwrap();
    assert!(*most <= mappings[0] + 8, "mappings add up: {mappings:?}");
}

fn privileged() -> bool {
    // SAFETY: getuid takes no arguments and always succeeds.
    unsafe { libc::getuid() == 0 }
}

fn unprivileged() {
    if !privileged() {
        return walk_survives(libc::SIGUSR1); // this user is already unprivileged
    }
    let dir = walk_dir();
    let running = start_as(dir.path(), &["walk", STEPS], |c| without_privileges(c, dir.path()));
    running.wait_for_output();
    let (image, report) = running.capture(libc::SIGUSR1);
    assert!(report.starts_with("captured"), "{report}");
    running.kill();
    let mut restored = restore_with(dir.path(), &image, None, |c| {
        c.uid(65534).gid(65534);
    });
    let ended = restored.wait();
    succeeded(&ended);
    assert!(String::from_utf8_lossy(&ended.output).contains("done "));
}

/// Lets user 65534, which owns nothing, run the command of a target, if this user is root. Gives it
/// the directory.
fn without_privileges(command: &mut std::process::Command, dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    // SAFETY: getuid takes no arguments and always succeeds.
    if unsafe { libc::getuid() } != 0 {
        return;
    }
    let set = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(dir, 0o777);
    set(&dir.join("image"), 0o666);
    // User 65534 may have no access to this program's folder.
    let program = dir.join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut other = std::process::Command::new(&program);
    other.args(command.get_args());
    other.uid(65534).gid(65534);
    *command = other;
}

/// Runs a target that captures itself. Returns its image and how the original ended.
fn capture_itself(dir: &Path, name: &str, args: &[&str]) -> (Vec<u8>, Ended) {
    capture_itself_as(dir, name, args, |_| {})
}

fn capture_itself_as(
    dir: &Path,
    name: &str,
    args: &[&str],
    adjust: impl FnOnce(&mut std::process::Command),
) -> (Vec<u8>, Ended) {
    let mut all = vec![name];
    all.extend_from_slice(args);
    let mut running = start_as(dir, &all, adjust);
    let reader = running.read_image();
    let report = running.next_report();
    assert!(report.starts_with("captured"), "{report}");
    let image = reader.join().unwrap();
    let ended = running.wait();
    succeeded(&ended);
    (image, ended)
}

fn same_output(original: &Ended, restored: &Ended) {
    let text = |e: &Ended| String::from_utf8_lossy(&e.output).into_owned();
    let a = text(original);
    let b = text(restored);
    for (x, y) in a.lines().zip(b.lines()) {
        assert_eq!(x, y, "left: original, right: restored");
    }
    assert_eq!(a, b);
}

/// Original and restored process must print the same after the capture.
fn same_sight(name: &str, args: &[&str]) {
    let dir = make_dir();
    let (image, original) = capture_itself(dir.path(), name, args);
    assert!(original.output.len() > 100);
    let restored = restore(dir.path(), &image).wait();
    succeeded(&restored);
    same_output(&original, &restored);
}

fn sparse(mode: &str) {
    let dir = make_dir();
    let path = format!("/dev/shm/eyrie-image-sparse-{}-{mode}", std::process::id());
    let (image, original) = capture_itself_as(dir.path(), "sparse", &[mode, &path], |c| {
        if mode == "unprivileged" {
            without_privileges(c, dir.path()); // that user cannot open mappings by the kernel's name of them
        }
    });
    assert!(image.len() < 16 << 20, "{} bytes for some pages", image.len());
    // After the image, the original has written where the image has a hole.
    let disk = std::fs::OpenOptions::new().write(true).open(dir.path().join("disk")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&disk, &[1; 100], 1 << 20).unwrap();
    let restored = restore(dir.path(), &image).wait();
    std::fs::remove_file(&path).unwrap();
    succeeded(&restored);
    assert!(!String::from_utf8_lossy(&original.output).contains("false"));
    same_output(&original, &restored);
}

fn files(mode: &str) {
    let dir = make_dir();
    let (image, original) = capture_itself(dir.path(), "files", &[mode]);
    let after = contents(dir.path());
    // What happens after the image and is then lost: more text at the ends of files, and another
    // rank's piece of a shared file.
    let append = |name: &str, text: &[u8]| {
        let mut options = std::fs::OpenOptions::new();
        options.append(true).open(dir.path().join(name)).unwrap().write_all(text).unwrap();
    };
    append("app", b"of the lost future");
    append("tail", b"of the lost future");
    append("begun", b"of the lost future");
    let others = ["pieces", "joined", "common"];
    for name in others {
        append(name, b"of another rank");
    }
    // Both files were empty when the image was taken. Now another rank has the one open, and the
    // process that has the other open is about to end.
    let _other = File::open(dir.path().join("joined")).unwrap();
    let dying = File::open(dir.path().join("begun")).unwrap();
    let dying = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(dying);
    });
    let (mine, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let slot = File::from(std::os::fd::OwnedFd::from(theirs));
    let restored = restore_with(dir.path(), &image, Some(slot), |_| {}).wait();
    dying.join().unwrap();
    succeeded(&restored);
    same_output(&original, &restored);
    assert_eq!(restored.reports, ["restored", "dropped: 300"]);
    let mut said = String::new();
    let mut mine = mine;
    mine.read_to_string(&mut said).unwrap();
    assert_eq!(said, "from the restored\n");
    let mut expected = after;
    for (name, content) in &mut expected {
        if others.contains(&name.as_str()) {
            content.extend_from_slice(b"of another rank");
        }
    }
    assert!(contents(dir.path()) == expected);
    let (_, app) = &expected.iter().find(|(n, _)| n == "app").unwrap();
    assert_eq!(app, b"before;after;");
}

/// A restored process waits for a lock that another process has meanwhile, but not forever.
fn locks_of_others() {
    let dir = make_dir();
    let (image, original) = capture_itself(dir.path(), "locks", &["async"]);
    let theirs = File::open(dir.path().join("flock")).unwrap();
    let lock = |how: i32| {
        // SAFETY: flock takes a descriptor and a number.
        assert_eq!(unsafe { libc::flock(theirs.as_raw_fd(), how) }, 0);
    };
    lock(libc::LOCK_EX);
    let mut running = restore(dir.path(), &image);
    // Between two attempts it waits (poll).
    let call = format!("/proc/{}/syscall", running.pid());
    let poll = format!("{} ", libc::SYS_poll);
    wait_until("the restorer waiting for the lock", || {
        std::fs::read_to_string(&call).unwrap().starts_with(&poll)
    });
    lock(libc::LOCK_UN);
    let restored = running.wait();
    succeeded(&restored);
    same_output(&original, &restored);
    lock(libc::LOCK_SH);
    let refused = restore(dir.path(), &image).wait();
    assert_eq!(refused.status.code(), Some(exit::FILE), "{:?}", refused.reports);
    assert!(
        refused.reports[0].contains("/flock: another process has held"),
        "{:?}",
        refused.reports
    );
}

/// Processors and nice value that the process did not set itself are those of the restoring
/// process.
fn inherited() {
    let dir = make_dir();
    let (image, original) = capture_itself(dir.path(), "inherits", &["async"]);
    let here = |command: &mut std::process::Command| {
        // SAFETY: the closure makes only system calls and does not allocate.
        unsafe {
            command.pre_exec(|| {
                let mut one: libc::cpu_set_t = std::mem::zeroed();
                libc::sched_getaffinity(0, size_of_val(&one), &mut one);
                let first = (0..1024).find(|cpu| libc::CPU_ISSET(*cpu, &one)).unwrap_or(0);
                libc::CPU_ZERO(&mut one);
                libc::CPU_SET(first, &mut one);
                libc::sched_setaffinity(0, size_of_val(&one), &one);
                libc::setpriority(libc::PRIO_PROCESS, 0, 7);
                Ok(())
            });
        }
    };
    let restored = restore_with(dir.path(), &image, None, here).wait();
    succeeded(&restored);
    assert_eq!(String::from_utf8_lossy(&restored.output), "processors 1 nice 7\n");
    assert!(original.output != restored.output);
}

/// What the original did to its files after the image is undone.
fn log_turned_over(mode: &str) {
    let dir = make_dir();
    let (image, original) = capture_itself(dir.path(), "rotates", &[mode]);
    let expected = contents(dir.path());
    assert_eq!(expected[1], ("log.1".to_string(), b"one\ntwo\n".to_vec()));
    let restored = restore(dir.path(), &image).wait();
    succeeded(&restored);
    assert!(restored.reports[0].contains("log has its name again"), "{:?}", restored.reports);
    same_output(&original, &restored);
    assert!(contents(dir.path()) == expected);
    // The same when the log was rotated twice.
    std::fs::rename(dir.path().join("log.1"), dir.path().join("log.2")).unwrap();
    std::fs::write(dir.path().join("log.1"), b"newer").unwrap();
    let restored = restore(dir.path(), &image).wait();
    succeeded(&restored);
    same_output(&original, &restored);
    assert_eq!(contents(dir.path())[1], expected[1]);
    // A file in a directory where the restorer does not search.
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::rename(dir.path().join("other"), dir.path().join("sub/other")).unwrap();
    let refused = restore(dir.path(), &image).wait();
    assert_eq!(refused.status.code(), Some(exit::FILE), "{:?}", refused.reports);
    assert!(refused.reports[0].contains("other: no such file"), "{:?}", refused.reports);
    std::fs::write(dir.path().join("other"), b"").unwrap();
    let refused = restore(dir.path(), &image).wait();
    assert_eq!(refused.status.code(), Some(exit::FILE), "{:?}", refused.reports);
    let words = "other: leads to another file than when the image was taken";
    assert!(refused.reports[0].contains(words), "{:?}", refused.reports);
    // An agent that holds the file still has it.
    let held = [hold(&dir.path().join("sub/other"))];
    let restored = restore_held(dir.path(), &image, None, &held, |_| {}).wait();
    succeeded(&restored);
    same_output(&original, &restored);
    assert!(!dir.path().join("sub/other").exists());
}

/// A name that now belongs to another process's file stays with that file.
fn log_of_others() {
    let dir = make_dir();
    let (image, _) = capture_itself(dir.path(), "rotates", &["async"]);
    let theirs = File::open(dir.path().join("log")).unwrap();
    let restored = restore(dir.path(), &image).wait();
    succeeded(&restored);
    assert!(
        restored.reports[0].contains("which other processes have open"),
        "{:?}",
        restored.reports
    );
    drop(theirs);
}

fn temporary_name() {
    let dir = make_dir();
    let mut running = start(dir.path(), &["renames", "async"]);
    let reader = running.read_image();
    assert!(running.next_report().starts_with("captured"));
    let image = reader.join().unwrap();
    let held = [hold(&dir.path().join("result.new"))];
    running.input.take().unwrap().write_all(b"\n").unwrap();
    let original = running.wait();
    succeeded(&original);
    let expected = contents(dir.path());
    // The file of the image was replaced twice: only a process that held it still has it.
    let restored = |held: &[File]| restore_held(dir.path(), &image, None, held, |_| {});
    // A refused process reads no line: it may be gone before the line is written.
    let mut running = restored(&[]);
    drop(running.input.take());
    let refused = running.wait();
    assert_eq!(refused.status.code(), Some(exit::FILE), "{:?}", refused.reports);
    assert!(contents(dir.path()) == expected, "a refused image has changed files");
    let mut running = restored(&held);
    running.input.take().unwrap().write_all(b"\n").unwrap();
    let ended = running.wait();
    succeeded(&ended);
    assert!(ended.reports[0].contains("was gone, and has its name"), "{:?}", ended.reports);
    same_output(&original, &ended);
    assert!(contents(dir.path()) == expected);
}

/// Captures a process that was itself restored. Returns the image and how that process ended.
fn capture_twice(dir: &Path, args: &[&str]) -> (Vec<u8>, Ended) {
    let second = |mut running: Running| {
        let reader = running.read_image();
        running.input.take().unwrap().write_all(b"\n").unwrap();
        let report = running.next_report();
        assert!(report.starts_with("captured"), "{report}");
        let image = reader.join().unwrap();
        let ended = running.wait();
        succeeded(&ended);
        (image, ended)
    };
    let running = start(dir, &[&["shm"], args].concat());
    let reader = running.read_image();
    assert!(running.next_report().starts_with("captured"));
    let image = reader.join().unwrap();
    second(running);
    let running = restore(dir, &image);
    assert_eq!(running.next_report(), "restored");
    second(running)
}

fn shared_file(mode: &str) {
    let dir = make_dir();
    let path = format!("/dev/shm/eyrie-image-test-{}-{mode}", std::process::id());
    let (image, original) = capture_twice(dir.path(), &[mode, &path]);
    let what = summary(&image[..]).unwrap();
    assert_eq!(what.shared_files().collect::<Vec<_>>(), [Path::new(&path)]);
    // With the file present, but changed after the image.
    let restored = restore(dir.path(), &image).wait();
    same_output(&original, &restored);
    std::fs::remove_file(&path).unwrap();
    // Without the file, as on another node.
    let restored = restore(dir.path(), &image).wait();
    same_output(&original, &restored);
    succeeded(&restored);
    // A restore from a truncated image leaves the file unchanged.
    std::fs::write(&path, b"another process's").unwrap();
    let torn = restore(dir.path(), &image[..image.len() - 10]).wait();
    assert_eq!(torn.status.code(), Some(exit::TRUNCATED));
    assert_eq!(std::fs::read(&path).unwrap(), b"another process's");
    std::fs::remove_file(&path).unwrap();
}

fn shared_disk_file() {
    let dir = make_dir();
    let path = dir.path().join("mapped");
    let (image, original) = capture_twice(dir.path(), &["async", path.to_str().unwrap()]);
    let end = std::fs::read(&path).unwrap();
    assert_eq!(end[..8], 12345u64.to_le_bytes());
    let torn = restore(dir.path(), &image[..image.len() - 10]).wait();
    assert_eq!(torn.status.code(), Some(exit::TRUNCATED));
    assert_eq!(std::fs::read(&path).unwrap(), end, "a torn image has changed a file");
    let restored = restore(dir.path(), &image).wait();
    succeeded(&restored);
    same_output(&original, &restored);
    std::fs::remove_file(&path).unwrap();
    let restored = restore(dir.path(), &image).wait();
    assert_eq!(restored.status.code(), Some(exit::FILE), "{:?}", restored.reports);
}

/// A database is mapped to be read, by a descriptor that can write, and changed by write(2): after
/// the image, too. The restored process has the file mapped, as it is now. A rank whose calls on
/// files are recorded has memory with what was there then, until libeyrie-calls maps the file.
fn changed_by_write(names: &str) {
    let dir = make_dir();
    let (image, original) = capture_itself(dir.path(), "database", &["async", names]);
    assert_eq!(String::from_utf8_lossy(&original.output), "pages: 7 7 7\nwritten: 9 9\n");
    // The last write may lie within the same tick of the file system's clock as the first one.
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
    let file = File::options().write(true).open(dir.path().join("database")).unwrap();
    file.set_modified(later).unwrap();
    let restored = restore(dir.path(), &image).wait();
    succeeded(&restored);
    let said = match names {
        "names stay" => "pages: 7 7 7\nwritten: 7 7\n",
        _ => "pages: 9 7 7\nwritten: 9 9\n",
    };
    assert_eq!(String::from_utf8_lossy(&restored.output), said);
}

/// In a rank whose calls on files are recorded, a file that no holder maps again stays mapped by a
/// descriptor that only reads. So it must be as it was: here it was changed after the image.
fn stays_mapped() {
    let dir = make_dir();
    let (image, original) = capture_itself(dir.path(), "database", &["async", "stays mapped"]);
    assert_eq!(String::from_utf8_lossy(&original.output), "pages: 7 7 7\nwritten: 9 9\n");
    let path = dir.path().join("database");
    let objects = summary(&image[..]).unwrap().objects;
    let object = objects.iter().find(|(_, named)| *named == path).unwrap().0;
    assert_eq!(object.kind, object_kind::FILE);
    let file = File::options().write(true).open(&path).unwrap();
    // The last write may lie within the same tick of the file system's clock as the first one.
    file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(10)).unwrap();
    let restored = restore(dir.path(), &image).wait();
    assert_eq!(restored.status.code(), Some(exit::FILE), "{:?}", restored.reports);
    let [seconds, ns] = [object.mtime_s, object.mtime_ns].map(|n| n as u64);
    let then = std::time::Duration::from_secs(seconds) + std::time::Duration::from_nanos(ns);
    file.set_modified(std::time::UNIX_EPOCH + then).unwrap();
    let restored = restore(dir.path(), &image).wait();
    succeeded(&restored);
    assert_eq!(String::from_utf8_lossy(&restored.output), "pages: 9 7 7\nwritten: 9 9\n");
}

/// The program and its libraries are named in an image, but their content is not in it.
fn mapped_files() {
    let dir = make_dir();
    let (image, _) = capture_itself(dir.path(), "settings", &["async"]);
    let what = summary(&image[..]).unwrap();
    let named = |path: &Path| what.objects.iter().any(|(_, found)| found == path);
    let program = std::env::current_exe().unwrap();
    assert!(named(&program), "{} is none of {:?}", program.display(), what.objects);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = maps.lines().find_map(|line| line.find("/").map(|at| &line[at..]));
    let libc = maps.lines().find(|line| line.contains("/libc.")).or(library).unwrap();
    let libc = Path::new(&libc[libc.find('/').unwrap()..]);
    assert!(named(libc), "{} is none of {:?}", libc.display(), what.objects);
}

/// Everything works where maps and stat(2) have different numbers for a file: on an overlay whose
/// layers are on two file systems, with this program in the lower one. Needs root.
fn on_an_overlay() {
    const MOUNT: &str = "mount -t tmpfs none \"$0/upper\" && mkdir \"$0/upper/u\" \"$0/upper/w\" && \
        mount -t overlay -o \"lowerdir=$0/lower,upperdir=$0/upper/u,workdir=$0/upper/w\" none \"$0/merged\" && \
        mkdir \"$0/merged/tmp\" && TMPDIR=\"$0/merged/tmp\" exec \"$0/merged/processes\" \"$1\"";
    // SAFETY: geteuid takes no arguments and always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        println!("not here: only root mounts an overlay");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["upper", "lower", "merged"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::fs::copy(std::env::current_exe().unwrap(), dir.path().join("lower/processes")).unwrap();
    for name in [
        "mapped_files",
        "shared_file_on_a_disk",
        "files_and_descriptors_async",
        "memory_of_every_shape_async",
        "changed_files",
    ] {
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "sh", "-c", MOUNT]).arg(dir.path()).arg(name);
        let status = inside.status().unwrap();
        assert!(status.success(), "{name} on an overlay: {status}");
    }
}

fn blocked(call: &str) {
    let dir = make_dir();
    let running = start(dir.path(), &["blocked", call]);
    running.wait_for_output();
    let status = format!("/proc/{}/stat", running.pid());
    wait_until("sleeping in the call", || {
        std::fs::read_to_string(&status).unwrap().contains(") S ")
    });
    let (image, report) = running.capture(libc::SIGUSR1);
    assert!(report.starts_with("captured"), "{report}");
    let finish = |mut running: Running| {
        if call != "sleep" {
            running.input.take().unwrap().write_all(b"sixteen letters!").unwrap();
        }
        running.wait()
    };
    let original = finish(running);
    succeeded(&original);
    let restored = restore(dir.path(), &image);
    assert_eq!(restored.next_report(), "restored");
    let restored = finish(restored);
    succeeded(&restored);
    let text = String::from_utf8_lossy(&original.output).into_owned();
    let after = text.strip_prefix("ready\n").unwrap();
    assert_eq!(String::from_utf8_lossy(&restored.output), after);
}

/// Threads in every state continue as they were, whichever of them takes the image.
fn threads(mode: &str, who: &str, unprivileged: bool) {
    let dir = make_dir();
    let running = start_as(dir.path(), &["threads", mode, who], |c| {
        if unprivileged {
            without_privileges(c, dir.path()); // that user cannot choose the ids of threads
        }
    });
    let reader = running.read_image();
    let report = running.next_report();
    assert!(report.starts_with("captured"), "{report}");
    let image = reader.join().unwrap();
    let finish = |mut running: Running| {
        running.input.take().unwrap().write_all(b"sixteen letters!").unwrap();
        let ended = running.wait();
        succeeded(&ended);
        ended
    };
    let ids = tasks(&running);
    let original = finish(running);
    assert_eq!(String::from_utf8_lossy(&original.output).lines().count(), 8);
    for _ in 0..3 {
        let restored = restore_with(dir.path(), &image, None, |c| {
            if unprivileged && privileged() {
                c.uid(65534).gid(65534);
            }
        });
        if privileged() && !unprivileged {
            // Threads that wait for input exist until it comes. Another process may have got the id
            // of one.
            wait_until("threads with their old ids", || {
                tasks(&restored).iter().any(|id| ids.contains(id))
            });
        }
        same_output(&original, &finish(restored));
    }
}

/// No other thread of a restored process runs before holders have restored their state.
fn holder_first(who: &str) {
    let dir = make_dir();
    let mut running = start(dir.path(), &["holder first", who]);
    let image = running.read_image();
    let original = running.wait();
    succeeded(&original);
    assert_eq!(original.output, b"another thread ran: false\n");
    let restored = restore(dir.path(), &image.join().unwrap()).wait();
    succeeded(&restored);
    same_output(&original, &restored);
}

/// The ids of a target's threads.
fn tasks(running: &Running) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
    tasks.map(|task| task.unwrap().file_name().into_string().unwrap()).collect()
}

fn pool() {
    const STEPS: &str = "10000";
    let dir = make_dir();
    let undisturbed = start(dir.path(), &["pool", STEPS]).wait();
    succeeded(&undisturbed);
    let mut running = start(dir.path(), &["pool", STEPS]);
    let mut shown = Vec::new();
    for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGUSR1] {
        running.wait_for_output();
        let (image, report) = running.capture(signal);
        assert!(report.starts_with("captured"), "{report}");
        let end = written_by(&image);
        let before = shown.len();
        shown.extend_from_slice(&running.kill().output);
        shown.truncate(end.max(before));
        running = restore(dir.path(), &image);
        assert_eq!(running.next_report(), "restored");
        wait_until("all threads", || tasks(&running).len() == 5);
    }
    let ended = running.wait();
    succeeded(&ended);
    shown.extend_from_slice(&ended.output);
    assert!(shown == undisturbed.output, "the output differs");
}

fn deaf() {
    let dir = make_dir();
    let mut running = start(dir.path(), &["deaf"]);
    for attempt in 0..3 {
        let reader = running.read_image();
        std::fs::write(dir.path().join(format!("attempt {attempt}")), b"").unwrap();
        let report = running.next_report();
        assert!(report.contains("(helper) has not stopped within a second"), "{report}");
        assert_eq!(reader.join().unwrap(), b"");
    }
    let said = running.wait().output;
    let said = String::from_utf8(said).unwrap();
    assert_eq!(said, "waited for: true\nwaited for: false\nwaited for: false\n");
}

fn hooks() {
    let dir = make_dir();
    let mut running = start(dir.path(), &["hooks"]);
    let reader = running.read_image();
    assert_eq!(running.wait().output, b"told when all had stood still: true\n");
    assert!(!reader.join().unwrap().is_empty());
}

/// If the first thread of a process has ended, another one is the first of the restored process.
fn without_the_first(mode: &str) {
    let dir = make_dir();
    let running = start(dir.path(), &["first thread", mode]);
    let reader = running.read_image();
    let report = running.next_report();
    assert!(report.starts_with("captured"), "{report}");
    let image = reader.join().unwrap();
    let finish = |mut running: Running| {
        running.input.take().unwrap().write_all(b"sixteen letters!").unwrap();
        let ended = running.wait();
        succeeded(&ended);
        ended
    };
    let original = finish(running);
    let said = String::from_utf8_lossy(&original.output).into_owned();
    assert!(said.starts_with("pending: 1 with code 0\n") && said.lines().count() == 3, "{said}");
    for _ in 0..2 {
        same_output(&original, &finish(restore(dir.path(), &image)));
    }
}

fn python() {
    if !Path::new("/usr/bin/python3").exists() {
        println!("no /usr/bin/python3: not run");
        return;
    }
    let library = std::env::current_exe().unwrap();
    let library = library.parent().unwrap().parent().unwrap().join("examples/libctypes_capture.so");
    assert!(library.exists(), "{} is not built: run cargo test as a whole", library.display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processes/walk.py");
    let run = |dir: &Path| {
        start_as(dir, &["walk"], |c| {
            *c = std::process::Command::new("/usr/bin/python3");
            c.arg(&script).arg(dir).arg(&library);
        })
    };
    let dir = make_dir();
    let undisturbed = run(dir.path()).wait();
    succeeded(&undisturbed);
    let expected = contents(dir.path());
    let dir = make_dir();
    let mut running = run(dir.path());
    let mut shown = Vec::new();
    for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGUSR1] {
        running.wait_for_output();
        let (image, report) = running.capture(signal);
        assert_eq!(report, "captured");
        let what = summary(&image[..]).unwrap();
        shown.extend_from_slice(&running.kill().output);
        shown.truncate(what.header.rsn as usize);
        running = restore(dir.path(), &image);
        assert_eq!(running.next_report(), "restored");
    }
    let ended = running.wait();
    succeeded(&ended);
    shown.extend_from_slice(&ended.output);
    assert!(shown == undisturbed.output, "the output differs");
    assert!(contents(dir.path()) == expected, "the files differ");
}

fn refusals() {
    for (what, words) in [
        ("deaf thread", "(helper) has not stopped within a second: it is in system call 34"),
        ("raw thread", ") was not made by the C library"),
        ("thread with rights", "(helper) has other rights than the thread that takes the image"),
        ("thread with files", "(helper) has descriptors or a working directory of its own"),
        ("thread with signals", "(helper) has signals pending that are for it alone"),
        ("child", "has a child process"),
        ("udp", "is a UDP socket"),
        ("tcp", "is a TCP socket"),
        ("unix", "is a Unix socket"),
        ("pipe", "is a pipe to another process"),
        ("epoll", "an epoll instance that watches a descriptor closed since"),
        ("datagrams", "a socket pair with unread datagrams"),
        ("passing", "a socket pair with descriptors on their way"),
        ("unread notices", "is an inotify instance with unread events"),
        ("notices", "is an inotify instance that watches a file of which no path is known"),
        ("proc", "is a file of /proc about another process (/proc/1/status)"),
        ("proc writable", "is a file of /proc that is open for writing (/proc/"),
        ("deleted", "is a deleted file of 68157440 bytes"),
        ("replaced", "a file whose path no longer leads to it"),
        ("timer", "has a POSIX timer"),
        ("sysv", "a System V shared memory segment"),
        ("lease", "a file with a lease"),
        ("groups", "it has other groups' rights than the process that started it"),
        ("capabilities", "it has other capabilities than the process that started it"),
        ("securebits", "it has changed what its capabilities mean"),
        ("namespace", "it is in another namespace than the process that started it (uts:["),
        ("seccomp", "it has a seccomp filter of its own"),
        ("keyring", "it has a keyring of its own"),
        ("key", "it uses memory protection keys"),
        ("segment", "it has segments of its own (modify_ldt)"),
        ("tls", "it has segments of its own (set_thread_area)"),
        ("aio", "an asynchronous I/O context"),
        ("secret", "is secret memory"),
        ("queue", "a POSIX message queue"),
        ("async", "a descriptor that sends signals (O_ASYNC)"),
        ("pidfd", "a descriptor of a kind that cannot be restored"),
        ("ring", "a descriptor of a kind that cannot be restored (anon_inode:[io_uring])"),
        ("faults", "a descriptor of a kind that cannot be restored (anon_inode:[userfaultfd])"),
        ("events", "a descriptor of a kind that cannot be restored (anon_inode:[perf_event])"),
        ("signals", "more than 512 signals are pending"),
        ("window", "where the restorer works"),
    ] {
        let dir = make_dir();
        // Opens the reading end, so that the target can open the pipe.
        let reader = std::thread::spawn({
            let path = dir.path().join("image");
            move || {
                let mut bytes = Vec::new();
                File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
                bytes
            }
        });
        let ended = start(dir.path(), &["refused", what]).wait();
        if ended.reports[0] == format!("not here: {what}") {
            println!("{}", ended.reports[0]);
            // Lets the reader end.
            drop(std::fs::OpenOptions::new().write(true).open(dir.path().join("image")));
            reader.join().unwrap();
            continue;
        }
        assert!(ended.status.success(), "{what}: {:?} {:?}", ended.status, ended.reports);
        assert!(ended.reports[0].contains(words), "{what}: {:?}", ended.reports);
        assert_eq!(ended.output, b"goes on\n");
        assert_eq!(reader.join().unwrap(), b"", "{what}: nothing is written before a refusal");
    }
}

fn exclude() {
    let dir = make_dir();
    let (image, original) = capture_itself(dir.path(), "exclude", &[]);
    let restored = restore(dir.path(), &image).wait();
    succeeded(&restored);
    same_output(&original, &restored);
}

fn status_of(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the kernel writes one number into `status`. The writer is a child of this process
    // (CLONE_PARENT).
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    (waited == pid && libc::WIFEXITED(status)).then(|| libc::WEXITSTATUS(status))
}

fn child_pid(report: &str) -> i32 {
    let at = report.find("child=").unwrap() + 6;
    report[at..].split(' ').next().unwrap().parse().unwrap()
}

fn writer() {
    let dir = make_dir();
    let running = start(dir.path(), &["big", "64", "small"]);
    running.wait_for_output();
    running.signal(libc::SIGUSR1);
    let mut pipe = File::open(dir.path().join("image")).unwrap();
    let report = running.next_report();
    let pid = child_pid(&report);
    // The image is far longer than the pipe, so the writer waits for this test. Meanwhile the rank
    // dies.
    let ended = running.kill();
    assert!(ended.output.ends_with(b"ready\n"), "the writer must not hold standard output open");
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    assert!(fds <= 2, "the writer holds {fds} descriptors");
    let mut image = Vec::new();
    pipe.read_to_end(&mut image).unwrap();
    assert_eq!(status_of(pid), Some(writer_exit::DONE), "the writer is this process's child");
    assert!(summary(&image[..]).unwrap().content_bytes >= 64 << 20);
    let mut restored = restore(dir.path(), &image);
    restored.input.take().unwrap().write_all(b"\n").unwrap();
    succeeded(&restored.wait());
}

fn reader_goes(signal: i32) {
    let dir = make_dir();
    let mut running = start(dir.path(), &["big", "64", "small"]);
    running.wait_for_output();
    running.signal(signal);
    let mut pipe = File::open(dir.path().join("image")).unwrap();
    pipe.read_exact(&mut [0; 5000]).unwrap();
    drop(pipe);
    let report = running.next_report();
    if signal == libc::SIGUSR1 {
        assert!(report.starts_with("captured"), "{report}");
        assert_eq!(status_of(child_pid(&report)), Some(writer_exit::READER_GONE));
    } else {
        assert!(report.starts_with("refused: the image could not be written"), "{report}");
    }
    // The process continues, and can be captured afterwards.
    let (image, report) = running.capture(libc::SIGUSR1);
    assert!(report.starts_with("captured"), "{report}");
    summary(&image[..]).unwrap();
    running.input.take().unwrap().write_all(b"\n").unwrap();
    succeeded(&running.wait());
}

/// A small image of a process that would print if it ran.
fn small_image(dir: &Path) -> Vec<u8> {
    let running = start(dir, &["blocked", "sleep"]);
    running.wait_for_output();
    let (image, report) = running.capture(libc::SIGUSR1);
    assert!(report.starts_with("captured"), "{report}");
    running.kill();
    image
}

fn truncated() {
    let dir = make_dir();
    let image = small_image(dir.path());
    let mut random = Random(11);
    let mut cuts: Vec<usize> = (0..60).map(|_| random.next() as usize % image.len()).collect();
    cuts.extend([0, 1, 31, 32, 33, image.len() - 1, image.len() - 8, image.len() - 40]);
    for cut in cuts {
        let ended = restore(dir.path(), &image[..cut]).wait();
        let code = ended.status.code();
        assert_eq!(code, Some(exit::TRUNCATED), "cut at {cut}: {:?}", ended.reports);
        assert_eq!(ended.reports.len(), 1);
        assert!(ended.reports[0].contains("before its trailer"), "{:?}", ended.reports);
        assert_eq!(ended.output, b"");
    }
}

fn is_refused(ended: &Ended) {
    let code = ended.status.code().unwrap_or_else(|| panic!("killed: {:?}", ended.status));
    let known = exit::TRUNCATED..=exit::KERNEL;
    assert!(known.contains(&code), "code {code}: {:?}", ended.reports);
    assert_eq!(ended.reports.len(), 1, "one line: {:?}", ended.reports);
    assert_eq!(ended.output, b"");
}

fn random_streams() {
    let dir = make_dir();
    let mut random = Random(5);
    for _ in 0..60 {
        let len = random.next() as usize % 5000;
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        is_refused(&restore(dir.path(), &bytes).wait());
    }
}

/// Damage in the records before the first page: found by their own checks or by the checksum.
fn damaged() {
    let dir = make_dir();
    let image = small_image(dir.path());
    let mut end = 0;
    loop {
        let header: &[u8; 32] = image[end..end + 32].try_into().unwrap();
        let header = RecordHeader::decode(header).unwrap();
        if header.kind == Kind::Pages {
            break;
        }
        end += 32 + header.len as usize;
    }
    let mut random = Random(3);
    for _ in 0..150 {
        let mut bad = image.clone();
        let at = random.next() as usize % end;
        bad[at] ^= 1 << (random.next() % 8);
        is_refused(&restore(dir.path(), &bad).wait());
    }
}

fn other_node() {
    let dir = make_dir();
    let image = small_image(dir.path());
    let release = summary(&image[..]).unwrap().header.fingerprint.kernel;
    let at = image.windows(64).position(|w| w == release).unwrap();
    let tampered = |offset: usize, change: fn(&mut u8)| {
        let mut other = image.clone();
        change(&mut other[at + offset]);
        let ended = restore(dir.path(), &other).wait();
        assert_eq!(ended.status.code(), Some(exit::FINGERPRINT), "{:?}", ended.reports);
        ended.reports[0].clone()
    };
    assert!(tampered(64, |b| *b = b'X').contains("the image is from a CPU of X"));
    assert!(tampered(83, |b| *b = 0xff).contains("lacks features"));
    assert!(tampered(112, |b| *b ^= 1 << 7).contains("register state differs"));
    let mut without = image.clone();
    without[at + VDSO_ID] ^= 1;
    let without = rewritten(&without, |kind, _| kind != Kind::Named);
    let ended = restore(dir.path(), &without).wait();
    assert_eq!(ended.status.code(), Some(exit::FINGERPRINT), "{:?}", ended.reports);
    assert!(ended.reports[0].contains("a thread was within the code"), "{:?}", ended.reports);
}

/// Its kernel has a setting that this one lacks.
fn setting_of_another_kernel() {
    let dir = make_dir();
    let (mut image, original) = capture_itself(dir.path(), "setting of the kernel", &["async"]);
    let [here, there] = ["/proc/sys/kernel/osrelease", "/proc/sys/kernel/absent/it"];
    assert_eq!(original.output, format!("{here} None\n").into_bytes());
    let at = image.windows(here.len()).position(|w| w == here.as_bytes()).unwrap();
    image[at..at + there.len()].copy_from_slice(there.as_bytes());
    let restored = restore(dir.path(), &rewritten(&image, |_, _| true)).wait();
    succeeded(&restored);
    let expected = "/proc/sys/kernel Some(IsADirectory)\n";
    assert_eq!(String::from_utf8_lossy(&restored.output), expected);
}

/// Starts the process of [`super::registers`], takes an image of it and kills it. The C library
/// uses no more than the level either.
fn image_of_level(dir: &Path, used: &str) -> (Vec<u8>, Demand) {
    let tunables = "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW";
    let running = start_as(dir, &["registers", "x86-64-v2", used], |command| {
        command.env("GLIBC_TUNABLES", tunables).env("LD_BIND_NOW", "1");
    });
    running.wait_for_output();
    let (image, report) = running.capture(libc::SIGUSR1);
    assert!(report.starts_with("captured"), "{report}");
    running.kill();
    let what = summary(&image[..]).unwrap();
    let named = what.named.iter().find(|named| named.name == PROCESSOR).unwrap();
    let (demand, _) = take::<Demand>(&named.content).unwrap();
    (image, demand)
}

/// The image with another demand.
fn demanding(image: &[u8], demand: &Demand) -> Vec<u8> {
    let mut other = image.to_vec();
    let at = other.windows(PROCESSOR.len()).position(|w| w == PROCESSOR.as_bytes()).unwrap();
    let content = at + PROCESSOR.len();
    other[content..content + size_of::<Demand>()].copy_from_slice(bytes_of(demand));
    rewritten(&other, |_, _| true)
}

fn goes_on(dir: &Path, image: &[u8], reports: &[&str]) {
    let mut running = restore(dir, image);
    assert_eq!(running.next_report(), "restored");
    drop(running.input.take());
    for report in reports {
        assert_eq!(running.next_report(), *report);
    }
    succeeded(&running.wait());
}

fn keeps_to_its_level() {
    let dir = make_dir();
    let (image, demand) = image_of_level(dir.path(), "none");
    let v2 = Level::named("x86-64-v2").unwrap();
    assert_eq!((demand.features, demand.xcr0), (v2.features, v2.xcr0), "{:x?}", demand.places);
    assert!(demand.signal_stack >= 2048, "{}", demand.signal_stack);
    goes_on(dir.path(), &image, &[]);
    // Its node had an instruction and registers that this one lacks.
    let release = summary(&image[..]).unwrap().header.fingerprint.kernel;
    let at = image.windows(64).position(|w| w == release).unwrap();
    let mut richer = image.clone();
    richer[at + 64 + 16 + 4 * 4] |= 1 << 2;
    richer[at + 112 + 2] |= 1 << 3;
    // Every process there may use registers that no process may here.
    let context = Cell::new(0);
    rewritten(&image, |kind, payload| {
        if kind == Kind::Context {
            context.set(payload.as_ptr().addr() - image.as_ptr().addr());
        }
        true
    });
    richer[context.get() + offset_of!(Context, register_state) + 2] |= 1 << 7;
    goes_on(dir.path(), &rewritten(&richer, |_, _| true), &[]);
}

fn asks_for_registers_beyond_the_level() {
    if !std::fs::read_to_string("/proc/cpuinfo").unwrap().contains(" amx_tile") {
        return println!("skipped: this processor has no AMX");
    }
    let dir = make_dir();
    let (image, demand) = image_of_level(dir.path(), "tiles");
    assert_eq!(demand.xcr0, 3 | 1 << 18);
    goes_on(dir.path(), &image, &[]);
}

fn registers_beyond_the_level() {
    if !std::is_x86_feature_detected!("avx") {
        return println!("skipped: this processor has no AVX");
    }
    let dir = make_dir();
    let (image, demand) = image_of_level(dir.path(), "avx");
    assert_eq!(demand.xcr0, 7);
    let here = summary(&image[..]).unwrap().header.fingerprint.processor;
    assert_eq!(demand.features, here.features, "who uses more is not trusted with the rest");
    goes_on(
        dir.path(),
        &image,
        &["the handler kept its registers", "the program kept its registers"],
    );
    let refused = |change: fn(&mut Demand)| {
        let mut other = demand;
        change(&mut other);
        let ended = restore(dir.path(), &demanding(&image, &other)).wait();
        assert_eq!(ended.status.code(), Some(exit::FINGERPRINT), "{:?}", ended.reports);
        ended.reports[0].clone()
    };
    let said = refused(|demand| demand.features[4] |= 1 << 2);
    assert!(said.contains("avx512_4vnniw") && said.contains("--cpu common"), "{said}");
    let said = refused(|demand| demand.places[2] += 64);
    assert!(said.contains("the registers of AVX"), "{said}");
}

/// Where the id of the vDSO is, from the kernel's release on.
const VDSO_ID: usize = 152;

/// The records of an image that `keeps` is true of, with a trailer that fits them.
fn rewritten(image: &[u8], keeps: impl Fn(Kind, &[u8]) -> bool) -> Vec<u8> {
    let mut new = Vec::new();
    let mut records = 0;
    let mut hash = MetaHash::new();
    let mut rest = image;
    while let Some((head, behind)) = rest.split_first_chunk::<32>() {
        let mut header = RecordHeader::decode(head).unwrap();
        let (payload, next) = behind.split_at(header.len as usize);
        rest = next;
        if header.kind == Kind::Trailer {
            (header.a, header.b) = (new.len() as u64, records);
            new.extend_from_slice(&header.encode());
            new.extend_from_slice(&hash.value().to_le_bytes());
        } else if keeps(header.kind, payload) {
            if header.kind.is_description() {
                hash.update(head);
                hash.update(payload);
            }
            new.extend_from_slice(head);
            new.extend_from_slice(payload);
            records += 1;
        }
    }
    new
}

/// Three generations, each on a kernel that seems to be another one. Threads ask for the time all
/// the while, so that some are within the vDSO when they are to stop.
fn other_kernel(mode: &str) {
    let dir = make_dir();
    let mut running = start(dir.path(), &["clocks", mode]);
    for generation in 1..=3 {
        let reader = running.read_image();
        let report = running.next_report();
        assert!(report.starts_with("captured"), "generation {generation}: {report}");
        let mut image = reader.join().unwrap();
        running.kill();
        let what = summary(&image[..]).unwrap();
        let named = what.named.iter().find(|named| named.name == VDSO);
        assert!(named.is_some_and(|named| named.content.len() >= 4096));
        let release = what.header.fingerprint.kernel;
        let at = image.windows(64).position(|w| w == release).unwrap();
        image[at + VDSO_ID] ^= 1;
        running = restore(dir.path(), &rewritten(&image, |_, _| true));
        assert_eq!(running.next_report(), "restored");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
        let vdso = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
        assert!(vdso.starts_with("64ff0"), "{vdso}");
    }
    drop(running.input.take());
    let ended = running.wait();
    succeeded(&ended);
    let said = String::from_utf8_lossy(&ended.output);
    assert_eq!(said.lines().filter(|line| *line == "a clock: right").count(), 3, "{said}");
}

fn changed_files() {
    let dir = walk_dir();
    let running = start(dir.path(), &["walk", STEPS]);
    let log = dir.path().join("log");
    wait_until("a line in the log", || std::fs::metadata(&log).is_ok_and(|m| m.len() > 10));
    let (image, _) = running.capture(libc::SIGUSR1);
    running.kill();
    let refused = |words: &str| {
        let ended = restore(dir.path(), &image).wait();
        assert_eq!(ended.status.code(), Some(exit::FILE), "{:?}", ended.reports);
        assert!(ended.reports[0].contains(words), "{:?}", ended.reports);
    };
    let saved = std::fs::read(&log).unwrap();
    std::fs::write(&log, &saved[..10]).unwrap();
    refused("has lost content: 10 bytes");
    std::fs::write(&log, &saved).unwrap();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::rename(&log, elsewhere.join("log")).unwrap();
    refused("log: no such file or directory");
    std::fs::rename(elsewhere.join("log"), &log).unwrap();
    succeeded(&restore(dir.path(), &image).wait());

    // A file mapped for its content must be the same.
    let dir = make_dir();
    let (image, _) = capture_itself(dir.path(), "memory", &["async"]);
    std::fs::write(dir.path().join("data"), vec![b'e'; 3 * 4096 + 100]).unwrap();
    let ended = restore(dir.path(), &image).wait();
    assert_eq!(ended.status.code(), Some(exit::FILE), "{:?}", ended.reports);
    assert!(ended.reports[0].contains("a mapped file has changed"), "{:?}", ended.reports);
}

/// Starts a copy of this program that loads a copy of a library and maps a file without a build id.
/// Returns its image, and what it prints.
fn capture_from_copies(dir: &Path, args: &[&str]) -> (Vec<u8>, Ended) {
    let program = dir.join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::copy(ctypes_library(), dir.join("library.so")).unwrap();
    std::fs::write(dir.join("archive"), (0..300_000).map(|n| (n % 251) as u8).collect::<Vec<_>>())
        .unwrap();
    std::fs::write(dir.join("open"), [b'o'; 5000]).unwrap();
    let mut all = vec!["target", "carried", dir.to_str().unwrap()];
    all.extend_from_slice(args);
    capture_itself_as(dir, "carried", args, |command| {
        *command = Command::new(&program);
        command.args(all);
    })
}

fn ctypes_library() -> std::path::PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.parent().unwrap().parent().unwrap().join("examples/libctypes_capture.so");
    assert!(library.exists(), "{} is not built: run cargo test as a whole", library.display());
    library
}

/// A program, a library and another mapped file that are there as they were, are others or are gone
/// when the process is restored: it goes on as it would have, and so does a process that is
/// restored from an image of that one.
fn carried(mode: &str) {
    let dir = make_dir();
    let path = |name: &str| dir.path().join(name);
    let (image, original) = capture_from_copies(dir.path(), &[mode, "self-contained"]);
    let said = String::from_utf8_lossy(&original.output).into_owned();
    let expected: Vec<&str> = said.lines().filter(|line| !line.starts_with("mapped:")).collect();
    assert_eq!(expected.len(), 8, "{said}");
    let mapped = |name: &str, ended: &Ended| {
        let said = String::from_utf8_lossy(&ended.output).into_owned();
        said.lines().filter(|line| line.starts_with("mapped:") && line.ends_with(name)).count()
    };
    for name in ["/program", "/library.so", "/archive", "/open"] {
        assert!(mapped(name, &original) > 0, "{name}: {said}");
    }
    // Each from the last image of the one before: the second image is of a process that has no file
    // behind this memory any more.
    let goes_on = |image: &[u8]| {
        let mut running = restore(dir.path(), image);
        let reader = running.read_image();
        assert_eq!(running.next_report(), "restored");
        let report = running.next_report();
        assert!(report.starts_with("captured"), "{report}");
        let next = reader.join().unwrap();
        for ended in [running.wait(), restore(dir.path(), &next).wait()] {
            succeeded(&ended);
            let again = String::from_utf8_lossy(&ended.output).into_owned();
            let lines = again.lines().filter(|line| !line.starts_with("mapped:"));
            let lines: Vec<&str> = lines.collect();
            let last = expected.len() - lines.len();
            assert!(!lines.is_empty() && lines == expected[last..], "{again}");
            if last > 0 {
                return ended;
            }
        }
        unreachable!("the second one has less to say")
    };
    let is_shared = |names: &[&str], ended: &Ended| {
        for name in ["/program", "/library.so", "/archive"] {
            assert_eq!(mapped(name, ended) > 0, names.contains(&name), "{name}: {names:?}");
        }
        assert!(mapped("/open", ended) > 0);
    };
    is_shared(&["/program", "/library.so", "/archive"], &goes_on(&image));
    // An equal file with another time of change: only a build id tells that it is equal.
    for name in ["archive", "library.so"] {
        std::fs::copy(path(name), path("copy")).unwrap();
        std::fs::rename(path("copy"), path(name)).unwrap();
    }
    is_shared(&["/program", "/library.so"], &goes_on(&image));
    // Of the same length, and changed in place.
    use std::os::unix::fs::FileExt;
    let archive = File::options().write(true).open(path("archive")).unwrap();
    archive.write_all_at(&[0xff; 9000], 4000).unwrap();
    let other = std::fs::read(path("library.so")).unwrap();
    std::fs::write(path("other"), vec![0xcc; other.len()]).unwrap();
    std::fs::rename(path("other"), path("library.so")).unwrap();
    is_shared(&["/program"], &goes_on(&image));
    std::fs::remove_file(path("program")).unwrap();
    std::fs::remove_file(path("library.so")).unwrap();
    std::fs::remove_file(path("archive")).unwrap();
    is_shared(&[], &goes_on(&image));
    // What the process has open must be there.
    std::fs::remove_file(path("open")).unwrap();
    let ended = restore(dir.path(), &image).wait();
    assert_eq!(ended.status.code(), Some(exit::FILE), "{:?}", ended.reports);
    assert!(ended.reports[0].contains("/open: no such file"), "{:?}", ended.reports);

    // Without the content, a missing or other file is refused, with what helps.
    let dir = make_dir();
    let (image, _) = capture_from_copies(dir.path(), &[mode, "plain"]);
    std::fs::write(dir.path().join("other"), "other").unwrap();
    std::fs::rename(dir.path().join("other"), dir.path().join("library.so")).unwrap();
    let ended = restore(dir.path(), &image).wait();
    assert_eq!(ended.status.code(), Some(exit::FILE), "{:?}", ended.reports);
    let why = &ended.reports[0];
    assert!(why.contains("/library.so: leads to another file"), "{why}");
    assert!(why.contains("images of jobs with --self-contained do not need it"), "{why}");
}

/// An interpreter whose extension modules, program and C library's tables are gone.
fn python_elsewhere() {
    let script = "
import ctypes, os, sys, zlib
library = ctypes.CDLL(sys.argv[2])
library.eyrie_ctypes_capture_whole.argtypes = [ctypes.c_int]
import decimal, json, hashlib
import array, math
data = [decimal.Decimal(n).sqrt() for n in range(2000)]
out = os.open(sys.argv[1] + '/image', os.O_WRONLY)
if library.eyrie_ctypes_capture_whole(out) == 1:
    os.write(2, b'restored\\n')
else:
    os.close(out)
    os.write(2, b'captured\\n')
text = json.dumps([str(sum(data)), math.erf(0.5), zlib.crc32(b'x' * 10000)])
print(text, hashlib.sha256(text.encode()).hexdigest(), decimal.Decimal(2).ln())
";
    if !Path::new("/usr/bin/python3").exists() {
        println!("no /usr/bin/python3: not run");
        return;
    }
    let dir = make_dir();
    let path = |name: &str| dir.path().join(name);
    // The interpreter and the modules that are libraries, from a folder of their own.
    std::fs::copy("/usr/bin/python3", path("python3")).unwrap();
    std::fs::copy(ctypes_library(), path("library.so")).unwrap();
    let copies =
        "import sys, glob, shutil; [shutil.copy(f, sys.argv[1]) for d in sys.path for f in \
                  glob.glob(d + '/*.so')]";
    std::fs::create_dir(path("modules")).unwrap();
    let copied =
        Command::new("/usr/bin/python3").args(["-c", copies]).arg(path("modules")).status();
    assert!(copied.unwrap().success());
    let mut running = start_as(dir.path(), &["walk"], |c| {
        *c = Command::new(path("python3"));
        c.env("PYTHONPATH", path("modules"));
        c.args(["-c", script]).arg(dir.path()).arg(path("library.so"));
    });
    let reader = running.read_image();
    assert_eq!(running.next_report(), "captured");
    let image = reader.join().unwrap();
    let original = running.wait();
    succeeded(&original);
    for gone in ["python3", "library.so"] {
        std::fs::remove_file(path(gone)).unwrap();
    }
    std::fs::remove_dir_all(path("modules")).unwrap();
    let restored = restore(dir.path(), &image).wait();
    succeeded(&restored);
    assert_eq!(restored.reports, ["restored"]);
    same_output(&original, &restored);
}
