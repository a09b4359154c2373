//! What the job says of itself, asked for when a scrape comes, but seldom enough that this takes it
//! a fiftieth of its time at most. A scrape that comes earlier, or a job that is slow to answer,
//! gets what was said last.

use eyrie_controller::runtime::users::ask;
use eyrie_interface::health::Health;
use eyrie_interface::traffic::NodeTraffic;
use eyrie_interface::{Request, Status};
use std::path::Path;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The job is asked again after this many times the time that its answer took, at least, but not
/// after more than the longest pause.
const REST: u32 = 50;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long a scrape waits for the job. Prometheus waits for 10 s as a rule.
const PATIENCE: Duration = Duration::from_secs(4);

/// What a job says of itself.
#[derive(Debug)]
pub struct Said {
    pub status: Status,
    pub health: Health,
    pub traffic: NodeTraffic,
    pub at: Instant,
}

#[derive(Debug, Default)]
struct Known {
    said: Option<Arc<Said>>,
    /// It is not asked before.
    next: Option<Instant>,
}

/// Asks a job.
#[derive(Debug)]
pub struct Asker {
    known: Arc<Mutex<Known>>,
    /// A scrape has come.
    wake: SyncSender<()>,
    /// Counts the answers.
    answers: watch::Receiver<u64>,
}

impl Asker {
    /// Of the job that has this directory.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(dir: &Path) -> std::io::Result<Asker> {
        let known = Arc::new(Mutex::new(Known::default()));
        let (wake, woken) = sync_channel(1);
        let (answered, answers) = watch::channel(0);
        let (dir, told) = (dir.to_path_buf(), known.clone());
        let asking = move || ask_when_woken(&dir, &woken, &told, &answered);
        std::thread::Builder::new().name("ask".into()).spawn(asking)?;
        Ok(Asker { known, wake, answers })
    }

    /// What the job says now, or has said last; `None`: nothing yet.
    pub async fn said(&self) -> Option<Arc<Said>> {
        let is_due = lock(&self.known).next.is_none_or(|next| next <= Instant::now());
        if is_due {
            let mut answers = self.answers.clone();
            answers.mark_unchanged();
            // One that is there already wakes it, too.
            let _ = self.wake.try_send(());
            let _ = tokio::time::timeout(PATIENCE, answers.changed()).await;
        }
        lock(&self.known).said.clone()
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ask_when_woken(
    dir: &Path,
    woken: &Receiver<()>,
    known: &Mutex<Known>,
    answered: &watch::Sender<u64>,
) {
    while woken.recv().is_ok() {
        let began = Instant::now();
        if lock(known).next.is_some_and(|next| next > began) {
            // For another scrape it was asked just now.
            continue;
        }
        // Else the job is busy, or ends: what it has said last is served, with its age.
        if let Ok(said) = ask_all(dir) {
            lock(known).said = Some(Arc::new(said));
        }
        let rest = (began.elapsed() * REST).min(LONGEST_PAUSE);
        lock(known).next = Some(Instant::now() + rest);
        answered.send_modify(|number| *number += 1);
    }
}

fn ask_all(dir: &Path) -> anyhow::Result<Said> {
    Ok(Said {
        status: ask(dir, &Request::Status)?,
        health: ask(dir, &Request::Health)?,
        traffic: ask(dir, &Request::NodeTraffic)?,
        at: Instant::now(),
    })
}
