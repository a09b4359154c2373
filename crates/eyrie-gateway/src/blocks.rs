//! What goes over a line for images: blocks, each compressed where that is faster than the line.
//! A block is a head of 8 bytes and its content. The head has the length of the content and that of
//! what it stands for (u32, little-endian): these are the same where it is not compressed. It must
//! never hold more than one block, whatever the peer sends.

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// Most bytes that a block stands for.
pub const BLOCK: usize = 256 * 1024;
const HEAD_LEN: usize = 8;
/// Where compression has not paid off, it is tried again after so many blocks.
const TRY_AFTER: u32 = 32;
/// The share of the newest block in each rate.
const NEWEST: f64 = 0.25;

/// How fast blocks are compressed and how fast the line is, in seconds for a byte, and what is left
/// of a byte.
struct Rates {
    compress: f64,
    left: f64,
    line: f64,
    /// Blocks since compression was last tried.
    untried: u32,
}

impl Rates {
    fn new() -> Rates {
        Rates { compress: 0.0, left: 0.5, line: 0.0, untried: TRY_AFTER }
    }

    /// Whether the next block is to be compressed.
    fn is_worth_it(&self) -> bool {
        let pays_off = self.compress + self.left * self.line < self.line;
        let may_pay_off = self.compress < self.line && self.untried >= TRY_AFTER;
        pays_off || may_pay_off
    }

    fn compressed(&mut self, bytes: usize, left: usize, took: Duration) {
        let each = 1.0 / bytes as f64;
        self.compress += NEWEST * (took.as_secs_f64() * each - self.compress);
        self.left += NEWEST * (left as f64 * each - self.left);
        self.untried = 0;
    }

    fn sent(&mut self, bytes: usize, took: Duration) {
        self.line += NEWEST * (took.as_secs_f64() / bytes as f64 - self.line);
        self.untried = self.untried.saturating_add(1);
    }
}

/// Writes blocks.
pub struct Writer {
    rates: Rates,
    block: Vec<u8>,
}

impl Writer {
    pub fn new() -> Writer {
        Writer { rates: Rates::new(), block: Vec::new() }
    }

    /// Writes a block that stands for these bytes, [`BLOCK`] at most.
    ///
    /// # Errors
    /// Those of `line`.
    pub fn write(&mut self, bytes: &[u8], line: &mut impl Write) -> io::Result<()> {
        debug_assert!((1..=BLOCK).contains(&bytes.len()));
        let mut len = bytes.len();
        self.block.resize(HEAD_LEN + get_maximum_output_size(BLOCK), 0);
        if self.rates.is_worth_it() {
            let begun = Instant::now();
            let room = &mut self.block[HEAD_LEN..];
            len = compress_into(bytes, room).unwrap_or(len).min(bytes.len());
            self.rates.compressed(bytes.len(), len, begun.elapsed());
        }
        if len == bytes.len() {
            self.block[HEAD_LEN..HEAD_LEN + len].copy_from_slice(bytes);
        }
        self.block[..4].copy_from_slice(&(len as u32).to_le_bytes());
        self.block[4..HEAD_LEN].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        let begun = Instant::now();
        line.write_all(&self.block[..HEAD_LEN + len])?;
        self.rates.sent(HEAD_LEN + len, begun.elapsed());
        Ok(())
    }
}

/// Reads blocks.
#[derive(Default)]
pub struct Reader {
    content: Vec<u8>,
    bytes: Vec<u8>,
}

impl Reader {
    /// Reads a block: the bytes that it stands for; none at the end of the stream.
    ///
    /// # Errors
    /// Those of `line`; `InvalidData` when that is no block.
    pub fn read(&mut self, line: &mut impl Read) -> io::Result<&[u8]> {
        let mut head = [0; HEAD_LEN];
        // The stream may end before a block, and nowhere else.
        if line.read(&mut head[..1])? == 0 {
            return Ok(&[]);
        }
        line.read_exact(&mut head[1..])?;
        let [len, stands_for] = [&head[..4], &head[4..]]
            .map(|half| half.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)));
        if len == 0 || len > stands_for || stands_for > BLOCK {
            return Err(ErrorKind::InvalidData.into());
        }
        self.content.resize(len, 0);
        line.read_exact(&mut self.content)?;
        if len == stands_for {
            return Ok(&self.content);
        }
        self.bytes.resize(stands_for, 0);
        match decompress_into(&self.content, &mut self.bytes) {
            Ok(n) if n == stands_for => Ok(&self.bytes),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that takes so long for each write.
    struct Line(Vec<u8>, Duration);

    impl Write for Line {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            std::thread::sleep(self.1);
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn blocks() -> Vec<Vec<u8>> {
        let text: Vec<u8> = (0..BLOCK).map(|at| (at / 40) as u8).collect();
        let mut word = 7u64;
        let noise = (0..BLOCK).map(|_| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 56) as u8
        });
        vec![text.clone(), noise.collect(), text[..5].to_vec(), text]
    }

    fn read_all(mut bytes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut reader = Reader::default();
        let mut all = Vec::new();
        loop {
            match reader.read(&mut bytes)? {
                [] => return Ok(all),
                block => all.push(block.to_vec()),
            }
        }
    }

    #[test]
    fn what_is_written_is_read_however_fast_the_line_is() {
        for slow in [Duration::ZERO, Duration::from_millis(20)] {
            let mut line = Line(Vec::new(), slow);
            let mut writer = Writer::new();
            let all: Vec<Vec<u8>> = (0..4).flat_map(|_| blocks()).collect();
            for block in &all {
                writer.write(block, &mut line).unwrap();
            }
            assert_eq!(read_all(&line.0).unwrap(), all);
        }
    }

    #[test]
    fn a_block_is_compressed_where_that_is_faster_than_the_line() {
        let ms = Duration::from_millis;
        let mut rates = Rates::new();
        assert!(!rates.is_worth_it(), "nothing is known of the line");
        rates.sent(BLOCK, ms(20));
        assert!(rates.is_worth_it(), "it is to be tried");
        rates.compressed(BLOCK, BLOCK / 2, ms(1));
        rates.sent(BLOCK / 2, ms(10));
        assert!(rates.is_worth_it());
        for _ in 0..20 {
            rates.compressed(BLOCK, BLOCK, ms(1));
            rates.sent(BLOCK, ms(20));
        }
        assert!(!rates.is_worth_it(), "nothing is left out by it");
        for _ in 0..TRY_AFTER {
            rates.sent(BLOCK, ms(20));
        }
        assert!(rates.is_worth_it(), "it is tried again");
        for _ in 0..20 {
            rates.compressed(BLOCK, BLOCK / 2, ms(10));
            rates.sent(BLOCK / 2, ms(1));
        }
        assert!(!rates.is_worth_it(), "the line is faster");
    }

    #[test]
    fn what_is_no_block_is_refused() {
        let head =
            |len: u32, stands_for: u32| [len.to_le_bytes(), stands_for.to_le_bytes()].concat();
        for bad in [
            head(0, 0),
            head(0, 5),
            head(6, 5),
            head(BLOCK as u32 + 1, BLOCK as u32 + 1),
            head(u32::MAX, u32::MAX),
            [head(3, 5), vec![0xff; 3]].concat(),
            [head(5, 5), vec![1; 4]].concat(),
            head(5, 5)[..3].to_vec(),
        ] {
            assert!(read_all(&bad).is_err(), "{bad:?}");
        }
    }
}
