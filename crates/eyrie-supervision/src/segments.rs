//! The segments that MPI libraries make in /dev/shm for a single rank, by their names. A killed
//! process leaves them behind, and the next one refuses to start over them. Nothing else is ever
//! removed.

/// How the names of MPICH's segments begin. The other libraries make none for a single rank.
const MPICH: &str = "mpich_shm_";

/// Whether a path is a segment that a library makes for one rank.
pub fn is_segment(path: &str) -> bool {
    let name = path.strip_prefix("/dev/shm/").filter(|name| !name.contains('/'));
    name.is_some_and(|name| name.starts_with(MPICH))
}

/// The segment that MPICH 5 makes for a rank. Its name has the FNV-1a hash of the PMI key value
/// space. A rank that dies before the agent has read its memory map is cleaned up by this.
pub fn predicted_segment(kvsname: &str, rank: u32) -> String {
    let hash =
        kvsname.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    format!("/dev/shm/{MPICH}{hash:x}_{rank}")
}

/// Removes segments that dead ranks left. It never touches anything else.
pub fn remove<'a>(paths: impl IntoIterator<Item = &'a String>) {
    for path in paths {
        if is_segment(path) {
            // It may be gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn only_segments_of_single_ranks_are_removed() {
        assert!(is_segment("/dev/shm/mpich_shm_61e42c5b_0"));
        assert!(!is_segment("/dev/shm/mpich_shm_/../x"));
        assert!(!is_segment("/dev/shm/other"));
        assert!(!is_segment("/tmp/mpich_shm_61e42c5b_0"));
    }

    #[test]
    fn the_predicted_name_is_that_of_mpich() {
        // Seen with MPICH 5.0.2.
        let path = predicted_segment("kvs_14893_0_231376119_vm", 1);
        assert_eq!(path, "/dev/shm/mpich_shm_2b6751d6_1");
    }

    #[test]
    fn only_segments_are_removed() {
        let path = format!("/dev/shm/mpich_shm_test{}_0", std::process::id());
        std::fs::write(&path, b"x").unwrap();
        remove([&path, &"/dev/null".to_string()]);
        assert!(!Path::new(&path).exists() && Path::new("/dev/null").exists());
    }
}
