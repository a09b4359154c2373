//! For any text, the readers of traffic and spares return a value or one line of error.

use eyrie_placement::{Method, SpareSet, Traffic};
use proptest::prelude::*;

fn one_line<T>(result: Result<T, eyrie_topology::TopologyError>) {
    if let Err(e) = result {
        assert!(!e.0.is_empty() && !e.0.contains('\n') && e.0.len() < 700, "{e}");
    }
}

fn read_all(text: &str) {
    one_line(Traffic::from_matrix(text, 4));
    one_line(Traffic::parse(text, &[2, 2], 8));
    one_line(Traffic::parse(text, &[2, 1, 3], 8));
    one_line(SpareSet::parse(text));
    let _ = Method::parse(text);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]
    #[test]
    fn readers_survive_texts_of_known_words(words in prop::collection::vec(prop::sample::select(vec![
        "0", "1", "3", "9", " ", ",", "\n", "#", "rank", "-1", "4096", "18446744073709551616", "stencil5", "stencil7",
        ":periodic", "direction:", "+x", "-y", "é", "allreduce:", "ring", "2d(", "3D(", "2", ")", "list:", "contiguous:",
        "scattered:", ";", "d", "hybrid", "\t",
    ]), 0..12)) {
        read_all(&words.concat());
    }
    #[test]
    fn readers_survive_any_text(text in "\\PC{0,80}") {
        read_all(&text);
    }
}
