//! Kernel and processor, in the form in which images have them. The restorer's own code decides
//! whether two of them are compatible ([`eyrie_image::fingerprint::obstacles`]).

use eyrie_image::fingerprint::{self, Obstacle};
use eyrie_image_format::Fingerprint;
use serde::{Deserialize, Serialize};

/// What images need from a host's kernel and processor. The size of pages and of user addresses is
/// the same wherever Eyrie runs: 4 KiB, and 47 bits (images with mappings beyond are refused).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Platform {
    /// As uname(2) says.
    pub kernel: String,
    /// As cpuid says.
    pub cpu_vendor: String,
    /// See [`Fingerprint::features`].
    pub features: [u32; 8],
    /// Register state components that the kernel has enabled, and their bytes in a signal frame.
    pub xcr0: u64,
    pub xsave_len: u64,
    /// Lengths of vvar, vvar_vclock and vdso.
    pub kernel_mappings: [u64; 3],
    /// Hash of the vDSO's build id.
    pub vdso_id: u64,
}

impl Platform {
    /// Reads those of this host.
    pub fn look() -> Platform {
        let known = fingerprint::of_this_process();
        let f = known.map_or_else(|_| fingerprint::of_this_node(), |(f, _)| f);
        Platform {
            kernel: text(&f.kernel),
            cpu_vendor: text(&f.cpu_vendor),
            features: f.features,
            xcr0: f.xcr0,
            xsave_len: f.xsave_len,
            kernel_mappings: [f.vvar_len, f.vvar_vclock_len, f.vdso_len],
            vdso_id: f.vdso_id,
        }
    }

    /// Why images of `there` are refused here.
    pub fn obstacles(&self, there: &Platform) -> Vec<Obstacle> {
        let mut all = Vec::new();
        let here = self.fingerprint();
        let there = there.fingerprint();
        fingerprint::obstacles(&here, &there, |obstacle| all.push(obstacle));
        all
    }

    fn fingerprint(&self) -> Fingerprint {
        let [vvar_len, vvar_vclock_len, vdso_len] = self.kernel_mappings;
        Fingerprint {
            kernel: bytes(&self.kernel),
            cpu_vendor: bytes(&self.cpu_vendor),
            features: self.features,
            xcr0: self.xcr0,
            xsave_len: self.xsave_len,
            vvar_len,
            vvar_vclock_len,
            vdso_len,
            vdso_id: self.vdso_id,
            libc_id: 0,
        }
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
