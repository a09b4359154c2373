//! The client of a running monitor: HTTP over its socket or its port, one request for each
//! connection, with a bound.

use anyhow::{bail, Context};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);

/// The place where a monitor answers.
pub enum Place {
    Port(String),
    Socket(PathBuf),
}

/// Sends a request for `path`, and writes the answer to `out`.
///
/// # Errors
/// When no monitor answers there, or it refuses.
pub fn get(place: &Place, path: &str, out: &mut impl Write) -> anyhow::Result<()> {
    match place {
        Place::Port(address) => {
            let address = eyrie_exporter::listen::address(address).map_err(anyhow::Error::msg)?;
            let stream = TcpStream::connect_timeout(&address, PATIENCE).with_context(|| {
                format!("no monitor answers at {address}: was it started with --listen?")
            })?;
            stream.set_read_timeout(Some(PATIENCE))?;
            exchange(stream.try_clone()?, stream, path, out)
        }
        Place::Socket(socket) => {
            let stream = UnixStream::connect(socket)
                .with_context(|| format!("no monitor answers at {}", socket.display()))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            exchange(stream.try_clone()?, stream, path, out)
        }
    }
}

fn exchange(
    mut to: impl Write,
    from: impl Read,
    path: &str,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    // In version 1.0 the answer ends with the connection.
    write!(to, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut from = BufReader::new(from);
    let mut status = String::new();
    from.read_line(&mut status).context("the monitor did not answer")?;
    let mut header = String::new();
    while from.read_line(&mut header)? > 2 {
        header.clear();
    }
    if status.split(' ').nth(1) != Some("200") {
        let mut why = String::new();
        from.take(1000).read_to_string(&mut why)?;
        bail!("the monitor refused: {}", why.trim());
    }
    std::io::copy(&mut from, out)?;
    Ok(())
}

/// The socket of the monitor with this process number.
pub fn socket(base: &Path, pid: u32) -> PathBuf {
    base.join(format!("monitor-{pid}.sock"))
}

/// The monitors of this user that answer, by process number. Sockets of dead monitors are removed.
pub fn living(base: &Path) -> Vec<u32> {
    let number = |entry: std::fs::DirEntry| -> Option<u32> {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.strip_prefix("monitor-")?.strip_suffix(".sock")?.parse().ok()
    };
    let mut all: Vec<u32> =
        std::fs::read_dir(base).into_iter().flatten().flatten().filter_map(number).collect();
    all.retain(|pid| match UnixStream::connect(socket(base, *pid)) {
        Ok(_) => true,
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
            let _ = std::fs::remove_file(socket(base, *pid));
            false
        }
        Err(_) => false,
    });
    all.sort_unstable();
    all
}
