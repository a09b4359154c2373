//! One sample: a node and its processes at one moment, in one schema whatever the reader. It is
//! plain numbers in memory that is allocated once; it must never hold anything that allocates.

use crate::reader::kind::Kind;
use serde::Serialize;

/// A value that the reader does not know.
pub const UNKNOWN: u64 = u64::MAX;

/// A process. Counts are totals since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    /// The command's name, as the kernel has it: up to 15 bytes, zeros behind.
    pub command: [u8; 16],
    /// Nanoseconds from the boot of the node to the start of the process.
    pub start_ns: u64,
    pub threads: u32,
    /// As in /proc: R, S, D, T, t, Z, X, I.
    pub state: u8,
    pub kernel_thread: bool,
    /// Samples since it was last read: 0 is now.
    pub age: u16,
    /// Whether the rate policy wants it written: what is as forecast need not be.
    pub due: bool,
    /// CPU time of all threads, ended ones included.
    pub cpu_ns: u64,
    /// The part in user space; [`UNKNOWN`] where the reader has the sum only.
    pub user_ns: u64,
    pub system_ns: u64,
    pub rss_bytes: u64,
    /// Inode of its control group (version 2), or [`UNKNOWN`].
    pub cgroup: u64,
}

impl Process {
    pub const NONE: Process = Process {
        pid: 0,
        parent: 0,
        command: [0; 16],
        start_ns: 0,
        threads: 0,
        state: b'?',
        kernel_thread: false,
        age: 0,
        due: true,
        cpu_ns: 0,
        user_ns: UNKNOWN,
        system_ns: UNKNOWN,
        rss_bytes: 0,
        cgroup: UNKNOWN,
    };

    /// The command's name as text; what is not UTF-8 is replaced.
    pub fn command(&self) -> std::borrow::Cow<'_, str> {
        let end = self.command.iter().position(|b| *b == 0).unwrap_or(self.command.len());
        String::from_utf8_lossy(&self.command[..end])
    }
}

/// Interfaces and disks for which a sample has room. Others are summed in the last place, called
/// "other".
pub const DEVICES: usize = 16;
/// Temperatures for which a sample has room.
pub const TEMPERATURES: usize = 32;

/// A device's name, zeros behind.
pub type Name = [u8; 16];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interface {
    #[serde(serialize_with = "as_text")]
    pub name: Name,
    pub received_bytes: u64,
    pub received_packets: u64,
    pub receive_errors: u64,
    pub receive_drops: u64,
    pub sent_bytes: u64,
    pub sent_packets: u64,
    pub send_errors: u64,
    pub send_drops: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Disk {
    #[serde(serialize_with = "as_text")]
    pub name: Name,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub busy_ms: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Temperature {
    #[serde(serialize_with = "as_text")]
    pub name: Name,
    pub celsius: f64,
}

/// Processor time of the node since boot, all processors together, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cpu {
    pub user_ns: u64,
    pub nice_ns: u64,
    pub system_ns: u64,
    pub idle_ns: u64,
    pub iowait_ns: u64,
    pub irq_ns: u64,
    pub softirq_ns: u64,
    pub steal_ns: u64,
}

impl Cpu {
    pub fn busy_ns(&self) -> u64 {
        self.user_ns + self.nice_ns + self.system_ns + self.irq_ns + self.softirq_ns + self.steal_ns
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub available_bytes: u64,
    pub cached_bytes: u64,
    pub swap_total_bytes: u64,
    pub swap_free_bytes: u64,
}

/// Time since boot during which some, or all, tasks stood still for lack of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pressure {
    pub cpu_some_us: u64,
    pub memory_some_us: u64,
    pub memory_full_us: u64,
    pub io_some_us: u64,
    pub io_full_us: u64,
}

/// A list with a fixed place for each entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Few<T, const N: usize> {
    pub len: usize,
    pub all: [T; N],
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Few { len: 0, all: [T::default(); N] }
    }
}

impl<T, const N: usize> std::ops::Deref for Few<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.all[..self.len]
    }
}

impl<T: Serialize, const N: usize> Serialize for Few<T, N> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.iter())
    }
}

/// The node. `ages` has the number of samples since each part was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NodeSample {
    pub cpu: Cpu,
    pub load_1: f64,
    pub load_5: f64,
    pub load_15: f64,
    pub uptime_s: u64,
    pub memory: Memory,
    pub pressure: Pressure,
    pub network: Few<Interface, DEVICES>,
    pub disks: Few<Disk, DEVICES>,
    pub temperatures: Few<Temperature, TEMPERATURES>,
    pub ages: Ages,
}

/// Samples since each part of the node was read; [`Ages::NEVER`]: not yet, or it does not exist
/// here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ages {
    pub cpu: u16,
    pub memory: u16,
    pub pressure: u16,
    pub network: u16,
    pub disks: u16,
    pub temperatures: u16,
}

impl Ages {
    pub const NEVER: u16 = u16::MAX;
}

impl Default for Ages {
    fn default() -> Ages {
        let never = Ages::NEVER;
        Ages {
            cpu: never,
            memory: never,
            pressure: never,
            network: never,
            disks: never,
            temperatures: never,
        }
    }
}

/// The cost of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// CPU time of the sampling thread for this sample: processes, then the node.
    pub processes_ns: u64,
    pub node_ns: u64,
    /// CPU time of the sampling thread from its waking to its sleep, for the sample before this
    /// one: that of this one is not known yet.
    pub whole_ns: u64,
    /// CPU time of the whole monitor since its start, with output, health and answers to scrapes.
    pub monitor_ns: u64,
}

/// How much is read within the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Detail {
    /// Everything that was asked for.
    #[default]
    Full,
    /// Processes below a tenth of a core are read only when they are old or new.
    Busy,
    /// The same, and of the node only processor time.
    Least,
}

/// A sample without its processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// Number of the sample on this node, from 0.
    pub number: u64,
    /// The intended moment, in nanoseconds since 1970, of the clock that the samples are aligned
    /// to.
    pub intended_ns: u64,
    /// From the intended moment to the first read, nanoseconds.
    pub skew_ns: i64,
    /// Intervals since the previous sample: 1, unless moments were missed or left out.
    pub step: u32,
    pub interval_ns: u64,
    pub reader: Kind,
    pub detail: Detail,
    pub cost: Cost,
    /// Processes for which there was no room.
    pub beyond: u32,
    /// Reads that failed for another reason than that the process is gone.
    pub failed: u32,
    pub node: NodeSample,
}

/// Serializes a name.
fn as_text<S: serde::Serializer>(name: &Name, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&text_of(name))
}

/// A name as text.
pub fn text_of(name: &Name) -> std::borrow::Cow<'_, str> {
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end])
}

/// A name of at most 16 bytes, padded with zeros; longer ones are cut.
pub fn name_of(text: &[u8]) -> Name {
    let mut name = [0; 16];
    let len = text.len().min(16);
    name[..len].copy_from_slice(&text[..len]);
    name
}
