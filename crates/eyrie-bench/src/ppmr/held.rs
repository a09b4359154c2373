//! A rank on a node: started or restored there, controlled by lines, ended with its node.

use anyhow::{bail, Context};
use eyrie_image::restore;
use eyrie_supervision::dies_with_starter;
use rustix::process::Signal;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::Child;

use crate::ppmr::process::{pipe, rank};
use crate::ppmr::task::Work;

pub struct HeldRank {
    child: Child,
    orders: File,
    said: BufReader<File>,
}

impl HeldRank {
    /// Starts a rank, which begins to fill its memory.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(work: &Work, number: u32) -> anyhow::Result<HeldRank> {
        let (input, orders) = pipe()?;
        let (said, output) = pipe()?;
        let child = rank(work, number).stdin(input).stdout(output).spawn();
        let child = child.context("a rank cannot be started")?;
        Ok(HeldRank { child, orders, said: BufReader::new(said) })
    }

    /// Restores a rank from its image in a file or pipe.
    ///
    /// # Errors
    /// When the restorer cannot be started.
    pub fn restore(image: File) -> anyhow::Result<HeldRank> {
        let (input, orders) = pipe()?;
        let (said, output) = pipe()?;
        let error = std::io::stderr();
        let slots = [Some(input.as_fd()), Some(output.as_fd()), Some(error.as_fd())];
        let mut command = restore::command(image.as_fd(), &slots, &[])?;
        dies_with_starter(&mut command, Signal::KILL);
        let child = command.spawn().context("cannot start the restorer")?;
        Ok(HeldRank { child, orders, said: BufReader::new(said) })
    }

    /// Waits until the rank writes this line.
    ///
    /// # Errors
    /// When it writes something else, or ends.
    pub fn expect_line(&mut self, expected: &str) -> anyhow::Result<()> {
        let line = self.line()?;
        if line == expected {
            return Ok(());
        }
        bail!("a rank has written {line:?}, not {expected:?} ({})", self.child.wait()?)
    }

    /// Sends it a line: to go on, or the file for its image.
    ///
    /// # Errors
    /// When it has ended.
    pub fn send_line(&mut self, line: &str) -> anyhow::Result<()> {
        self.orders.write_all(format!("{line}\n").as_bytes()).context("a rank has ended")
    }

    /// Waits for its end, which comes when it has written its image or its result.
    ///
    /// # Errors
    /// When it fails.
    pub fn ended(&mut self) -> anyhow::Result<()> {
        match self.child.wait()? {
            status if status.success() => Ok(()),
            status => bail!("a rank has failed ({status})"),
        }
    }

    /// Waits for its result, and for its end.
    ///
    /// # Errors
    /// When it fails.
    pub fn result(&mut self) -> anyhow::Result<String> {
        let result = self.line()?;
        self.ended()?;
        Ok(result)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line.trim_end().to_string())
    }
}
