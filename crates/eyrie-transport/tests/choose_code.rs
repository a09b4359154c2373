//! The libraries of this crate choose their code by what cpuid shows, once. In a process of its
//! own, since what they have chosen stays.

use eyrie_image_kernel::hide::{hidden, is_possible};
use eyrie_image_kernel::processor::Level;
use eyrie_transport::choose_code;
use eyrie_transport::seal::Cipher;

#[test]
fn code_is_chosen_by_what_a_level_has_and_kept() {
    let v2 = Level::named("x86-64-v2").unwrap();
    // SAFETY: this is the only test of the process, and no thread sets the action of SIGSEGV.
    let done = unsafe { hidden(&v2, choose_code) };
    assert_eq!(done, is_possible());
    if !done {
        return println!("skipped: cpuid cannot be made to fault here");
    }
    assert!(!std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("sse4.2"));
    assert!(!std::is_x86_feature_detected!("avx512f"));
    assert_eq!(Cipher::offered(), Cipher::ChaCha20Poly1305 as u8, "AES is no part of the level");
}
