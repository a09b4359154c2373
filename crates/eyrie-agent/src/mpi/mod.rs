//! The MPI libraries that are known, one file each: how the library is recognised, which settings
//! bring its messages to the provider and close the ways round it, which versions are tested.
//! Nothing here talks to a rank.

mod intel;
mod mpich;
mod open_mpi;

use std::path::Path;

/// What is known of an MPI library.
#[derive(Debug)]
pub struct Library {
    pub name: &'static str,
    /// A part of its text for MPI_Get_library_version; its file contains it, too.
    mark: &'static str,
    /// Versions that Eyrie's tests run with.
    tested: &'static [&'static str],
    /// Set for every rank; a user who has set another value is told so.
    settings: &'static [(&'static str, &'static str)],
    /// Set for every rank unless the user has set it. They make a rank that waits for a message
    /// yield the processor, which the router may need.
    defaults: &'static [(&'static str, &'static str)],
    /// How many barriers its ranks pass before it loads the provider.
    meets_before: u32,
    /// What to do when its ranks do not use the provider.
    remedy: &'static str,
}

/// In this order, since a mark may also occur in libraries that stand before its own.
const ALL: [&Library; 3] = [&intel::INTEL_MPI, &open_mpi::OPEN_MPI, &mpich::MPICH];

/// The remedy for an unknown library.
const USE_MPICH: &str =
    "use MPICH 5, for instance `pip install mpich`, and build the program with its mpicc";

/// The library of this text.
fn of_text(text: &[u8]) -> Option<&'static Library> {
    let has = |mark: &str| text.windows(mark.len()).any(|part| part == mark.as_bytes());
    ALL.into_iter().find(|library| has(library.mark))
}

/// The library in a file.
fn of_file(path: &Path) -> Option<&'static Library> {
    of_text(&std::fs::read(path).ok()?)
}

/// How many barriers ranks pass before the library in this file loads the provider.
pub fn meets_before(path: &Path) -> u32 {
    of_file(path).map_or(0, |library| library.meets_before)
}

/// What to do when ranks with the library in this file do not use the provider.
pub fn remedy(path: &Path) -> String {
    match of_file(path) {
        Some(library) => format!("it is {}: {}", library.name, library.remedy),
        None => USE_MPICH.into(),
    }
}

/// The settings in the environment of ranks. They are those of all libraries, since the library is
/// known only once the rank has started.
pub fn settings() -> impl Iterator<Item = (&'static Library, &'static str, &'static str)> {
    ALL.into_iter().flat_map(|library| {
        library.settings.iter().map(move |(name, value)| (library, *name, *value))
    })
}

/// Variables in the environment of ranks that the user may set otherwise.
pub fn defaults() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALL.into_iter().flat_map(|library| library.defaults.iter().copied())
}

/// Name and version of the library with this text (MPI_Get_library_version), and whether that
/// version is one of those that are tested.
pub fn describe(text: &str) -> (String, String, bool) {
    let first = text.lines().next().unwrap_or("").trim();
    let Some(library) = of_text(text.as_bytes()) else {
        return (first.into(), String::new(), false);
    };
    let words = first.split(|c: char| c.is_whitespace() || c == ',');
    let version = words.map(|word| word.trim_start_matches('v'));
    let version = version.into_iter().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let version = version.unwrap_or("");
    (library.name.into(), version.into(), library.tested.contains(&version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_recognised_by_their_texts() {
        let of = describe;
        let known = |name: &str, version: &str| (name.to_string(), version.to_string(), true);
        let mpich = "MPICH Version:      5.0.2\nMPICH Release date: Tue Feb 1\nMPICH ABI: 17:2:5";
        assert_eq!(of(mpich), known("MPICH", "5.0.2"));
        let intel = "Intel(R) MPI Library 2021.18.1 for Linux* OS\n";
        assert_eq!(of(intel), known("Intel MPI", "2021.18.1"));
        let (name, version, _) = of("Open MPI v5.0.11, package: Open MPI runner Distribution");
        assert_eq!((&*name, &*version), ("Open MPI", "5.0.11"));
        assert!(!of("MPICH Version:      4.3.0").2);
        assert_eq!(of("Some MPI 1.0\nmore"), ("Some MPI 1.0".into(), String::new(), false));
    }
}
