//! What a host says of itself, to be compared with other hosts: plain data, within bounds. It is
//! gathered and compared in `eyrie-host`; nothing here asks the host.

use serde::{Deserialize, Serialize};

/// Longest text in facts, bytes: longer texts are cut.
pub const TEXT_MAX: usize = 4096;
/// Most files in facts.
pub const FILES_MAX: usize = 1024;

/// What must be equal on two hosts, or nearly so, so that an image of one becomes a process on the
/// other that continues correctly.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Eyrie's version, and the file that runs.
    pub version: String,
    pub command: File,
    /// Identifies the host: equal texts are the same host, unless they are empty.
    #[serde(default)]
    pub identity: String,
    pub node: Platform,
    pub limits: Limits,
    /// The program, its interpreter, and all that the loader loads with it, including the C
    /// library. Files that a program loads while it runs (Python's modules) are not among them.
    pub files: Vec<File>,
}

/// What a rank uses a file for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Program,
    /// A text that another program interprets (`#!`).
    Script,
    Library,
    /// An argument of the program that is a file.
    Argument,
}

/// A file that a rank uses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct File {
    pub role: Role,
    /// Without symbolic links, as the kernel shows mapped files.
    pub path: String,
    pub size: u64,
    /// Time of its last change, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Hash of its ELF build id; 0: images find none.
    pub build_id: u64,
    /// BLAKE3 of its content, hexadecimal, if it has no build id; else empty.
    pub content: String,
    /// Why nothing is known about it; empty: everything is known.
    pub problem: String,
}

impl File {
    /// A file about which nothing is known.
    pub fn unknown(role: Role, path: &str, problem: &str) -> File {
        let path = cut(path);
        let problem = cut(problem);
        let size = 0;
        let modified_ns = 0;
        let build_id = 0;
        let content = String::new();
        File { role, path, size, modified_ns, build_id, content, problem }
    }

    /// The part of the path after the last slash.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Whether an image that has mapped one of them is restored with the other, and correctly.
    pub fn is_taken_for(&self, other: &File) -> bool {
        let ids = (self.build_id, &self.content) == (other.build_id, &other.content);
        let proven = self.build_id != 0 || self.modified_ns == other.modified_ns;
        self.size == other.size && ids && proven
    }

    /// Whether both are proven to have the same content.
    pub fn has_content_of(&self, other: &File) -> bool {
        let known = !self.content.is_empty() || self.build_id != 0;
        let mine = (self.build_id, &self.content);
        let theirs = (other.build_id, &other.content);
        known && self.size == other.size && mine == theirs
    }
}

/// The limits of a process on a host. [`u64::MAX`]: no limit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// vm.overcommit_memory: 2 counts memory that was never touched.
    pub overcommit: u64,
    /// The lowest address that may be mapped.
    pub lowest_address: u64,
    /// Most mappings of a process.
    pub mappings: u64,
    /// Huge pages in the pool.
    pub huge_pages: u64,
    /// Hard limits: RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_STACK, RLIMIT_AS.
    pub open_files: u64,
    pub locked_memory: u64,
    pub stack: u64,
    pub address_space: u64,
}

/// What images need from a host's kernel and processor. The size of pages and of user addresses is
/// the same wherever Eyrie runs: 4 KiB, and 47 bits (images with mappings beyond are refused).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Platform {
    /// As uname(2) says.
    pub kernel: String,
    /// As cpuid says.
    pub cpu_vendor: String,
    /// See `Processor::features` of `eyrie-image-format`.
    pub features: [u32; 8],
    /// Register state components that the kernel has enabled, and their bytes in a signal frame.
    pub xcr0: u64,
    pub xsave_len: u64,
    /// Where each of them is in a signal frame, bytes; 0: it is not there.
    #[serde(default)]
    pub places: [u32; 20],
    /// Whether the libraries within Eyrie's own can be shown less of the processor than there is.
    #[serde(default)]
    pub hides: bool,
}

/// Cuts a text to its bound.
pub fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_string()
}
