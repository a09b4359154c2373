//! Kernel and processor, in the form in which images have them. The restorer's own code decides
//! whether two of them are compatible ([`eyrie_image::fingerprint::obstacles`]).

use eyrie_image::fingerprint::{self, Obstacle};
use eyrie_image::hide;
use eyrie_image::processor::{frame_len, Layout, Level, PKRU};
use eyrie_image_format::{Demand, Processor};
use eyrie_wire::facts::Platform;

/// Reads those of this host.
pub fn look() -> Platform {
    let f = fingerprint::of_this_node();
    Platform {
        kernel: text(&f.kernel),
        cpu_vendor: text(&f.processor.vendor),
        features: f.processor.features,
        xcr0: f.processor.xcr0,
        xsave_len: f.processor.xsave_len,
        places: Layout::of_this_node().places,
        hides: hide::is_possible(),
    }
}

/// Why images of `there` are refused `here`, of ranks that were started for `level`, if for one.
pub fn obstacles(here: &Platform, there: &Platform, level: Option<&Level>) -> Vec<Obstacle> {
    let mut all = Vec::new();
    let found = |obstacle| all.push(obstacle);
    let at = processor_of(here);
    let of = processor_of(there);
    match level {
        None => fingerprint::obstacles(&at, &of, found),
        Some(level) => {
            let layout = Layout { len: frame_len(here.xcr0, &here.places), places: here.places };
            let demand = Demand {
                features: level.demanded(&there.features, there.hides),
                xcr0: level.xcr0 & there.xcr0 & !PKRU,
                // Which signal stacks ranks will have is not known.
                signal_stack: 0,
                places: there.places,
            };
            fingerprint::obstacles_to((&at, &layout), &of, &demand, found);
        }
    }
    all
}

/// The level with this name, and with any other what all of these hosts have; `None`: there are
/// none.
pub fn level<'a>(name: &str, hosts: impl Iterator<Item = &'a Platform>) -> Option<Level> {
    Level::named(name).or_else(|| in_common(hosts))
}

/// The level that all of these hosts have; `None`: there are none.
pub fn in_common<'a>(hosts: impl Iterator<Item = &'a Platform>) -> Option<Level> {
    hosts.map(|host| Level::of(&processor_of(host))).reduce(|all, one| all.in_common(&one))
}

/// Instructions of a level that a host lacks, in words; `None`: it has them all.
pub fn lacking(level: &Level, host: &Platform) -> Option<String> {
    let lacking: Vec<String> =
        level.lacking(&processor_of(host)).map(|lacks| lacks.to_string()).collect();
    (!lacking.is_empty()).then(|| lacking.join(", "))
}

fn processor_of(platform: &Platform) -> Processor {
    Processor {
        vendor: bytes(&platform.cpu_vendor),
        features: platform.features,
        xcr0: platform.xcr0,
        xsave_len: platform.xsave_len,
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
