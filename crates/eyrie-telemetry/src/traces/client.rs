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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

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
    pub fn new(failure: Arc<FailureNotice>) -> std::io::Result<Client> {
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
    // An address of IPv6 has brackets.
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer, or with the runtime.
    tokio::spawn(connection);
    let answer = sender.send_request(Request::from_parts(head, Full::new(body))).await?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, LONGEST).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}
