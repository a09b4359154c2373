//! Shared by the tests of stores as roles: an agent's side of a connection, addresses.
#![allow(dead_code)]

use eyrie_store::role::Config;
use eyrie_transport::{frame, role};
use eyrie_wire::auth::{Secret, SECRET_LEN};
use eyrie_wire::control::{Claim, ImageAnswer, ImageMeta};
use eyrie_wire::role_address::{Addr, Bind, Interface, Ports, Security};
use eyrie_wire::{ImageId, Rank, RankInstance};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::path::Path;

pub const SECRET: Secret = Secret([7; SECRET_LEN]);

pub fn sealed() -> Bind {
    let interface = Interface::LOOPBACK;
    let ports = Ports::ANY;
    Bind::Tcp { interface, ports, security: Security::Encrypted }
}

pub fn config(dir: &Path, listen: Bind) -> Config {
    Config { job: "the job".into(), dir: dir.into(), sync: false, listen }
}

/// Sends an image as an agent does, and returns the store's answer.
pub fn upload(
    store: &Addr,
    instance: RankInstance,
    image: u64,
    bytes: &[u8],
) -> io::Result<ImageAnswer> {
    upload_with(&SECRET, store, instance, image, bytes)
}

/// The same with another job's secret.
pub fn upload_with(
    secret: &Secret,
    store: &Addr,
    instance: RankInstance,
    image: u64,
    bytes: &[u8],
) -> io::Result<ImageAnswer> {
    let claim = Claim::ImageUpload { instance, image: ImageId(image) };
    let mut stream = role::connect(store, secret, &claim).map_err(io::Error::other)?;
    let stream_offsets = [image, 0, 0];
    let incarnation = instance.incarnation;
    let clock = 10 * image;
    let rsn = 100 * image;
    let meta = ImageMeta { incarnation, clock, rsn, stream_offsets, ..ImageMeta::default() };
    frame::write(&mut stream, &meta)?;
    stream.write_all(bytes)?;
    stream.shutdown(Shutdown::Write)?;
    frame::read(&mut stream)
}

/// Fetches an image as an agent does.
pub fn fetch(store: &Addr, rank: u32, image: u64) -> io::Result<Vec<u8>> {
    let claim = Claim::ImageFetch { rank: Rank(rank), image: ImageId(image), since: ImageId(0) };
    let mut stream = role::connect(store, &SECRET, &claim).map_err(io::Error::other)?;
    match frame::read(&mut stream)? {
        ImageAnswer::Stream(_) => {}
        other => return Err(io::Error::other(format!("{other:?}"))),
    }
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(bytes)
}
