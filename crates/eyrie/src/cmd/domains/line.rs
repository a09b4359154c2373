//! The line to the command that has started the job, in the controller of another domain. It brings
//! signals. When it breaks off the job ends, but not before its own control has had time to do that.

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
        std::thread::spawn(move || {
            self.hear(|signal| {
                // This process is there.
                let _ = kill_process(getpid(), signal);
            });
            std::thread::sleep(GRACE);
            let cause =
                "the `eyrie run` that has started the job has ended, or the way to it is cut";
            // The job may have ended.
            let _ = stops.send(Stop { code: 1, cause: cause.into() });
        });
    }

    /// Hears signals until the line breaks off.
    fn hear(&mut self, mut signalled: impl FnMut(Signal)) {
        while let Ok(number) = frame::read::<i32>(&mut self.0) {
            // Another number is none of those that are passed on.
            Signal::from_named_raw(number).into_iter().for_each(&mut signalled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Seek;

    #[test]
    fn signals_come_until_the_line_ends() {
        let mut file = tempfile::tempfile().unwrap();
        [15, 4711, 2].iter().for_each(|number: &i32| frame::write(&mut file, number).unwrap());
        file.rewind().unwrap();
        let mut heard = Vec::new();
        Line(file).hear(|signal| heard.push(signal));
        assert_eq!(heard, [Signal::TERM, Signal::INT]);
    }
}
