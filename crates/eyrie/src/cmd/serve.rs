//! `eyrie serve`: the page on which jobs are watched, and acted on; and that of one job, which
//! `eyrie run --serve` starts beside it. Arguments and output; the page is in eyrie-page.

use super::Place;
use anyhow::Context;
use eyrie_cli::out;
use eyrie_exporter::listen::address;
use eyrie_page::{Page, Source, Token};
use eyrie_supervision::{dies_with_starter, in_own_session, own_command, with_no_signal_blocked};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{kill_process, nice, waitpid, Pid, Signal, WaitOptions};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

/// Show jobs on a page in the browser, and act on them there (docs/page.md)
///
/// Prints two addresses. Who has the one with the token can act: take checkpoints, move ranks,
/// drain nodes, stop the job. With the other one they can only look. Runs until it is interrupted;
/// jobs do not notice it.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// Where to listen; a port alone is loopback only, 0 is any free port
    #[arg(long, value_name = "[HOST:]PORT", default_value = USUAL_PORT, value_parser = address)]
    listen: SocketAddr,
    /// Show jobs by the files that `eyrie run --events FILE` writes, or has written, instead of
    /// those that run here
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "dir")]
    events: Vec<PathBuf>,
    /// The job that this process ends with; it listens at its standard input. Given by `eyrie run`
    #[arg(long, value_name = "NAME", conflicts_with_all = ["listen", "events"], hide = true)]
    beside: Option<String>,
    #[command(flatten)]
    place: Place,
}

pub fn run(args: ServeArgs) -> anyhow::Result<i32> {
    if let Some(job) = &args.beside {
        return beside(job, args.place.base()?);
    }
    let (source, token) = if args.events.is_empty() {
        (Source::Living(args.place.base()?), Some(Token::draw()))
    } else {
        (Source::Files(args.events), None)
    };
    let page = Page::open(args.listen, source, token.as_ref())?;
    let address = page.address()?;
    out::line(format_args!("to look:  http://{address}/"))?;
    if let Some(token) = &token {
        out::line(format_args!("to act:   http://{address}/#token={}", token.text()))?;
    }
    warn_of_others(address, "eyrie serve");
    page.serve()?;
    Ok(0)
}

fn warn_of_others(address: SocketAddr, who: &str) {
    if !address.ip().is_loopback() {
        out::say(format!(
            "{who}: other hosts can look. What goes over the network is not encrypted, the token \
             neither: better listen on loopback and use `ssh -L`"
        ));
    }
}

/// The port of a page whose address is not said.
pub const USUAL_PORT: &str = "9466";
/// By how much the page of a job stands back behind its ranks.
const NICE: i32 = 10;
/// How long the page of a job that has ended may take to tell those who look: it waits for the last
/// output itself, up to two seconds.
const LAST_NEWS: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(5);

/// The page of a job in the process that was started beside it.
fn beside(job: &str, base: PathBuf) -> anyhow::Result<i32> {
    // Where that is not allowed it has as much as others.
    let _ = nice(NICE);
    let listener = std::io::stdin().as_fd().try_clone_to_owned().map(TcpListener::from)?;
    let token = Token::draw();
    let page = Page::on(listener, base, &token)?;
    let address = page.address()?;
    out::say(format!("eyrie: to look:  http://{address}/job/{job}"));
    out::say(format!("eyrie: to act:   http://{address}/job/{job}#token={}", token.text()));
    warn_of_others(address, "eyrie");
    page.serve_job(job, || {
        // `eyrie run` may be gone.
        let _ = out::line("found");
    })?;
    Ok(0)
}

/// The process that serves the page of a job, and ends with it.
pub struct PageOfJob {
    pid: Pid,
    /// Where it says that it has found the job.
    found: ChildStdout,
}

impl PageOfJob {
    /// Listens there, and starts the process. To be called from the thread that lives longest: its
    /// end is what the process takes for that of `eyrie run`.
    ///
    /// # Errors
    /// When it cannot listen there, or the process cannot be made.
    pub fn start(listen: SocketAddr, job: &str, base: &Path) -> anyhow::Result<PageOfJob> {
        let listener = listen_at(listen)?;
        let mut command = own_command();
        command.args(["serve", "--beside", job, "--dir"]).arg(base);
        command.stdin(Stdio::from(OwnedFd::from(listener))).stdout(Stdio::piped());
        // The terminal's Ctrl-C reaches `eyrie run` alone.
        with_no_signal_blocked(in_own_session(&mut command));
        dies_with_starter(&mut command, Signal::KILL);
        let mut child = command.spawn().context("cannot start the page of the job")?;
        let found = child.stdout.take().context("the page of the job has no output")?;
        Ok(PageOfJob { pid: Pid::from_child(&child), found })
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The job has ended: the process ends as soon as those who look know it, within a bound; and
    /// at once when the job was over before the page has found it, which nothing would tell it.
    pub fn finish(self) {
        if !is_readable(&self.found) {
            return;
        }
        let until = Instant::now() + LAST_NEWS;
        while !self.has_ended() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }

    fn has_ended(&self) -> bool {
        // Another part of this process may have waited for all of its children.
        !matches!(waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(None))
    }
}

/// Whether something can be read there, or the other end is closed.
fn is_readable(from: &impl AsFd) -> bool {
    let mut one = [PollFd::new(from, PollFlags::IN)];
    poll(&mut one, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Listens there. Where the usual port is taken, by another job as a rule, any is as good.
fn listen_at(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    let failed = |e: &std::io::Error| {
        format!("cannot listen at {listen}: {e}; choose another port with --serve=PORT")
    };
    match TcpListener::bind(listen) {
        Ok(listener) => Ok(listener),
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && is_usual(listen) => {
            let free = SocketAddr::new(listen.ip(), 0);
            TcpListener::bind(free).with_context(|| failed(&e))
        }
        Err(e) => Err(anyhow::Error::msg(failed(&e))),
    }
}

fn is_usual(listen: SocketAddr) -> bool {
    listen.ip().is_loopback() && USUAL_PORT.parse::<u16>() == Ok(listen.port())
}

impl Drop for PageOfJob {
    fn drop(&mut self) {
        if !self.has_ended() {
            // It was not reaped, so that the number is its own.
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}
