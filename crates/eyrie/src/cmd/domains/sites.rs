//! The controllers of the other domains, as the command has them that starts the job: an ssh for
//! each, which brings its output back, and whose end is watched. They end by what the domains tell
//! each other; only what has not ended within a bound is left behind, and said.

use super::order::{self, Order, Told};
use super::output;
use anyhow::Context;
use eyrie_cli::out;
use eyrie_controller::domains::file::Via;
use eyrie_controller::runtime::{self, Beside, Stop};
use eyrie_host::shell::{self, quoted};
use eyrie_supervision::{in_own_session, with_no_signal_blocked};
use eyrie_transport::frame;
use rustix::process::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long ssh may take to reach a site, in seconds.
const CONNECT_TIMEOUT_S: u32 = 30;
/// A connection that is silent for this many minutes ends: lines between sites break.
const SILENT_MINUTES: u32 = 30;
/// How much waits for a site which is not reached, mostly signals.
const MAX_TOLD: usize = 64;
/// How long after the end of another domain's controller the job may end by what that has told:
/// when it has ended well, with an error, and when it was not started.
const GRACE: Duration = Duration::from_secs(15);
const GRACE_OF_ERROR: Duration = Duration::from_secs(5);
const GRACE_OF_NONE: Duration = Duration::from_secs(1);
/// What ssh ends with when it is ssh that has failed, and the shell that it starts when there is no
/// such command or directory.
const SSH_FAILED: i32 = 255;
const NOT_FOUND: [i32; 2] = [126, 127];
/// How long the controllers of other domains may take to end after the job has ended here, until it
/// is said; how long when it has ended well, since what their ranks have printed may be on a line
/// that is broken; and how long once their connections are closed.
const END_TIMEOUT: Duration = Duration::from_secs(25);
const OUTPUT_OF_ALL_TIMEOUT: Duration = Duration::from_secs(16 * 60);
const CLOSED_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the rest of what they have printed may take.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// A site that is to be started.
pub struct Site {
    pub via: Via,
    pub order: Order,
}

/// The words of the command that a site's shell runs, but for the order.
pub struct Command {
    pub eyrie: PathBuf,
    /// The arguments of this command, `--domains FILE` among them.
    pub args: Vec<OsString>,
    /// How many of the last ones are the program's.
    pub program: usize,
    pub cwd: PathBuf,
}

impl Command {
    /// What the shell of a site runs to be a domain's controller.
    fn at(&self, name: &str) -> OsString {
        let mut line = OsString::from("cd ");
        line.push(quoted(self.cwd.as_os_str()));
        // As where the shell does not find a command.
        line.push(" || exit 127; exec ");
        line.push(quoted(self.eyrie.as_os_str()));
        for word in of_domain(&self.args, self.program, name) {
            line.push(" ");
            line.push(quoted(&word));
        }
        line
    }
}

/// These arguments with `--domains - --as NAME` in place of `--domains FILE`.
fn of_domain(args: &[OsString], program: usize, name: &str) -> Vec<OsString> {
    let end = args.len().saturating_sub(program);
    let is_it =
        |arg: &OsString| arg == "--domains" || arg.as_encoded_bytes().starts_with(b"--domains=");
    let Some(at) = args[..end].iter().position(is_it) else { return args.to_vec() };
    let after = if args[at] == "--domains" { at + 2 } else { at + 1 };
    let ours = ["--domains", "-", "--as", name].map(OsString::from);
    args[..at].iter().chain(&ours).chain(args.iter().skip(after)).cloned().collect()
}

/// The domain of a controller, and where it was started.
struct Place {
    name: String,
    destination: String,
}

/// The controller of a domain that was started.
struct Started {
    place: Arc<Place>,
    child: Child,
    output: [JoinHandle<()>; 2],
}

impl Started {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

/// Where goes what sites are told, a queue for each. When there is none any more, their lines end.
type Queues = Arc<Mutex<Vec<SyncSender<Told>>>>;

/// The controllers of the other domains.
pub struct Sites {
    started: Vec<Started>,
    /// Orders that lie in files for the user, who starts these.
    files: Vec<PathBuf>,
    told: Queues,
    /// A signal has come that asks for the end.
    asked: Arc<AtomicBool>,
    /// Its end says that the job has ended here.
    over: Option<Sender<()>>,
    watching: Option<JoinHandle<HashMap<Pid, i32>>>,
}

impl Sites {
    /// Starts them, and says what the job is to know of them. `ssh`: the command that takes ssh's
    /// arguments.
    ///
    /// # Errors
    /// When a process cannot be made, or a file not written.
    pub fn start(
        sites: Vec<Site>,
        command: &Command,
        ssh: &OsStr,
    ) -> anyhow::Result<(Sites, Beside)> {
        let (stop, stops) = channel();
        let mut all = Sites {
            started: Vec::new(),
            files: Vec::new(),
            told: Arc::default(),
            asked: Arc::default(),
            over: None,
            watching: None,
        };
        for Site { via, order } in sites {
            match via {
                Via::Here => {}
                Via::Ssh(destination) => {
                    let (told, to_tell) = sync_channel(MAX_TOLD);
                    let words = (destination.as_str(), command.at(order.part.name()));
                    all.started.push(start(order, ssh, words, to_tell, &stop)?);
                    lock(&all.told).push(told);
                }
                Via::Manual => {
                    let name = format!("eyrie-{}-{}.order", order.part.job, order.part.name());
                    let file = command.cwd.join(name);
                    by_hand(&order, &file, &command.at(order.part.name()))?;
                    all.files.push(file);
                }
            }
        }
        let places: HashMap<Pid, Arc<Place>> =
            all.started.iter().map(|site| (site.pid(), Arc::clone(&site.place))).collect();
        let spared = places.keys().copied().collect();
        let (ended, ends) = channel();
        let (over, is_over) = channel();
        all.over = Some(over);
        all.watching = Some(std::thread::spawn(move || watch(&places, &ends, &is_over, &stop)));
        pass_signals(Arc::clone(&all.told), Arc::clone(&all.asked));
        Ok((all, Beside { spared, ended, stops }))
    }

    /// The job has ended here, with this code. Waits for the ends of the others; returns the exit
    /// code.
    pub fn finish(mut self, code: i32) -> i32 {
        self.over = None;
        let codes = self.watching.take().and_then(|watching| watching.join().ok());
        let mut codes = codes.unwrap_or_default();
        self.asked.store(false, Ordering::Relaxed);
        if code != 0 {
            for site in lock(&self.told).iter() {
                // One that is not reached finds out by the end of its line.
                let _ = site.try_send(Told::Ended { code });
            }
        }
        let mut have_ended = self.await_ends(END_TIMEOUT, &mut codes);
        if !have_ended && code == 0 {
            self.say_of_living(&codes, "what is printed there may be on its way; Ctrl-C ends that");
            have_ended = self.await_ends(OUTPUT_OF_ALL_TIMEOUT, &mut codes);
        }
        if !have_ended {
            self.say_of_living(&codes, "the connection to it is closed");
            // They find out that the line to them has ended.
            lock(&self.told).clear();
            self.await_ends(CLOSED_TIMEOUT, &mut HashMap::new());
        }
        for site in &mut self.started {
            // What has ended meanwhile is gone, or is reaped here.
            let _ = site.child.kill();
            let _ = site.child.wait();
        }
        let until = Instant::now() + OUTPUT_TIMEOUT;
        let has_said_all = |site: &Started| site.output.iter().all(|output| output.is_finished());
        while !self.started.iter().all(has_said_all) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        match code {
            0 => codes.into_values().find(|code| *code != 0).unwrap_or(0),
            code => code,
        }
    }

    /// Says of those that have not ended that it is so, and what follows.
    fn say_of_living(&self, codes: &HashMap<Pid, i32>, what: &str) {
        for site in self.living(codes) {
            let name = &site.place.name;
            out::say(format!("eyrie: domain {name}: its controller has not ended yet: {what}"));
        }
    }

    fn living<'a>(&'a self, codes: &'a HashMap<Pid, i32>) -> impl Iterator<Item = &'a Started> {
        self.started.iter().filter(|site| !codes.contains_key(&site.pid()))
    }

    /// Whether all have ended within this time, and before a signal asks not to wait.
    fn await_ends(&mut self, within: Duration, codes: &mut HashMap<Pid, i32>) -> bool {
        let until = Instant::now() + within;
        loop {
            for site in &mut self.started {
                let pid = site.pid();
                match site.child.try_wait() {
                    Ok(None) => {}
                    Ok(Some(status)) => drop(codes.insert(pid, status.code().unwrap_or(1))),
                    // The job has reaped it; what is known of it stays.
                    Err(_) => drop(codes.entry(pid).or_insert(0)),
                }
            }
            if codes.len() >= self.started.len() {
                return true;
            }
            if Instant::now() >= until || self.asked.swap(false, Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        for file in &self.files {
            // The user may have removed it.
            let _ = std::fs::remove_file(file);
        }
    }
}

fn lock(queues: &Queues) -> MutexGuard<'_, Vec<SyncSender<Told>>> {
    queues.lock().unwrap_or_else(|e| e.into_inner())
}

/// Starts the controller of a domain over ssh.
fn start(
    order: Order,
    ssh: &OsStr,
    (destination, words): (&str, OsString),
    to_tell: Receiver<Told>,
    stops: &Sender<Stop>,
) -> anyhow::Result<Started> {
    let name = order.part.name().to_string();
    let failed = || format!("domain {name}: cannot start {}", ssh.to_string_lossy());
    let mut process = shell::ssh(ssh, CONNECT_TIMEOUT_S, destination);
    // Options of ssh may also follow the destination.
    process.args(["-o", "ServerAliveInterval=60", "-o"]);
    process.arg(format!("ServerAliveCountMax={SILENT_MINUTES}"));
    process.arg(words);
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The terminal's Ctrl-C reaches `eyrie run` alone.
    with_no_signal_blocked(in_own_session(&mut process));
    let mut child = process.spawn().with_context(failed)?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        anyhow::bail!("{}: it has no streams", failed());
    };
    std::thread::spawn(move || tell(stdin, &order, &to_tell));
    let stops = stops.clone();
    let out = std::thread::spawn(move || {
        if let Err(e) = output::pass(stdout, io::stdout(), None) {
            let _ = stops.send(not_written(&e));
        }
    });
    let as_own = name.clone();
    // What cannot be said there cannot be said.
    let err = std::thread::spawn(move || drop(output::pass(stderr, io::stderr(), Some(&as_own))));
    let place = Arc::new(Place { name, destination: destination.into() });
    Ok(Started { place, child, output: [out, err] })
}

/// Why the job ends when standard output cannot be written.
fn not_written(e: &io::Error) -> Stop {
    let reader_left = e.kind() == io::ErrorKind::BrokenPipe;
    let code = if reader_left { out::READER_LEFT } else { 1 };
    Stop { code, cause: format!("standard output: {e}") }
}

/// Tells a site its order, and then what else comes, until there is no more to come. When it breaks
/// off the site has ended, which is seen by ssh's end.
fn tell(mut to: ChildStdin, order: &Order, more: &Receiver<Told>) {
    let mut written = order::write(&mut to, order).and_then(|()| to.flush());
    while let (Ok(()), Ok(told)) = (&written, more.recv()) {
        written = frame::write(&mut to, &told).and_then(|()| to.flush());
    }
}

/// Passes the signals to this process on.
fn pass_signals(to: Queues, asked: Arc<AtomicBool>) {
    let Ok(mut signals) = signal_hook::iterator::Signals::new(runtime::passed_signals()) else {
        // Each domain ends by what another one tells it, if not so soon.
        return;
    };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if [SIGHUP, SIGINT, SIGTERM].contains(&signal) {
                asked.store(true, Ordering::Relaxed);
            }
            for site in lock(&to).iter() {
                // One that is not reached hears of the end of the job later.
                let _ = site.try_send(Told::Signal(signal));
            }
        }
    });
}

/// Has the job ended when the controller of another domain has, and the job does not end by what
/// that has told. Returns the exit codes of those that have ended when the job is over.
fn watch(
    places: &HashMap<Pid, Arc<Place>>,
    ends: &Receiver<(Pid, Option<i32>)>,
    is_over: &Receiver<()>,
    stop: &Sender<Stop>,
) -> HashMap<Pid, i32> {
    let mut codes = HashMap::new();
    let mut due: Option<(Instant, Stop)> = None;
    loop {
        while let Ok((pid, code)) = ends.try_recv() {
            let code = code.unwrap_or(1);
            codes.insert(pid, code);
            if let (None, Some(place)) = (&due, places.get(&pid)) {
                let (within, why) = why(place, code);
                due = Some((Instant::now() + within, why));
            }
        }
        match is_over.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return codes,
        }
        if due.as_ref().is_some_and(|(at, _)| Instant::now() >= *at) {
            if let Some((_, why)) = due.take() {
                // The job may just have ended.
                let _ = stop.send(why);
            }
        }
    }
}

/// Why the job ends when the controller of a domain has ended with this code, and after how long.
fn why(Place { name, destination }: &Place, code: i32) -> (Duration, Stop) {
    let stop = |text: String| Stop { code: code.max(1), cause: format!("domain {name}: {text}") };
    match code {
        SSH_FAILED => {
            let text = format!(
                "its controller at {destination} has died or cannot be reached: `ssh -o \
                 BatchMode=yes {destination} true` must work, with a key without a question"
            );
            (GRACE_OF_NONE, Stop { code: 1, ..stop(text) })
        }
        code if NOT_FOUND.contains(&code) => {
            let text = format!(
                "its controller was not started at {destination}: the same Eyrie must be there, or \
                 be named by --agent-path, and the directory in which this command runs"
            );
            (GRACE_OF_NONE, stop(text))
        }
        0 => (GRACE, stop("its controller has ended before the job".into())),
        _ => (GRACE_OF_ERROR, stop(format!("its controller has ended with code {code}"))),
    }
}

/// Writes an order into a file for the user, and says what to do with it.
fn by_hand(order: &Order, file: &Path, words: &OsStr) -> anyhow::Result<()> {
    let shown = file.display();
    let name = order.part.name();
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(file);
    let mut made = made.with_context(|| format!("domain {name}: cannot make {shown}"))?;
    order::write(&mut made, order).with_context(|| format!("cannot write {shown}"))?;
    out::say(format!(
        "eyrie: domain {name}: start it there by this line; order is a copy of {shown} that only \
         you can read\n  ({}) <order",
        words.to_string_lossy()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn a_site_gets_the_same_arguments_but_for_the_file() {
        let of = |text: &str, program| of_domain(&words(text), program, "cloud");
        assert_eq!(
            of("--log x run --domains f.toml -n 4 ./a --domains b", 3),
            words("--log x run --domains - --as cloud -n 4 ./a --domains b")
        );
        assert_eq!(
            of("run -n 4 --domains=f.toml -- ./a", 1),
            words("run -n 4 --domains - --as cloud -- ./a")
        );
        let command = Command {
            eyrie: "/opt/my eyrie/eyrie".into(),
            args: words("run --domains f ./a it's"),
            program: 2,
            cwd: "/home/me".into(),
        };
        assert_eq!(
            command.at("cloud"),
            "cd /home/me || exit 127; exec '/opt/my eyrie/eyrie' run --domains - --as cloud ./a 'it'\\''s'"
        );
    }

    #[test]
    fn the_end_of_a_site_ends_the_job_unless_that_ends_by_itself() {
        let pid = Pid::from_raw(7).unwrap();
        let place = Place { name: "cloud".into(), destination: "me@login".into() };
        let places = HashMap::from([(pid, Arc::new(place))]);
        let (ended, ends) = channel();
        let (over, is_over) = channel();
        let (stop, stops) = channel();
        let watching = std::thread::spawn(move || watch(&places, &ends, &is_over, &stop));
        // As ssh ends when it reaches no host.
        ended.send((pid, Some(255))).unwrap();
        let why = stops.recv().unwrap();
        assert_eq!(why.code, 1);
        let begin = "domain cloud: its controller at me@login has died or cannot";
        assert!(why.cause.starts_with(begin), "{why:?}");
        drop(over);
        assert_eq!(watching.join().unwrap(), HashMap::from([(pid, 255)]));
    }
}
