//! A domain with another one, for tests of what these tell each other.

use crate::machine::io::ToPeer;
use crate::machine::roles::trial::Trial;
use crate::machine::{said, Command, Config, Event};
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_wire::control::{Ending, MpiStage, RankReport, ToAgent};
use eyrie_wire::domains::{DomainSays, Letter};
use eyrie_wire::{DomainId, Incarnation, Rank, RankInstance, RouterId};
use std::time::Duration;

pub const B: DomainId = DomainId(1);
pub const GATEWAY: RouterId = RouterId(1);
pub const FIRST: RankInstance = RankInstance { rank: Rank(0), incarnation: Incarnation(1) };

/// One with a line to the other domain, whose letters are counted.
pub struct Job {
    pub trial: Trial,
    number: u64,
}

impl Job {
    pub fn new() -> Job {
        Job::of(Config::of_domain(3))
    }

    /// One whose output the other domain shows.
    pub fn shown_by_b() -> Job {
        let mut job = Job::shown_by_b_without_line();
        job.line(true);
        job
    }

    /// As [`Job::shown_by_b`], before the first line.
    pub fn shown_by_b_without_line() -> Job {
        let mut config = Config::of_domain(3);
        config.domains.iter_mut().for_each(|domains| domains.shows = B);
        Job::without_line(config)
    }

    pub fn without_line(config: Config) -> Job {
        Job { trial: Trial::new(config), number: 0 }
    }

    fn of(config: Config) -> Job {
        let mut job = Job::without_line(config);
        job.line(true);
        job
    }

    /// The other domain has heard so many letters.
    pub fn confirms(&mut self, heard: u64) -> Vec<Command> {
        self.letter(Letter { number: 0, heard, says: None })
    }

    pub fn line(&mut self, up: bool) -> Vec<Command> {
        self.trial.handle(said::router(GATEWAY, RouterEvent::Line { domain: B, up }))
    }

    pub fn letter(&mut self, letter: Letter) -> Vec<Command> {
        let event = RouterEvent::FromDomain { domain: B, letter };
        self.trial.handle(said::router(GATEWAY, event))
    }

    /// The other domain says this, and has heard so many letters.
    pub fn says(&mut self, heard: u64, says: DomainSays) -> Vec<Command> {
        self.number += 1;
        self.letter(Letter { number: self.number, heard, says: Some(says) })
    }

    pub fn report(&mut self, report: RankReport) -> Vec<Command> {
        self.trial.handle(said::rank(FIRST, report))
    }

    pub fn put(&mut self, key: &str, value: &str) {
        self.report(RankReport::PmiPut { key: key.into(), value: value.into() });
    }

    /// The rank here runs.
    pub fn runs(&mut self) {
        let [fetched, restored] = [Duration::ZERO; 2];
        self.report(RankReport::Started { fetched, restored });
        self.report(RankReport::ProviderLoaded);
    }

    pub fn finish(&mut self, code: i32) -> Vec<Command> {
        self.runs();
        self.report(RankReport::PmiFinalized);
        let ending = Ending::Code(code);
        self.report(RankReport::Exited { ending, stage: MpiStage::After })
    }

    /// So much time passes, and the end if it comes.
    pub fn pass(&mut self, time: Duration) -> Option<i32> {
        let until = self.trial.now + time;
        while let Some(at) = self.trial.machine.next_tick().filter(|at| *at <= until) {
            self.trial.now = at.max(self.trial.now);
            let commands = self.trial.handle(Event::Tick);
            // Else nodes that do not answer are lost.
            for command in &commands {
                if let Some((node, ToAgent::Heartbeat { n })) = said::to_agent(command) {
                    self.trial.handle(said::heartbeat(node, *n));
                }
            }
            if let Some(code) = end(&commands) {
                return Some(code);
            }
        }
        self.trial.now = until;
        None
    }
}

/// What the other domain is told.
pub fn told(commands: &[Command]) -> Vec<DomainSays> {
    let says = |command: &Command| match command {
        Command::Send(ToPeer::Router(GATEWAY, RouterCommand::ToDomain { domain: B, letter })) => {
            letter.says.clone()
        }
        _ => None,
    };
    commands.iter().filter_map(says).collect()
}

/// The exit code, if the job ends.
pub fn end(commands: &[Command]) -> Option<i32> {
    commands.iter().find_map(|command| match command {
        Command::End { code } => Some(*code),
        _ => None,
    })
}
