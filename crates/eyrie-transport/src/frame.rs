//! The framing of control messages: a length and a payload. A length beyond the bound or a payload
//! that does not decode ends the connection.

use serde::{de::DeserializeOwned, Serialize};
use std::io::{self, Read, Write};

/// Longest payload of a control frame in bytes.
pub const MAX_FRAME: usize = 4 << 20;

fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes one message as a frame.
///
/// # Errors
/// The writer's, and `InvalidData` when the message is longer than [`MAX_FRAME`].
pub fn write<T: Serialize>(out: &mut impl Write, message: &T) -> io::Result<()> {
    let mut bytes = postcard::to_extend(message, vec![0u8; 4]).map_err(invalid)?;
    let len = bytes.len() - 4;
    if len > MAX_FRAME {
        return Err(invalid("control message too long"));
    }
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    out.write_all(&bytes)
}

/// Reads one message.
///
/// # Errors
/// The reader's; `InvalidData` for a length beyond the bound or a payload that does not decode.
pub fn read<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<T> {
    decode(&read_payload(input)?)
}

/// Reads the payload of a frame.
///
/// # Errors
/// The reader's; `InvalidData` for a length beyond the bound.
pub fn read_payload(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_piece(input, &mut bytes)?;
    Ok(bytes)
}

/// Appends the payload of a frame to `bytes` and returns its length.
fn read_piece(input: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let mut len = [0u8; 4];
    input.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_FRAME {
        return Err(invalid("control frame too long"));
    }
    // Grows with what arrives, not with what the length promises.
    let read = input.take(len as u64).read_to_end(bytes)?;
    if read < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(len)
}

/// Longest message that is sent in pieces, in bytes.
pub const MAX_LONG: usize = 1 << 30;

/// Encodes a message as frames of at most [`MAX_FRAME`] bytes each, for messages that may be
/// longer, between roles that trust each other.
///
/// # Errors
/// `InvalidData` when the message is longer than [`MAX_LONG`].
pub fn encode_long<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let bytes = postcard::to_stdvec(message).map_err(invalid)?;
    if bytes.len() > MAX_LONG {
        return Err(invalid("message too long"));
    }
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / MAX_FRAME * 4 + 8);
    let mut pieces = bytes.chunks(MAX_FRAME).peekable();
    loop {
        let piece = pieces.next().unwrap_or(&[]);
        out.extend((piece.len() as u32).to_le_bytes());
        out.extend(piece);
        // A piece that is not full is the last one.
        if piece.len() < MAX_FRAME {
            return Ok(out);
        }
    }
}

/// Reads a message that [`encode_long`] encoded.
///
/// # Errors
/// As [`read`].
pub fn read_long<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<T> {
    decode(&read_long_payload(input)?)
}

/// Reads the payload of a message that [`encode_long`] encoded.
///
/// # Errors
/// The reader's; `InvalidData` for a length beyond the bound.
pub fn read_long_payload(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while read_piece(input, &mut bytes)? == MAX_FRAME {
        if bytes.len() > MAX_LONG {
            return Err(invalid("message too long"));
        }
    }
    Ok(bytes)
}

/// Decodes the message of a payload.
///
/// # Errors
/// `InvalidData` when the payload is not such a message.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> io::Result<T> {
    postcard::from_bytes(payload).map_err(invalid)
}

/// The message at the start of `bytes` and the length of its frame; `None` while it is incomplete.
///
/// # Errors
/// As [`read`].
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<Option<(T, usize)>> {
    let Some(head) = bytes.first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*head) as usize;
    if len > MAX_FRAME {
        return Err(invalid("control frame too long"));
    }
    let Some(payload) = bytes.get(4..4 + len) else { return Ok(None) };
    Ok(Some((postcard::from_bytes(payload).map_err(invalid)?, 4 + len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_sent_in_pieces() {
        for len in [0, 1, MAX_FRAME - 4, MAX_FRAME, 2 * MAX_FRAME + 1] {
            let message: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let bytes = encode_long(&message).unwrap();
            let mut input = [&bytes[..], b"next"].concat();
            let mut rest = &input[..];
            assert_eq!(read_long::<Vec<u8>>(&mut rest).unwrap(), message);
            assert_eq!(rest, b"next");
            assert!(read_long::<Vec<u8>>(&mut &bytes[..bytes.len() - 1]).is_err());
            input[..4].copy_from_slice(&(MAX_FRAME as u32 + 1).to_le_bytes());
            assert!(read_long::<Vec<u8>>(&mut &input[..]).is_err());
        }
    }

    #[test]
    fn messages_come_back_and_other_bytes_are_refused() {
        let message = ("text".to_string(), vec![1u64, 2, 3]);
        let mut bytes = Vec::new();
        write(&mut bytes, &message).unwrap();
        assert_eq!(read::<(String, Vec<u64>)>(&mut &bytes[..]).unwrap(), message);
        for cut in 0..bytes.len() {
            assert_eq!(parse::<(String, Vec<u64>)>(&bytes[..cut]).unwrap(), None);
            assert!(read::<(String, Vec<u64>)>(&mut &bytes[..cut]).is_err());
        }
        bytes.extend(b"next");
        let (back, len) = parse::<(String, Vec<u64>)>(&bytes).unwrap().unwrap();
        assert_eq!((back, len), (message, bytes.len() - 4));
        bytes[..4].copy_from_slice(&(MAX_FRAME as u32 + 1).to_le_bytes());
        assert!(parse::<(String, Vec<u64>)>(&bytes).is_err());
        assert!(write(&mut Vec::new(), &vec![0u8; MAX_FRAME + 1]).is_err());
    }
}
