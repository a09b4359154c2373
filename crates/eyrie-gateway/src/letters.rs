//! The letters of the controllers on their way from gateway to gateway: each is its length (4
//! bytes, little-endian) and its content; one of length 0 only shows that the other side lives. It
//! must never hold more than one letter may take, whatever the peer sends.

use eyrie_wire::domains::Letter;
use std::io;

/// Longest letter in bytes.
const MAX_LETTER: usize = 16 << 20;
const HEAD_LEN: usize = 4;

fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Appends a sign of life.
pub fn put_sign(out: &mut Vec<u8>) {
    out.extend([0; HEAD_LEN]);
}

/// Appends a letter.
///
/// # Errors
/// `InvalidData` when it is too long.
pub fn put(out: &mut Vec<u8>, letter: &Letter) -> io::Result<()> {
    let bytes = postcard::to_stdvec(letter).map_err(invalid)?;
    if bytes.len() > MAX_LETTER {
        return Err(invalid("a letter to another domain is too long"));
    }
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
    Ok(())
}

/// What has come of the letters of a connection.
#[derive(Default)]
pub struct Reader {
    bytes: Vec<u8>,
}

impl Reader {
    /// Adds what has come, and takes the letters that are whole.
    ///
    /// # Errors
    /// `InvalidData` when that is no letter.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<Vec<Letter>> {
        self.bytes.extend_from_slice(bytes);
        let mut letters = Vec::new();
        let mut used = 0;
        while let Some((head, rest)) = self.bytes[used..].split_first_chunk::<HEAD_LEN>() {
            let len = u32::from_le_bytes(*head) as usize;
            if len > MAX_LETTER {
                return Err(invalid("a letter of another domain is too long"));
            }
            let Some(content) = rest.get(..len) else { break };
            if len > 0 {
                letters.push(postcard::from_bytes(content).map_err(invalid)?);
            }
            used += HEAD_LEN + len;
        }
        self.bytes.drain(..used);
        Ok(letters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::domains::DomainSays;
    use eyrie_wire::DomainId;

    #[test]
    fn letters_come_whole_in_pieces_of_any_size() {
        let letter = |number| {
            let says = Some(DomainSays::Ended {
                code: 3,
                cause: "x".repeat(number as usize),
                domain: DomainId(0),
            });
            Letter { number, heard: 2, says }
        };
        let mut bytes = Vec::new();
        for number in [1, 40, 3] {
            put_sign(&mut bytes);
            put(&mut bytes, &letter(number)).unwrap();
        }
        for size in [1, 3, 50, 1000] {
            let mut reader = Reader::default();
            let come = bytes.chunks(size).flat_map(|part| reader.add(part).unwrap());
            assert_eq!(come.collect::<Vec<_>>(), [1, 40, 3].map(letter));
        }
        assert!(Reader::default().add(&[0xff; 8]).is_err());
        assert!(Reader::default().add(&[1, 0, 0, 0, 0xff]).is_err());
    }
}
