//! Making connections: looking up a name, connecting and the handshake take their time, so threads
//! of their own do it, and the loop never waits for them. Each attempt has a bound.

use crate::preamble::Preamble;
use crossbeam_channel::{Receiver, Sender};
use eyrie_transport::handshake;
use eyrie_transport::Stream;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::role_address::{Addr, Security};
use rustix::net::sockopt;
use std::io::{self, Write};
use std::net::ToSocketAddrs;
use std::os::fd::AsFd;
use std::time::Duration;

/// How long each step may take.
pub const STEP: Duration = Duration::from_secs(5);
/// A line is lost when the other host does not answer, or takes nothing, for this long.
const LINE_TIMEOUT: Duration = Duration::from_secs(6);
/// The same of a connection with an image: stores wait for each other for as long.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// Where to connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A router of this domain.
    Home(Addr),
    /// The gateway of another domain, by `HOST:PORT`.
    Line { gateway: String, preamble: Preamble },
}

/// A connection to be made; `id` names it in the answer.
pub struct Call<Id> {
    pub id: Id,
    pub target: Target,
    pub secret: Secret,
    pub claim: Claim,
}

/// What came of a call.
pub struct Answer<Id> {
    pub id: Id,
    pub target: Target,
    pub stream: Result<Stream, String>,
}

/// Starts threads that make connections, and give each with `answer`. They end when no one can ask
/// them any more.
///
/// # Errors
/// When a thread cannot be started.
pub fn start<Id: Send + 'static>(
    threads: usize,
    answer: impl Fn(Answer<Id>) + Clone + Send + 'static,
) -> io::Result<Sender<Call<Id>>> {
    let (calls, pending) = crossbeam_channel::unbounded();
    for _ in 0..threads {
        let pending: Receiver<Call<Id>> = pending.clone();
        let answer = answer.clone();
        let serve = move || {
            for Call { id, target, secret, claim } in pending {
                let stream = connect(&target, &secret, &claim);
                answer(Answer { id, target, stream });
            }
        };
        std::thread::Builder::new().name("gateway-dial".into()).spawn(serve)?;
    }
    Ok(calls)
}

fn connect(target: &Target, secret: &Secret, claim: &Claim) -> Result<Stream, String> {
    let mut stream = match target {
        Target::Home(addr) => Stream::connect(addr, STEP).map_err(|e| e.to_string())?,
        Target::Line { gateway, preamble } => {
            let mut stream = connect_line(gateway).map_err(|e| e.to_string())?;
            stream.write_all(&preamble.encode()).map_err(|e| e.to_string())?;
            stream
        }
    };
    handshake::connect(&mut stream, secret, claim).map_err(|e| e.to_string())?;
    Ok(stream)
}

/// Connects to the gateway of another domain, by `HOST:PORT`.
///
/// # Errors
/// When it cannot be reached.
pub fn connect_line(gateway: &str) -> io::Result<Stream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for at in gateway.to_socket_addrs()? {
        match Stream::connect(&Addr::Tcp { at, security: Security::Encrypted }, STEP) {
            Ok(stream) => return prepare_line(&stream).map(|()| stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// An image goes over this line from now on.
///
/// # Errors
/// When the kernel refuses it.
pub fn prepare_image(line: &impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_user_timeout(line, IMAGE_TIMEOUT.as_millis() as u32)?)
}

/// Has the kernel find out soon that the other host of a line is gone.
///
/// # Errors
/// When the kernel refuses it.
pub fn prepare_line(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_user_timeout(socket, LINE_TIMEOUT.as_millis() as u32)?;
    sockopt::set_tcp_keepidle(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
    Ok(())
}
