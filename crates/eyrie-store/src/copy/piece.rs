//! The pieces of a copy: a length and that many bytes, or the reason why no more pieces follow.

use eyrie_transport::frame;
use std::io::{self, Read, Write};

/// Longest piece of chunks in bytes. Any chunk fits into it.
pub const MAX_PIECE: usize = 1 << 20;
const _: () = assert!(MAX_PIECE >= crate::chunk::MAX_CHUNK);
/// Bytes of a piece's length.
pub const HEAD: usize = 4;

/// Fills in the length at the beginning of a piece and writes it.
pub fn write_piece(out: &mut impl Write, piece: &mut [u8]) -> io::Result<()> {
    let len = (piece.len() - HEAD) as u32;
    piece[..HEAD].copy_from_slice(&len.to_le_bytes());
    out.write_all(piece)
}

/// Writes the reason why no more pieces follow.
pub fn write_refusal(out: &mut impl Write, reason: &str) -> io::Result<()> {
    out.write_all(&[0; HEAD])?;
    frame::write(out, &reason)
}

/// Reads the length of a piece. The inner `Err` is the reason why no more pieces follow.
pub fn read_head(input: &mut impl Read) -> io::Result<Result<usize, String>> {
    let mut head = [0; HEAD];
    input.read_exact(&mut head)?;
    Ok(match u32::from_le_bytes(head) {
        0 => Err(frame::read(input)?),
        len => Ok(len as usize),
    })
}
