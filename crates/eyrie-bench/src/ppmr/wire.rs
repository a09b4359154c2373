//! The source's messages to the target on their connection: the places of its buffers, then each
//! chunk when it is full. Encoding only.

use eyrie_libfabric::site::Remote;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};

/// Most bytes of the first line of a source, which has the places of its buffers.
const HELLO_MAX: usize = 16 << 20;

/// The first line of a source.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Hello {
    /// The address of its endpoint in libfabric, and each buffer's address and key; empty where
    /// buffers are requested over TCP.
    pub name: Vec<u8>,
    pub buffers: Vec<(u64, u64)>,
}

impl Hello {
    pub fn remote(&self, chunk: u32) -> Option<Remote> {
        self.buffers.get(chunk as usize).map(|&(addr, key)| Remote { addr, key })
    }

    /// # Errors
    /// When the stream ends, or has something else.
    pub fn read(from: &mut impl Read) -> io::Result<Hello> {
        let mut len = [0; 4];
        from.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > HELLO_MAX {
            return Err(io::Error::other("the source begins with too long a line"));
        }
        let mut text = vec![0; len];
        from.read_exact(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    pub fn encode(&self) -> Vec<u8> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        [&(text.len() as u32).to_le_bytes()[..], &text].concat()
    }
}

/// A chunk of a stream that can be pulled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full {
    /// The stream that it belongs to, and its number there.
    pub stream: u32,
    pub place: u32,
    /// The buffer that holds it.
    pub chunk: u32,
    /// Its bytes; 0: the stream ended before it.
    pub len: u32,
}

/// Length of an encoded chunk.
pub const FULL_LEN: usize = 16;

impl Full {
    pub fn encode(&self) -> [u8; FULL_LEN] {
        let mut out = [0; FULL_LEN];
        let words = [self.stream, self.place, self.chunk, self.len];
        for (bytes, word) in out.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    pub fn decode(bytes: &[u8; FULL_LEN]) -> Full {
        let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|j| bytes[4 * i + j]));
        Full { stream: word(0), place: word(1), chunk: word(2), len: word(3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let full = Full { stream: 7, place: 1 << 20, chunk: 63, len: 131072 };
        assert_eq!(Full::decode(&full.encode()), full);
        let hello = Hello { name: vec![1, 2], buffers: vec![(5, 6)] };
        let heard = Hello::read(&mut &hello.encode()[..]).unwrap();
        assert_eq!((heard.remote(0).unwrap().key, heard.remote(1)), (6, None));
        assert_eq!(heard, hello);
        assert!(Hello::read(&mut &[255u8; 8][..]).is_err());
    }
}
