//! The line to the command that has started the job, in the controller of another domain. It brings
//! signals and a bad end. When it breaks off the job ends, but not before its own control has had
//! time to do that.

use super::order::Told;
use eyrie_controller::runtime::Stop;
use eyrie_transport::frame;
use rustix::process::{getpid, kill_process, Signal};
use std::fs::File;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// How long after its end the job may end by what the domains tell each other.
const GRACE: Duration = Duration::from_secs(5);

/// The line, whose next bytes are what follows the order.
pub struct Line(pub File);

impl Line {
    /// From now on signals that it brings are signals to this process. `stops`: what ends the job.
    pub fn listen(mut self, stops: Sender<Stop>) {
        let stop = move |code, cause: &str| {
            // The job may have ended.
            let _ = stops.send(Stop { code, cause: cause.into() });
        };
        std::thread::spawn(move || {
            self.hear(|told| match told {
                Told::Signal(number) => {
                    // Another number is none of those that are passed on; this process is there.
                    let signal = Signal::from_named_raw(number);
                    let _ = signal.map(|signal| kill_process(getpid(), signal));
                }
                Told::Ended { code } => stop(code, "it has ended where it was started"),
            });
            std::thread::sleep(GRACE);
            stop(1, "the `eyrie run` that has started the job has ended, or the way to it is cut");
        });
    }

    /// Hears what is told until the line breaks off.
    fn hear(&mut self, mut told: impl FnMut(Told)) {
        while let Ok(next) = frame::read(&mut self.0) {
            told(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Seek;

    #[test]
    fn all_is_heard_until_the_line_ends() {
        let mut file = tempfile::tempfile().unwrap();
        let all = [Told::Signal(15), Told::Signal(2), Told::Ended { code: 3 }];
        all.iter().for_each(|told| frame::write(&mut file, told).unwrap());
        file.rewind().unwrap();
        let mut heard = Vec::new();
        Line(file).hear(|told| heard.push(told));
        assert_eq!(heard, all);
    }
}
