//! The line to the `eyrie run` that has started a domain's controller, or resumed it. It brings an
//! end of the job that the gateways may not. Its own end means nothing where these have a line.

use super::order::Told;
use eyrie_controller::runtime::{FromOutside, Stop};
use eyrie_transport::frame;
use std::fs::File;
use std::io;
use std::sync::mpsc::Sender;

/// The line. Behind the order, if it brings one, come things that are told.
pub struct Line(pub File);

impl Line {
    /// The standard input of this process, which is empty from now on.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn take_stdin() -> io::Result<Line> {
        // Nothing may be read ahead: what follows comes later.
        let line = File::from(rustix::io::dup(io::stdin())?);
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(Line(line))
    }

    /// From now on the job hears what it brings.
    pub fn listen(self, job: Sender<FromOutside>) {
        std::thread::spawn(move || self.hear(&job));
    }

    /// Hears what is told until the line breaks off.
    fn hear(mut self, job: &Sender<FromOutside>) {
        // The job may have ended.
        let tell = |told| drop(job.send(told));
        while let Ok(Told::Ended { code }) = frame::read(&mut self.0) {
            let cause = "it has ended where it was started".into();
            tell(FromOutside::Stop(Stop { code, cause }));
        }
        tell(FromOutside::Unwatched);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Seek;

    #[test]
    fn a_bad_end_is_told_and_then_that_the_line_has_ended() {
        let mut file = tempfile::tempfile().unwrap();
        frame::write(&mut file, &Told::Ended { code: 3 }).unwrap();
        file.rewind().unwrap();
        let (job, heard) = std::sync::mpsc::channel();
        Line(file).hear(&job);
        let heard: Vec<_> = heard.try_iter().collect();
        assert!(matches!(&heard[0], FromOutside::Stop(Stop { code: 3, .. })), "{heard:?}");
        assert_eq!(heard[1..], [FromOutside::Unwatched]);
    }
}
