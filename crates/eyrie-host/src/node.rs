//! Kernel and processor, in the form in which images have them. The restorer's own code decides
//! whether two of them are compatible ([`eyrie_image::fingerprint::obstacles`]).

use eyrie_image::fingerprint::{self, Obstacle};
use eyrie_image_format::Fingerprint;
use eyrie_wire::facts::Platform;

/// Reads those of this host.
pub fn look() -> Platform {
    let f = fingerprint::of_this_node();
    Platform {
        kernel: text(&f.kernel),
        cpu_vendor: text(&f.cpu_vendor),
        features: f.features,
        xcr0: f.xcr0,
        xsave_len: f.xsave_len,
    }
}

/// Why images of `there` are refused `here`.
pub fn obstacles(here: &Platform, there: &Platform) -> Vec<Obstacle> {
    let mut all = Vec::new();
    let here = fingerprint_of(here);
    let there = fingerprint_of(there);
    fingerprint::obstacles(&here, &there, |obstacle| all.push(obstacle));
    all
}

fn fingerprint_of(platform: &Platform) -> Fingerprint {
    Fingerprint {
        kernel: bytes(&platform.kernel),
        cpu_vendor: bytes(&platform.cpu_vendor),
        features: platform.features,
        xcr0: platform.xcr0,
        xsave_len: platform.xsave_len,
        vvar_len: 0,
        vvar_vclock_len: 0,
        vdso_len: 0,
        vdso_id: 0,
        libc_id: 0,
    }
}

fn text(padded: &[u8]) -> String {
    String::from_utf8_lossy(padded).trim_end_matches('\0').to_string()
}

fn bytes<const N: usize>(text: &str) -> [u8; N] {
    let mut padded = [0; N];
    let len = text.len().min(N);
    padded[..len].copy_from_slice(&text.as_bytes()[..len]);
    padded
}
