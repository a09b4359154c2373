//! Sends a request to the collector over HTTP, within a bound. That it does not get there is said
//! once.

use super::collector::Collector;
use crate::named::Say;
use async_trait::async_trait;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longest answer in bytes.
const LONGEST: usize = 1 << 20;

/// Says once that traces do not arrive.
pub struct FailureNotice {
    to: Collector,
    say: Say,
    is_said: AtomicBool,
}

impl FailureNotice {
    pub fn new(to: Collector, say: Say) -> FailureNotice {
        FailureNotice { to, say, is_said: AtomicBool::new(false) }
    }

    pub fn say_once(&self, why: impl fmt::Display) {
        if !self.is_said.swap(true, Ordering::Relaxed) {
            let to = &self.to;
            (self.say)(&format!("traces do not reach {to}: {why}; the job goes on without them"));
        }
    }
}

/// Sends to one collector.
pub struct Client {
    failure: Arc<FailureNotice>,
    /// Its own: what sends is a plain thread.
    runtime: Runtime,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.failure.to).finish()
    }
}

impl Client {
    /// # Errors
    /// When the system gives no descriptors.
    pub fn new(failure: Arc<FailureNotice>) -> io::Result<Client> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Client { failure, runtime })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.runtime.block_on(async {
            match tokio::time::timeout(PATIENCE, exchange(request)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("no answer within {}", eyrie_units::time(PATIENCE)).into()),
            }
        });
        match &sent {
            Ok(answer) if answer.status().is_success() => {}
            Ok(answer) => self.failure.say_once(format_args!("it answers {}", answer.status())),
            Err(e) => self.failure.say_once(e),
        }
        sent
    }
}

async fn exchange(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let (mut head, body) = request.into_parts();
    let authority = head.uri.authority().ok_or("the address has no host")?.clone();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    head.uri = path;
    head.headers.insert(HOST, authority.as_str().parse()?);
    let stream = connect(authority.host(), authority.port_u16().unwrap_or(80)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer, or with the runtime.
    tokio::spawn(connection);
    let answer = sender.send_request(Request::from_parts(head, Full::new(body))).await?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, LONGEST).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    // An address of IPv6 has brackets.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = match host.parse() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => look_up(host.to_string(), port).await?,
    };
    TcpStream::connect(&*addresses).await
}

/// The addresses of a host by its name. The thread is not tokio's: that one ends the process, which
/// the job's controller is in, where the system gives no thread.
async fn look_up(host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    let (found, answer) = oneshot::channel();
    std::thread::Builder::new().spawn(move || {
        let addresses = (host.as_str(), port).to_socket_addrs();
        // It may be waited for no more.
        let _ = found.send(addresses.map(Vec::from_iter));
    })?;
    answer.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    #[test]
    fn a_collector_is_reached_by_its_name_without_a_thread_of_tokio() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        // The only one is taken.
        let (free, taken) = channel::<()>();
        runtime.spawn_blocking(move || taken.recv());
        let connected = runtime.block_on(async {
            for host in ["localhost", "127.0.0.1"] {
                let connected = tokio::time::timeout(PATIENCE, connect(host, port)).await;
                connected.unwrap_or_else(|_| panic!("{host} is not found")).unwrap();
            }
            connect("nowhere.invalid", port).await
        });
        assert!(connected.is_err());
        drop(free);
    }
}
