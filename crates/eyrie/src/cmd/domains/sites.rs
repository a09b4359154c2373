//! The controllers of the other domains, as the command has them that starts the job: an ssh for
//! each, which brings its errors back, and whose end is looked at (`watch.rs`). Those of domains
//! that join later are started in the same way. They end by what the domains tell each other; only
//! what has not ended within a bound is left behind, and said.

use super::environment::passed;
use super::order::{self, Order, Part, Told};
use super::ssh::{Connection, Ssh};
use super::watch::{Do, Place, Watch};
use anyhow::Context;
use eyrie_cli::out;
use eyrie_controller::domains::file::Via;
use eyrie_controller::hosts::Host;
use eyrie_controller::runtime::{
    self, Beside, FromOutside, LineChange, LineIs, NewSite, Spared, Stop,
};
use eyrie_host::shell::{self, quoted, SSH_FAILED};
use eyrie_interface::request::NewDomain;
use eyrie_wire::domains::Domains;
use eyrie_wire::DomainId;
use rustix::process::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the controllers of other domains may take to end after the job has ended here, until it
/// is said; and how long once they are told: they wait for 10 s until others know it.
const END_TIMEOUT: Duration = Duration::from_secs(25);
const TOLD_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the rest of what they have printed may take.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// A site that is to be started.
pub struct Site {
    pub via: Via,
    pub order: Order,
}

impl Site {
    /// That of a domain that joins. `domains`: as it is to know them; `own`: the part of the domain
    /// that lets it join.
    fn joining(
        domains: Domains,
        new: NewDomain,
        own: &Part,
        environment: Vec<(OsString, OsString)>,
    ) -> Site {
        let NewDomain { hosts, spares, launcher, gateway, via, .. } = new;
        let via = via.map_or(Via::Manual, Via::Ssh);
        let host = |(name, slots)| Host { name, slots };
        let part = Part {
            domains,
            job: own.job.clone(),
            kvsname: own.kvsname.clone(),
            hosts: hosts.map(|hosts| hosts.into_iter().map(host).collect()),
            spares: spares.unwrap_or(0),
            launcher,
            gateway: gateway.host,
            port: gateway.port,
            joins: true,
        };
        let is_watched = via != Via::Manual;
        Site { via, order: Order { part, environment, is_watched } }
    }
}

/// The words of the command that a site's shell runs, but for the order.
pub struct Command {
    pub eyrie: PathBuf,
    /// The arguments of this command, `--domains FILE` among them.
    pub args: Vec<OsString>,
    /// How many of the last ones are the program's.
    pub program: usize,
    pub cwd: PathBuf,
    /// What of them a controller needs that takes the place of one that has died.
    pub dir: Option<PathBuf>,
    pub log: Option<PathBuf>,
}

impl Command {
    /// What the shell of a site runs to be a domain's controller.
    fn at(&self, name: &str) -> OsString {
        self.line(of_domain(&self.args, self.program, name))
    }

    /// What the shell of a site runs to go on with the job there, if its controller has died.
    fn resume(&self, job: &str) -> OsString {
        let log = self.log.iter().flat_map(|log| ["--log".as_ref(), log.as_os_str()]);
        let dir = self.dir.iter().flat_map(|dir| ["--dir".as_ref(), dir.as_os_str()]);
        let words = log.chain(["resume".as_ref(), "--if-dead".as_ref()]).chain(dir);
        self.line(words.chain([OsStr::new(job)]).map(OsStr::to_os_string).collect())
    }

    /// As users type that.
    fn resume_by_hand(&self, job: &str) -> String {
        let dir = self.dir.as_ref().map(|dir| format!(" --dir {}", dir.display()));
        format!("eyrie resume{} {job}", dir.unwrap_or_default())
    }

    fn line(&self, words: Vec<OsString>) -> OsString {
        let mut line = OsString::from("cd ");
        line.push(quoted(self.cwd.as_os_str()));
        // As where the shell does not find a command.
        line.push(" || exit 127; exec ");
        let args = words.iter().map(OsString::as_os_str);
        line.push(shell::words([self.eyrie.as_os_str()].into_iter().chain(args)));
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

/// A domain whose controller was started over ssh.
struct Remote {
    domain: DomainId,
    watch: Watch,
    ssh: Ssh,
    /// What its shell runs to resume its controller.
    resume: OsString,
    /// The last connection.
    connection: Connection,
    /// With which code it has ended.
    ended: Option<i32>,
}

/// The controllers of the other domains.
pub struct Sites {
    /// A signal has come that asks for the end.
    asked: Arc<AtomicBool>,
    /// Its end says that the job has ended here.
    over: Option<Sender<()>>,
    watching: Option<JoinHandle<Watched>>,
}

/// What was started, and what starts more.
struct Starter {
    command: Command,
    /// The command that takes ssh's arguments.
    ssh: OsString,
    spared: Spared,
    to_job: Sender<FromOutside>,
    started: Started,
}

/// What was started.
#[derive(Default)]
struct Started {
    remotes: Vec<Remote>,
    /// Orders that lie in files for the user, who starts these.
    files: Vec<PathBuf>,
}

impl Started {
    /// The next one whose connection has ended, with the code.
    fn next_end(&mut self, ends: &Receiver<(Pid, Option<i32>)>) -> Option<(&mut Remote, i32)> {
        let (at, code) = ends.try_iter().find_map(|(pid, code)| {
            let at = self.remotes.iter().position(|remote| remote.connection.pid() == pid)?;
            // By a signal: the connection has failed.
            Some((at, code.unwrap_or(SSH_FAILED)))
        })?;
        let remote = &mut self.remotes[at];
        remote.ended = Some(code);
        Some((remote, code))
    }
}

impl Starter {
    /// Starts a domain's controller, or shows how it is started by hand. `now`: since the start of
    /// the first ones.
    ///
    /// # Errors
    /// When a process cannot be made, or a file not written.
    fn start(&mut self, Site { via, order }: Site, now: Duration) -> anyhow::Result<()> {
        let name = order.part.name().to_string();
        let words = self.command.at(&name);
        match via {
            Via::Here => {}
            Via::Ssh(destination) => {
                let domain = order.part.domains.own;
                let job = order.part.job.clone();
                let (program, spared) = (self.ssh.clone(), self.spared.clone());
                let stops = self.to_job.clone();
                let ssh = Ssh { program, destination, name, spared, stops };
                let connection = ssh.start(&words, Some(order))?;
                let place = Place { name: ssh.name.clone(), destination: ssh.destination.clone() };
                let watch = Watch::new(place, self.command.resume_by_hand(&job), now);
                let resume = self.command.resume(&job);
                let remote = Remote { domain, watch, ssh, resume, connection, ended: None };
                self.started.remotes.push(remote);
            }
            Via::Manual => {
                // Another one of this name may have been started and have ended.
                let number = order.part.domains.own;
                let file = format!("eyrie-{}-{name}.{number}.order", order.part.job);
                let file = self.command.cwd.join(file);
                by_hand(&order, &file, &words)?;
                self.started.files.push(file);
            }
        }
        Ok(())
    }
}

impl Sites {
    /// Starts them, and says what the job is to know of them. `ssh`: the command that takes ssh's
    /// arguments; `own`: the part of this process's domain.
    ///
    /// # Errors
    /// When a process cannot be made, or a file not written.
    pub fn start(
        sites: Vec<Site>,
        own: &Part,
        command: Command,
        ssh: &OsStr,
    ) -> anyhow::Result<(Sites, Beside)> {
        let (to_job, from_outside) = channel();
        let (ended, ends) = channel();
        let (lines, changes) = channel();
        let (joins, joining) = channel();
        let (over, is_over) = channel();
        let spared = Spared::default();
        let started = Started::default();
        let (ssh, of_starter) = (ssh.into(), spared.clone());
        let mut starter = Starter { command, ssh, spared: of_starter, to_job, started };
        for site in sites {
            starter.start(site, Duration::ZERO)?;
        }
        let own = own.clone();
        let watching = Watching { starter, own, has_left: false, ends, changes, joining, is_over };
        let asked = Arc::new(AtomicBool::new(false));
        note_signals(Arc::clone(&asked));
        let watching = Some(std::thread::spawn(move || watching.run()));
        let all = Sites { asked, over: Some(over), watching };
        Ok((all, Beside { spared, ended, lines, joins: Some(joins), from_outside }))
    }

    /// The job has ended here, with this code: all of its output is here. Waits for the ends of the
    /// others, unless the job goes on there.
    pub fn finish(mut self, code: i32) {
        self.over = None;
        let watched = self.watching.take().and_then(|watching| watching.join().ok());
        let Watched { mut started, has_left } = watched.unwrap_or_default();
        let mut remotes = std::mem::take(&mut started.remotes);
        if has_left {
            // They see that no `eyrie run` watches them any more.
            remotes.iter_mut().for_each(|remote| remote.connection.kill());
            return;
        }
        self.asked.store(false, Ordering::Relaxed);
        if code != 0 {
            for remote in &remotes {
                // One that is not reached finds out by the end of its line.
                remote.connection.tell(Told::Ended { code });
            }
        }
        if !self.await_ends(END_TIMEOUT, code, &mut remotes) {
            for Remote { watch, .. } in remotes.iter().filter(|remote| remote.ended.is_none()) {
                let name = watch.name();
                out::say(format!(
                    "eyrie: domain {name}: its controller has not ended yet: it is told once more \
                     that the job has ended"
                ));
            }
            // They may have no line to learn it by.
            for remote in &mut remotes {
                remote.connection.tell(Told::Ended { code });
                remote.connection.close();
            }
            self.await_ends(TOLD_TIMEOUT, code, &mut remotes);
        }
        remotes.iter_mut().for_each(|remote| remote.connection.kill());
        let until = Instant::now() + OUTPUT_TIMEOUT;
        while !remotes.iter().all(|remote| remote.connection.has_said_all())
            && Instant::now() < until
        {
            std::thread::sleep(LOOK);
        }
    }

    /// Whether all have ended within this time, and before a signal asks not to wait. `code`: that
    /// of the job.
    fn await_ends(&self, within: Duration, code: i32, remotes: &mut [Remote]) -> bool {
        let until = Instant::now() + within;
        loop {
            // Each is looked at.
            let running = remotes.iter_mut().map(|remote| u32::from(!remote.has_ended(code)));
            if running.sum::<u32>() == 0 {
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
        self.over = None;
        // What was started goes with it.
        drop(self.watching.take().map(JoinHandle::join));
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        for file in &self.files {
            // The user may have removed it.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Notes signals that ask for the end: it is not waited then.
fn note_signals(asked: Arc<AtomicBool>) {
    let Ok(mut signals) = signal_hook::iterator::Signals::new(runtime::passed_signals()) else {
        // Then it is waited as long as it takes.
        return;
    };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if [SIGHUP, SIGINT, SIGTERM].contains(&signal) {
                asked.store(true, Ordering::Relaxed);
            }
        }
    });
}

/// The other domains when the job has ended here.
#[derive(Default)]
struct Watched {
    started: Started,
    /// It goes on there.
    has_left: bool,
}

/// What looks at the other domains while the job runs here.
struct Watching {
    starter: Starter,
    /// The part of this process's domain.
    own: Part,
    /// The domain here has ended, and the job goes on.
    has_left: bool,
    ends: Receiver<(Pid, Option<i32>)>,
    changes: Receiver<LineChange>,
    joining: Receiver<NewSite>,
    is_over: Receiver<()>,
}

impl Watching {
    /// Does what is to be done until the job has ended here; returns what there is then.
    fn run(mut self) -> Watched {
        let begun = Instant::now();
        while let Err(RecvTimeoutError::Timeout) = self.is_over.recv_timeout(LOOK) {
            let now = begun.elapsed();
            while let Ok(new) = self.joining.try_recv() {
                self.start(new, now);
            }
            self.hear_of_lines(now);
            let Starter { started, to_job, .. } = &mut self.starter;
            while let Some((remote, code)) = started.next_end(&self.ends) {
                let done = remote.watch.ended(code, now);
                done.into_iter().for_each(|done| remote.carry_out(done, now, to_job));
            }
            for remote in &mut started.remotes {
                if let Some(done) = remote.watch.look(now) {
                    remote.carry_out(done, now, to_job);
                }
            }
        }
        self.hear_of_lines(begun.elapsed());
        while self.starter.started.next_end(&self.ends).is_some() {}
        Watched { started: self.starter.started, has_left: self.has_left }
    }

    fn hear_of_lines(&mut self, now: Duration) {
        while let Ok(LineChange { domain, line }) = self.changes.try_recv() {
            self.has_left |= domain == self.own.name() && line == LineIs::Over;
            let remotes = self.starter.started.remotes.iter_mut();
            remotes.filter(|r| r.watch.name() == domain).for_each(|remote| remote.line(line, now));
        }
    }

    /// Starts the controller of a domain that joins.
    fn start(&mut self, NewSite { domains, new }: NewSite, now: Duration) {
        let domain = domains.own;
        let environment = passed(std::env::vars_os());
        let site = Site::joining(domains, new, &self.own, environment);
        if let Err(e) = self.starter.start(site, now) {
            let stop = Stop { code: 1, cause: format!("{e:#}") };
            // The job may just have ended.
            let _ = self.starter.to_job.send(FromOutside::DomainLost { domain, stop });
        }
    }
}

impl Remote {
    /// Whether its controller has ended, after the job has ended here with this code. In the place
    /// of one that has died another one is told that, once: the domain's agents would wait for it
    /// until their --orphan-timeout.
    fn has_ended(&mut self, code: i32) -> bool {
        self.ended = self.ended.or_else(|| self.connection.ended());
        if self.ended == Some(SSH_FAILED) && self.watch.leave_alone() {
            let name = self.watch.name();
            out::say(format!(
                "eyrie: domain {name}: its controller has died, or the connection to it has \
                 failed. It is told once more that the job has ended"
            ));
            match self.start_again() {
                Ok(()) => self.connection.tell(Told::Ended { code }),
                Err(e) => out::say(format!("eyrie: {e:#}")),
            }
        }
        self.ended.is_some()
    }

    /// Starts another controller in the place of one that has died. Where one runs, nothing comes
    /// of it.
    ///
    /// # Errors
    /// When the process cannot be made.
    fn start_again(&mut self) -> anyhow::Result<()> {
        self.connection = self.ssh.start(&self.resume, None)?;
        self.ended = None;
        Ok(())
    }

    /// The line to the domain has changed.
    fn line(&mut self, line: LineIs, now: Duration) {
        self.watch.line(line, now);
        if line == LineIs::Never {
            // It is told by that as well, if there was no line yet.
            self.connection.close();
        }
    }

    fn carry_out(&mut self, done: Do, now: Duration, job: &Sender<FromOutside>) {
        match done {
            Do::Say(text) => out::say(format!("eyrie: {text}")),
            Do::Stop(stop) => {
                let domain = self.domain;
                // The job may just have ended.
                drop(job.send(FromOutside::DomainLost { domain, stop }))
            }
            Do::Resume => {
                self.watch.connected(now);
                if let Err(e) = self.start_again() {
                    out::say(format!("eyrie: {e:#}"));
                    // As when ssh does not reach the host: it is tried again.
                    let done = self.watch.ended(SSH_FAILED, now);
                    done.into_iter().for_each(|done| self.carry_out(done, now, job));
                }
            }
        }
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
            dir: Some("/scratch".into()),
            log: None,
        };
        assert_eq!(
            command.at("cloud"),
            "cd /home/me || exit 127; exec '/opt/my eyrie/eyrie' run --domains - --as cloud ./a 'it'\\''s'"
        );
        assert_eq!(
            command.resume("j"),
            "cd /home/me || exit 127; exec '/opt/my eyrie/eyrie' resume --if-dead --dir /scratch j"
        );
        assert_eq!(command.resume_by_hand("j"), "eyrie resume --dir /scratch j");
    }
}
