//! What a long command is doing, on standard error: a line that is drawn anew on a terminal, else
//! nothing unless it is asked for, then a line now and then. Never on standard output, and never
//! for what is over at once.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long nothing is said.
const PATIENCE: Duration = Duration::from_secs(1);
const REDRAW: Duration = Duration::from_millis(250);
const LINE_EVERY: Duration = Duration::from_secs(10);

struct Doing {
    what: String,
    over: bool,
}

/// Shown until it is dropped.
pub struct Progress {
    doing: Arc<(Mutex<Doing>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

fn lock(doing: &Mutex<Doing>) -> MutexGuard<'_, Doing> {
    doing.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    /// `asked`: also where standard error is no terminal.
    pub fn start(asked: bool, what: &str) -> Progress {
        let doing = Doing { what: what.into(), over: false };
        let doing = Arc::new((Mutex::new(doing), Condvar::new()));
        let terminal = io::stderr().is_terminal();
        let shared = doing.clone();
        let thread = (terminal || asked).then(|| {
            std::thread::spawn(move || if terminal { draw(&shared) } else { list(&shared) })
        });
        Progress { doing, thread }
    }

    /// Whether it is shown.
    pub fn is_shown(&self) -> bool {
        self.thread.is_some()
    }

    pub fn now(&self, what: String) {
        lock(&self.doing.0).what = what;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        lock(&self.doing.0).over = true;
        self.doing.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // It panics only with the whole process.
            let _ = thread.join();
        }
    }
}

/// What is being done after `wait`; `None` when it is over.
fn after((doing, changed): &(Mutex<Doing>, Condvar), wait: Duration) -> Option<String> {
    let waited = changed.wait_timeout_while(lock(doing), wait, |doing| !doing.over);
    let (doing, _) = waited.unwrap_or_else(PoisonError::into_inner);
    (!doing.over).then(|| doing.what.clone())
}

fn whole_seconds(begun: Instant) -> String {
    eyrie_units::time(Duration::from_secs(begun.elapsed().as_secs()))
}

fn draw(doing: &(Mutex<Doing>, Condvar)) {
    let begun = Instant::now();
    let mut drawn = false;
    let mut wait = PATIENCE;
    while let Some(what) = after(doing, wait) {
        (drawn, wait) = (true, REDRAW);
        let text = format!("\r\x1b[K{what} [{}]", whole_seconds(begun));
        let _ = io::stderr().write_all(text.as_bytes());
    }
    if drawn {
        let _ = io::stderr().write_all(b"\r\x1b[K");
    }
}

fn list(doing: &(Mutex<Doing>, Condvar)) {
    let begun = Instant::now();
    let mut said = String::new();
    let mut last = begun;
    while let Some(what) = after(doing, PATIENCE) {
        if what != said || last.elapsed() >= LINE_EVERY {
            crate::out::say(format!("eyrie: {what} [{}]", whole_seconds(begun)));
            (said, last) = (what, Instant::now());
        }
    }
}
