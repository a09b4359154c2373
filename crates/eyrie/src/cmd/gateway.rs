//! The gateway of a domain, tried on its own host: a process there listens as the gateway would and
//! connects to others, as `eyrie check` tells it over its standard input. Keys go no other way. It
//! must not outlive the check: it ends with its standard input, and after a bound by itself. The
//! same process measures the ways between hosts whose network is not known.

use crate::cmd::domains::this_version;
use anyhow::{bail, Context};
use eyrie_controller::runtime::is_here;
use eyrie_gateway::trial::{self, Reached, Unreached};
use eyrie_host::shell::{self, quoted};
use eyrie_supervision::in_own_session;
use eyrie_transport::frame;
use eyrie_wire::domains::LineKey;
use eyrie_wire::DomainId;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The words of the trial, behind those of all trials.
pub const TRIAL: [&str; 3] = ["check", "--trial", "gateway"];
/// Longest that the process may be there.
const LONGEST: Duration = Duration::from_secs(20 * 60);
/// How long ssh may take to reach a host, in seconds.
const CONNECT_TIMEOUT_S: u32 = 10;
/// Most bytes of what it says on standard error that are kept.
const KEPT: usize = 64 * 1024;

/// What a gateway is to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Listen for those who prove one of these keys.
    Listen { port: u16, keys: Vec<(DomainId, LineKey)> },
    /// Connect to another one, as the gateway of the domain `own`.
    Reach { own: DomainId, address: String, key: LineKey },
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Told {
    /// It listens, or cannot.
    Listens(Result<Listening, String>),
    Reached(Result<Reached, Unreached>),
}

/// A gateway that listens.
#[derive(Debug, Serialize, Deserialize)]
pub struct Listening {
    /// Its clock, nanoseconds since 1970.
    pub clock: u64,
    pub port: u16,
    /// The addresses from which and by which ssh has reached its host, if it did.
    pub called: Option<(IpAddr, IpAddr)>,
}

/// The trial's own process, on the host of that name: it becomes the ssh to that host where this is
/// another one.
///
/// # Errors
/// When what comes is not understood.
pub fn serve(host: Option<&OsStr>) -> anyhow::Result<()> {
    let other = host.map(OsStr::to_string_lossy).filter(|name| !is_here(name));
    if let Some(host) = other {
        let mut command = OsString::from("exec ");
        command.push(words(None)?);
        let mut ssh = shell::ssh("ssh".as_ref(), CONNECT_TIMEOUT_S, &host);
        return Err(ssh.arg(command).exec()).context("ssh cannot be run");
    }
    std::thread::spawn(|| {
        std::thread::sleep(LONGEST);
        std::process::exit(1);
    });
    let mut input = io::stdin().lock();
    let theirs: String = frame::read(&mut input).context("a trial of `eyrie check --domains`")?;
    let ours = this_version();
    if theirs != ours {
        bail!("this is Eyrie {ours}, and the check is of Eyrie {theirs}: install that one here");
    }
    let mut output = io::stdout().lock();
    // Its end is the check's.
    while let Ok(asked) = frame::read(&mut input) {
        frame::write(&mut output, &answer(asked))?;
        output.flush()?;
    }
    Ok(())
}

fn answer(asked: Ask) -> Told {
    match asked {
        Ask::Listen { port, keys } => {
            let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let clock = u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX);
            let why = |e: io::Error| match e.kind() {
                io::ErrorKind::AddrInUse => format!("port {port} is taken"),
                _ => e.to_string(),
            };
            let listening = |port| Listening { clock, port, called: called() };
            Told::Listens(trial::listen(port, keys).map(listening).map_err(why))
        }
        Ask::Reach { own, address, key } => Told::Reached(trial::reach(&address, own, &key)),
    }
}

/// The addresses of the connection by which ssh has started this process.
fn called() -> Option<(IpAddr, IpAddr)> {
    let said = std::env::var("SSH_CONNECTION").ok()?;
    let mut words = said.split(' ');
    let from = words.next()?.parse().ok()?;
    let to = words.nth(1)?.parse().ok()?;
    Some((from, to))
}

/// The words by which a shell starts the trial on a host; `None`: where the shell is.
fn words(host: Option<&str>) -> anyhow::Result<OsString> {
    let eyrie = std::env::current_exe().context("cannot find the eyrie command itself")?;
    let args = TRIAL.iter().copied().chain(host).map(OsStr::new);
    Ok(shell::words([eyrie.as_os_str()].into_iter().chain(args)))
}

/// The command that starts the trial on the host of a gateway, as its site calls it. `via`: the ssh
/// destination of the site; `None`: this is the site.
///
/// # Errors
/// When this process cannot say what it is.
pub fn command(via: Option<&str>, host: &str) -> anyhow::Result<Command> {
    let Some(via) = via else {
        let eyrie = std::env::current_exe().context("cannot find the eyrie command itself")?;
        let mut command = Command::new(eyrie);
        command.args(TRIAL).arg(host);
        return Ok(command);
    };
    let mut line = OsString::from("exec ");
    if let Some(path) = std::env::var_os("PATH") {
        // By it ssh is found there, as where this command checks hosts.
        line.push("env ");
        let mut variable = OsString::from("PATH=");
        variable.push(path);
        line.push(quoted(&variable));
        line.push(" ");
    }
    line.push(words(Some(host))?);
    let mut command = shell::ssh("ssh".as_ref(), CONNECT_TIMEOUT_S, via);
    command.arg(line);
    Ok(command)
}

/// A trial that was started. Dropping it ends it.
pub struct Gateway {
    child: Child,
    to: ChildStdin,
    answers: Receiver<io::Result<Told>>,
    said: Arc<Mutex<String>>,
}

impl Gateway {
    /// Starts it.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub fn start(mut command: Command) -> io::Result<Gateway> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = in_own_session(&mut command).spawn()?;
        let (Some(mut to), Some(mut from), Some(mut errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (sender, answers) = channel();
        std::thread::spawn(move || loop {
            let told = frame::read(&mut from);
            let is_over = told.is_err();
            if sender.send(told).is_err() || is_over {
                return;
            }
        });
        let said = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&said);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = errors.read(&mut piece) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() < KEPT {
                    kept.push_str(&String::from_utf8_lossy(&piece[..n]));
                }
            }
        });
        // That it has ended is seen by its answer.
        let _ = frame::write(&mut to, &this_version()).and_then(|()| to.flush());
        Ok(Gateway { child, to, answers, said })
    }

    /// Asks it something, and waits for the answer.
    ///
    /// # Errors
    /// When it has ended: with its last words; or when it does not answer in time.
    pub fn ask(&mut self, ask: &Ask, within: Duration) -> Result<Told, String> {
        // As above.
        let _ = frame::write(&mut self.to, ask).and_then(|()| self.to.flush());
        match self.answers.recv_timeout(within) {
            Ok(Ok(told)) => Ok(told),
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => Err(self.last_words()),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("no answer within {}", eyrie_units::time(within)))
            }
        }
    }

    fn last_words(&mut self) -> String {
        // What it has said is all there when it has ended; that is bounded by the next kill.
        let _ = eyrie_supervision::has_ended_within(&self.child, Duration::from_secs(2));
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        let last = last.unwrap_or("it has ended without a word").trim();
        last.strip_prefix("eyrie: ").unwrap_or(last).to_string()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // One that has ended already is reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
