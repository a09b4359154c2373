//! Requests to the agent as MPICH's client makes them: one line of PMI-1 is sent, one is received.
//! Only the returned value of an answer is kept, so an image between two requests has everything.

use std::io;
use std::os::fd::RawFd;

/// Longest value in a line, in characters; the agent takes lines of 4096 bytes.
const VALUE_MAX: usize = 3500;
/// Longest answer: the agent's longest value, and the text before it.
const ANSWER_MAX: usize = 8192;

/// The connection for requests.
pub trait Line {
    /// Sends a line and returns the answer, without its line end.
    ///
    /// # Errors
    /// When the agent is gone.
    fn ask(&mut self, line: &str) -> io::Result<String>;

    /// Sends a line that has no answer.
    ///
    /// # Errors
    /// When the agent is gone.
    fn say(&mut self, line: &str) -> io::Result<()>;
}

/// The socket that every rank inherits.
pub struct Socket(pub RawFd);

impl Line for Socket {
    fn ask(&mut self, line: &str) -> io::Result<String> {
        self.say(line)?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n") {
            let mut part = [0u8; 1024];
            // SAFETY: the kernel writes at most `part.len()` bytes into `part`.
            let n = unsafe { libc::recv(self.0, part.as_mut_ptr().cast(), part.len(), 0) };
            match usize::try_from(n) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => answer.extend_from_slice(&part[..n]),
                Err(_) => interrupted()?,
            }
            if answer.len() > ANSWER_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        answer.pop();
        String::from_utf8(answer).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        let text = format!("{line}\n");
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            // SAFETY: the kernel reads at most `rest.len()` bytes of `rest`.
            let n =
                unsafe { libc::send(self.0, rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
            match usize::try_from(n) {
                Ok(n) => rest = &rest[n..],
                Err(_) => interrupted()?,
            }
        }
        Ok(())
    }
}

/// Returns `Ok` when a call has failed because of a signal and must be repeated.
fn interrupted() -> io::Result<()> {
    match io::Error::last_os_error() {
        e if e.kind() == io::ErrorKind::Interrupted => Ok(()),
        e => Err(e),
    }
}

/// The requests.
pub struct Pmi<L>(pub L);

impl<L: Line> Pmi<L> {
    fn granted(&mut self, line: &str) -> io::Result<bool> {
        Ok(field(&self.0.ask(line)?, "rc") == Some("0"))
    }

    /// The first request. The agent identifies the rank by the socket.
    ///
    /// # Errors
    /// When the agent is gone, as with all of them.
    pub fn init(&mut self) -> io::Result<bool> {
        self.granted("cmd=init pmi_version=1 pmi_subversion=1")
    }

    /// Puts a value that other ranks can get. False: it is too long, or its key cannot be in a
    /// line.
    pub fn put(&mut self, key: &str, value: &str) -> io::Result<bool> {
        let fits = value.len() <= VALUE_MAX && is_word(key) && is_word(value);
        Ok(fits && self.granted(&format!("cmd=put kvsname=eyrie key={key} value={value}"))?)
    }

    /// Gets a value that a rank has put.
    pub fn get(&mut self, key: &str) -> io::Result<Option<String>> {
        if !is_word(key) {
            return Ok(None);
        }
        let answer = self.0.ask(&format!("cmd=get kvsname=eyrie key={key}"))?;
        let found = field(&answer, "rc") == Some("0");
        Ok(field(&answer, "value").filter(|_| found).map(str::to_string))
    }

    /// Waits for all ranks.
    pub fn barrier(&mut self) -> io::Result<bool> {
        self.granted("cmd=barrier_in")
    }

    /// Reports that this rank has finished with MPI.
    pub fn finalize(&mut self) -> io::Result<bool> {
        self.granted("cmd=finalize")
    }

    /// Ends the job with this code.
    pub fn abort(&mut self, code: i32) -> io::Result<()> {
        self.0.say(&format!("cmd=abort exitcode={code}"))
    }

    /// Lets the agent tell the user by name what the program cannot have.
    pub fn refused(&mut self, what: Refused) -> io::Result<bool> {
        let what = match what {
            Refused::Spawn => "spawn",
            Refused::Ports => "ports",
            Refused::Groups => "groups",
            Refused::Windows => "windows",
            Refused::Orte => "orte",
        };
        self.granted(&format!("cmd=in_vain what={what}"))
    }
}

/// What a job cannot have.
#[derive(Clone, Copy)]
pub enum Refused {
    /// More ranks.
    Spawn,
    /// Names and ports that other jobs can find.
    Ports,
    /// Communicators made of groups.
    Groups,
    /// One-sided communication.
    Windows,
    /// The launcher of Open MPI 4.
    Orte,
}

/// Whether a text can be a key or a value of a line.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && b != b'=')
}

/// The value after `name=` in an answer.
fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = answer.split(' ').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    /// Runs `f` with an agent that gives these answers, and returns its requests.
    fn asked(answers: &'static [&str], f: impl FnOnce(&mut Pmi<Socket>)) -> Vec<String> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let agent = std::thread::spawn(move || {
            let mut lines = io::BufReader::new(theirs.try_clone().unwrap()).lines();
            let mut heard = Vec::new();
            for answer in answers {
                heard.push(lines.next().unwrap().unwrap());
                (&theirs).write_all(answer.as_bytes()).unwrap();
            }
            drop(theirs);
            heard
        });
        f(&mut Pmi(Socket(ours.as_raw_fd())));
        agent.join().unwrap()
    }

    #[test]
    fn requests_are_those_of_pmi_1_and_the_agents_end_is_seen() {
        let answers = &[
            "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n",
            "cmd=put_result rc=0\n",
            "cmd=barrier_out rc=0\n",
            "cmd=get_result rc=0 value=27:00\n",
            "cmd=get_result rc=1 msg=key_not_found\n",
        ];
        let heard = asked(answers, |pmi| {
            assert!(pmi.init().unwrap());
            assert!(pmi.put("0.a", "27:00").unwrap());
            assert!(!pmi.put("0 a", "x").unwrap() && !pmi.put("a", &"x".repeat(4000)).unwrap());
            assert!(pmi.barrier().unwrap());
            assert_eq!(pmi.get("0.a").unwrap().as_deref(), Some("27:00"));
            assert_eq!(pmi.get("0.b").unwrap(), None);
            assert!(pmi.barrier().is_err());
        });
        assert_eq!(heard[1], "cmd=put kvsname=eyrie key=0.a value=27:00");
        assert_eq!(heard[2..4], ["cmd=barrier_in", "cmd=get kvsname=eyrie key=0.a"]);
    }
}
