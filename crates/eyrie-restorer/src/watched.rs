//! Reads from an image what an inotify instance watches. It changes nothing.

use eyrie_image_format::*;

/// What an inotify instance watches, with each path; `None` where the content ends in the middle.
pub fn watched_paths(content: &[u8]) -> impl Iterator<Item = Option<(WatchedPath, &[u8])>> {
    let mut rest = Some(content);
    core::iter::from_fn(move || {
        let left = rest.take().filter(|left| !left.is_empty())?;
        let read = || {
            let (watched, behind) = take::<WatchedPath>(left)?;
            let (path, behind) = behind.split_at_checked(watched.path_len as usize)?;
            (path.first() == Some(&b'/') && path.last() == Some(&0))
                .then_some((watched, path, behind))
        };
        let Some((watched, path, behind)) = read() else { return Some(None) };
        rest = Some(behind);
        Some(Some((watched, path)))
    })
}
