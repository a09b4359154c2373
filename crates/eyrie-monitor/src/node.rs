//! The node itself: load at every sample, processor time at every second one, the rest in turn in
//! between, from files that are kept open. A part that this node does not have is left out. A read
//! that fails is tried again at its next turn.

use crate::sample::{
    name_of, Ages, Cpu, Detail, Disk, Few, Interface, Memory, NodeSample, Temperature, DEVICES,
    TEMPERATURES,
};
use eyrie_proc::kept::{again, keep};
use eyrie_proc::text::{after, number, numbers};
use eyrie_proc::TICK_NS;
use rustix::fd::OwnedFd;
use std::path::Path;

pub struct Reader {
    stat: Option<OwnedFd>,
    meminfo: Option<OwnedFd>,
    network: Option<OwnedFd>,
    disks: Option<OwnedFd>,
    pressure: [Option<OwnedFd>; 3],
    temperatures: Vec<(Temperature, OwnedFd)>,
    buffer: Box<[u8; BUFFER]>,
    now: NodeSample,
    turn: usize,
    /// Whether everything is read at every sample.
    all: bool,
}

/// /proc/stat of a node with hundreds of processors is cut after the first line, which is enough.
const BUFFER: usize = 16 << 10;
/// Parts that take turns.
const PARTS: usize = 5;
const SECTOR: u64 = 512;
/// Fixed point of sysinfo's load.
const LOAD: f64 = 65536.0;

impl Reader {
    /// `root` is `/`, or a tree that looks like it.
    pub fn new(root: &Path, all: bool) -> Reader {
        let proc = |path: &str| keep(root.join("proc").join(path));
        let mut reader = Reader {
            stat: proc("stat"),
            meminfo: proc("meminfo"),
            network: proc("net/dev"),
            disks: proc("diskstats"),
            pressure: ["cpu", "memory", "io"].map(|what| proc(&format!("pressure/{what}"))),
            temperatures: temperatures(root),
            buffer: Box::new([0; BUFFER]),
            now: NodeSample::default(),
            turn: 0,
            all: true,
        };
        // The first sample has everything.
        reader.read(Detail::Full);
        reader.all = all;
        reader.turn = 2 * PARTS - 1;
        reader
    }

    /// Reads what is due; returns the number of reads that failed.
    pub fn read(&mut self, detail: Detail) -> u32 {
        let ages = &mut self.now.ages;
        let all = [
            &mut ages.cpu,
            &mut ages.memory,
            &mut ages.pressure,
            &mut ages.network,
            &mut ages.disks,
            &mut ages.temperatures,
        ];
        for age in all.into_iter().filter(|age| **age < Ages::NEVER - 1) {
            *age += 1;
        }
        self.load();
        if self.all {
            return self.processors() + (0..PARTS).map(|part| self.part(part)).sum::<u32>();
        }
        self.turn = (self.turn + 1) % (2 * PARTS);
        match (detail, self.turn % 2) {
            (_, 0) => self.processors(),
            (Detail::Least, _) => 0,
            _ => self.part(self.turn / 2),
        }
    }

    pub fn node(&self) -> &NodeSample {
        &self.now
    }

    fn part(&mut self, which: usize) -> u32 {
        let Reader { meminfo, network, disks, pressure, temperatures, buffer, now, .. } = self;
        let buffer = &mut buffer[..];
        match which {
            0 => read(meminfo, buffer, &mut now.ages.memory, |text| now.memory = memory(text)),
            1 => {
                read(network, buffer, &mut now.ages.network, |text| now.network = interfaces(text))
            }
            2 => read(disks, buffer, &mut now.ages.disks, |text| now.disks = disk_list(text)),
            3 => {
                let p = &mut now.pressure;
                let age = &mut now.ages.pressure;
                read(&pressure[0], buffer, age, |t| p.cpu_some_us = total(t, b"some"))
                    + read(&pressure[1], buffer, age, |t| {
                        (p.memory_some_us, p.memory_full_us) =
                            (total(t, b"some"), total(t, b"full"))
                    })
                    + read(&pressure[2], buffer, age, |t| {
                        (p.io_some_us, p.io_full_us) = (total(t, b"some"), total(t, b"full"))
                    })
            }
            _ => {
                let mut failed = 0;
                for (place, (_, file)) in temperatures.iter_mut().enumerate() {
                    let file = Some(file);
                    failed += read(&file, buffer, &mut now.ages.temperatures, |text| {
                        now.temperatures.all[place].celsius = milli(text);
                    });
                }
                failed
            }
        }
    }

    fn processors(&mut self) -> u32 {
        let now = &mut self.now;
        // 512 bytes hold the first line.
        read(&self.stat, &mut self.buffer[..512], &mut now.ages.cpu, |text| {
            now.cpu = processors(text)
        })
    }

    fn load(&mut self) {
        let info = rustix::system::sysinfo();
        let [one, five, fifteen] = info.loads.map(|l| l as f64 / LOAD);
        (self.now.load_1, self.now.load_5, self.now.load_15) = (one, five, fifteen);
        self.now.uptime_s = info.uptime as u64;
        if self.now.temperatures.len == 0 {
            self.now.temperatures.len = self.temperatures.len();
            for (to, (from, _)) in self.now.temperatures.all.iter_mut().zip(&self.temperatures) {
                *to = *from;
            }
        }
    }
}

/// Reads a file, if it exists, and passes its text to `use_it`; 1 when that failed.
fn read<F: std::borrow::Borrow<OwnedFd>>(
    file: &Option<F>,
    buffer: &mut [u8],
    age: &mut u16,
    use_it: impl FnOnce(&[u8]),
) -> u32 {
    let Some(file) = file else { return 0 };
    match again(file.borrow(), buffer) {
        Ok(text) => {
            use_it(text);
            *age = 0;
            0
        }
        Err(_) => 1,
    }
}

/// The first line of /proc/stat: user nice system idle iowait irq softirq steal.
fn processors(text: &[u8]) -> Cpu {
    let ([user, nice, system, idle, iowait, irq, softirq, steal], _) =
        numbers::<8>(text.strip_prefix(b"cpu").unwrap_or_default());
    let ns = |ticks: u64| ticks.saturating_mul(TICK_NS);
    Cpu {
        user_ns: ns(user),
        nice_ns: ns(nice),
        system_ns: ns(system),
        idle_ns: ns(idle),
        iowait_ns: ns(iowait),
        irq_ns: ns(irq),
        softirq_ns: ns(softirq),
        steal_ns: ns(steal),
    }
}

fn memory(text: &[u8]) -> Memory {
    let bytes = |key: &[u8]| {
        after(text, key).and_then(number).map_or(0, |(kib, _)| kib.saturating_mul(1024))
    };
    Memory {
        total_bytes: bytes(b"MemTotal:"),
        free_bytes: bytes(b"MemFree:"),
        available_bytes: bytes(b"MemAvailable:"),
        cached_bytes: bytes(b"Cached:"),
        swap_total_bytes: bytes(b"SwapTotal:"),
        swap_free_bytes: bytes(b"SwapFree:"),
    }
}

/// /proc/net/dev: two lines of headings, then `name: 8 numbers received 8 sent`.
fn interfaces(text: &[u8]) -> Few<Interface, DEVICES> {
    let mut all = Few::default();
    for line in text.split(|b| *b == b'\n').skip(2) {
        let Some(colon) = line.iter().position(|b| *b == b':') else { continue };
        let (n, count) = numbers::<16>(&line[colon + 1..]);
        if count < 12 {
            continue;
        }
        let Some(i) =
            place(&mut all, line[..colon].trim_ascii_start(), |i: &mut Interface, name| {
                i.name = name
            })
        else {
            continue;
        };
        i.received_bytes += n[0];
        i.received_packets += n[1];
        i.receive_errors += n[2];
        i.receive_drops += n[3];
        i.sent_bytes += n[8];
        i.sent_packets += n[9];
        i.send_errors += n[10];
        i.send_drops += n[11];
    }
    all
}

/// /proc/diskstats: major minor name, then counts. Partitions, and devices that were never used,
/// are left out.
fn disk_list(text: &[u8]) -> Few<Disk, DEVICES> {
    let mut all = Few::default();
    for line in text.split(|b| *b == b'\n') {
        let Some((_, rest)) = number(line) else { continue };
        let Some((_, rest)) = number(rest) else { continue };
        let rest = rest.trim_ascii_start();
        let end = rest.iter().position(|b| *b == b' ').unwrap_or(rest.len());
        let (name, counts) = rest.split_at(end);
        let (n, count) = numbers::<10>(counts);
        if count < 10 || n[0] + n[4] == 0 || is_partition(name) {
            continue;
        }
        let Some(d) = place(&mut all, name, |d: &mut Disk, name| d.name = name) else { continue };
        d.reads += n[0];
        d.read_bytes += n[2].saturating_mul(SECTOR);
        d.writes += n[4];
        d.written_bytes += n[6].saturating_mul(SECTOR);
        d.busy_ms += n[9];
    }
    all
}

/// sda1, vda2, nvme0n1p3: their counts are contained in those of their disk.
fn is_partition(name: &[u8]) -> bool {
    let digits = name.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let stem = &name[..name.len() - digits];
    let numbered = name.starts_with(b"nvme") || name.starts_with(b"mmcblk");
    let letters = [&b"sd"[..], b"vd", b"hd", b"xvd"].iter().any(|kind| stem.starts_with(kind));
    digits > 0 && (numbered && stem.ends_with(b"p") || letters)
}

/// The place for a device: its own, or the last one, which is then called "other".
fn place<'a, T: Copy>(
    all: &'a mut Few<T, DEVICES>,
    name: &[u8],
    set: impl Fn(&mut T, [u8; 16]),
) -> Option<&'a mut T> {
    if all.len < DEVICES {
        all.len += 1;
        set(&mut all.all[all.len - 1], name_of(name));
    } else {
        set(&mut all.all[DEVICES - 1], name_of(b"other"));
    }
    all.all.get_mut(all.len - 1)
}

/// The total of the line that begins with `key`, in microseconds: `some avg10=0.00 avg60=0.00
/// avg300=0.00 total=0`.
fn total(text: &[u8], key: &[u8]) -> u64 {
    let line = after(text, key).unwrap_or_default();
    let at = line.windows(6).position(|w| w == b"total=");
    at.and_then(|at| number(&line[at + 6..])).map_or(0, |(n, _)| n)
}

/// Thousandths, which may be negative.
fn milli(text: &[u8]) -> f64 {
    let (sign, digits) = match text.strip_prefix(b"-") {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    sign * number(digits).map_or(0.0, |(n, _)| n as f64 / 1000.0)
}

/// Sensors of class hwmon.
fn temperatures(root: &Path) -> Vec<(Temperature, OwnedFd)> {
    let mut found = Vec::new();
    for chip in sorted(&root.join("sys/class/hwmon")) {
        for file in sorted(&chip) {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(sensor) = name.strip_prefix("temp").and_then(|n| n.strip_suffix("_input"))
            else {
                continue;
            };
            let text =
                |path: &Path| std::fs::read_to_string(path).ok().map(|t| t.trim().to_string());
            let label = text(&chip.join(format!("temp{sensor}_label")))
                .or_else(|| text(&chip.join("name")))
                .unwrap_or(name.clone());
            if let (Some(fd), true) = (keep(&file), found.len() < TEMPERATURES) {
                found.push((Temperature { name: name_of(label.as_bytes()), celsius: 0.0 }, fd));
            }
        }
    }
    found
}

fn sorted(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut all: Vec<_> =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::text_of;

    #[test]
    fn this_node_is_read() {
        let mut reader = Reader::new(Path::new("/"), true);
        assert_eq!(reader.read(Detail::Full), 0);
        let node = reader.node();
        assert!(node.cpu.idle_ns > 0 && node.memory.total_bytes > node.memory.available_bytes);
        assert!(node.network.iter().any(|i| text_of(&i.name) == "lo"));
        assert_eq!((node.ages.cpu, node.ages.memory, node.ages.network), (0, 0, 0));
    }

    #[test]
    fn parts_are_read_in_turn_and_have_ages() {
        let mut reader = Reader::new(Path::new("/"), false);
        for _ in 0..5 {
            reader.read(Detail::Full);
        }
        let ages = reader.node().ages;
        assert_eq!((ages.cpu, ages.memory, ages.network), (0, 3, 1));
        reader.read(Detail::Least);
        assert_eq!((reader.node().ages.cpu, reader.node().ages.memory), (1, 4));
    }

    #[test]
    fn a_fake_node_is_read_whole() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/stat", "cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1\n");
        put(
            "proc/diskstats",
            "   8 0 sda 10 0 100 0 20 0 200 0 0 77 0\n   8 1 sda1 10 0 100 0 20 0 200 0 0 77 0\n \
             7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n",
        );
        put(
            "proc/pressure/io",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=3\n",
        );
        put("sys/class/hwmon/hwmon0/temp1_input", "-1500\n");
        put("sys/class/hwmon/hwmon0/name", "k10temp\n");
        let mut reader = Reader::new(root.path(), true);
        reader.read(Detail::Full);
        let node = reader.node();
        assert_eq!(node.cpu.steal_ns, 80_000_000);
        assert_eq!(
            (node.disks.len, node.disks[0].written_bytes, node.disks[0].busy_ms),
            (1, 102_400, 77)
        );
        assert_eq!((node.pressure.io_some_us, node.pressure.io_full_us), (5, 3));
        assert_eq!(
            (node.temperatures[0].celsius, text_of(&node.temperatures[0].name)),
            (-1.5, "k10temp".into())
        );
        assert_eq!(node.ages.memory, Ages::NEVER);
    }

    #[test]
    fn devices_beyond_the_room_are_summed() {
        let mut text = String::from("a\nb\n");
        for i in 0..DEVICES + 4 {
            text += &format!("eth{i}: 1 1 0 0 0 0 0 0 2 2 0 0 0 0 0 0\n");
        }
        let all = interfaces(text.as_bytes());
        assert_eq!((all.len, all[DEVICES - 1].received_bytes), (DEVICES, 5));
        assert_eq!(text_of(&all[DEVICES - 1].name), "other");
    }

    #[test]
    fn partitions_are_recognised() {
        assert!([&b"sda1"[..], b"vda12", b"nvme0n1p3"].iter().all(|n| is_partition(n)));
        assert!(![&b"sda"[..], b"nvme0n1", b"dm-0", b"loop3", b"md127"]
            .iter()
            .any(|n| is_partition(n)));
    }
}
