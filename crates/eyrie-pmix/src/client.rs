//! One rank's side of PMIx: the values that it was given to keep, and requests to the agent for the
//! others. Only a fence waits, until all ranks of the job have arrived.

use crate::abi::*;
use crate::job::{Job, NSPACE};
use crate::pmi::{Line, Pmi, Refused, Socket};
use crate::value::Value;
use libc::c_int;
use std::collections::HashMap;
use std::ffi::CStr;
use std::io;

/// The client of a rank.
pub struct Client<L = Socket> {
    pmi: Pmi<L>,
    job: Job,
    kept: HashMap<(u32, String), Value>,
    /// How often it was initialized and not finalized.
    begun: u32,
    handlers: usize,
}

impl Client {
    /// The client of this process; `None` when the agent has given it no socket.
    pub fn of_environment() -> Option<Client> {
        let socket = std::env::var("PMI_FD").ok()?.parse().ok()?;
        Some(Client::new(Socket(socket), Job::of_environment()?))
    }
}

/// The result of a request.
fn status(granted: io::Result<bool>) -> c_int {
    match granted {
        Ok(true) => SUCCESS,
        Ok(false) => ERR_BAD_PARAM,
        Err(_) => ERR_UNREACH,
    }
}

impl<L: Line> Client<L> {
    pub fn new(line: L, job: Job) -> Client<L> {
        Client { pmi: Pmi(line), job, kept: HashMap::new(), begun: 0, handlers: 0 }
    }

    /// The rank's name in PMIx.
    pub fn name(&self) -> pmix_proc {
        let mut nspace = [0; NSPACE_ROOM];
        for (to, from) in nspace.iter_mut().zip(NSPACE.bytes()) {
            *to = from as libc::c_char;
        }
        pmix_proc { nspace, rank: self.job.rank }
    }

    pub fn has_begun(&self) -> bool {
        self.begun > 0
    }

    pub fn begin(&mut self) -> c_int {
        if self.begun == 0 {
            match self.pmi.init() {
                Ok(true) => {}
                _ => return ERR_UNREACH,
            }
        }
        self.begun += 1;
        SUCCESS
    }

    pub fn end(&mut self) -> c_int {
        if self.begun == 0 {
            return ERR_INIT;
        }
        self.begun -= 1;
        if self.begun > 0 {
            return SUCCESS;
        }
        status(self.pmi.finalize())
    }

    /// Ends the job with this code, that of the error if there was one. When windows are missing,
    /// it also reports that, because Open MPI does not say why it aborts.
    pub fn abort(&mut self, code: c_int) -> c_int {
        const MPI_ERR_WIN: c_int = 53;
        if code == MPI_ERR_WIN {
            let _ = self.pmi.refused(Refused::Windows);
        }
        status(self.pmi.abort(code).map(|()| true))
    }

    /// Puts a value. Each rank is alone on its host, so a value for the ranks of a host stays with
    /// it and is not sent to every node of the job.
    pub fn put(&mut self, scope: u8, key: &str, value: Option<Value>) -> c_int {
        if scope == LOCAL {
            return self.keep(None, key, value);
        }
        let Some(value) = value else { return ERR_NOT_SUPPORTED };
        status(self.pmi.put(&put_key(self.job.rank, key), &value.encode()))
    }

    /// A value of a rank of this job, or of the job itself.
    ///
    /// # Errors
    /// PMIx's error codes.
    pub fn get(&mut self, proc: Option<&pmix_proc>, key: &str) -> Result<Value, c_int> {
        let rank = self.rank_of(proc).ok_or(ERR_NOT_FOUND)?;
        if let Some(kept) = self.kept.get(&(rank, key.to_string())) {
            return Ok(kept.clone());
        }
        if let Some(known) = self.job.value(rank, key) {
            return Ok(known);
        }
        let put = self.pmi.get(&put_key(rank, key)).map_err(|_| ERR_UNREACH)?;
        put.as_deref().and_then(Value::decode).ok_or(ERR_NOT_FOUND)
    }

    pub fn keep(&mut self, proc: Option<&pmix_proc>, key: &str, value: Option<Value>) -> c_int {
        let (Some(rank), Some(value)) = (self.rank_of(proc), value) else {
            return ERR_NOT_SUPPORTED;
        };
        self.kept.insert((rank, key.to_string()), value);
        SUCCESS
    }

    /// Waits for all ranks. A subset of them cannot meet.
    pub fn fence(&mut self, who: &[pmix_proc]) -> c_int {
        let all = who.iter().any(|proc| proc.rank == RANK_WILDCARD);
        if !(who.is_empty() || all || who.len() == self.job.size as usize) {
            return ERR_NOT_SUPPORTED;
        }
        status(self.pmi.barrier())
    }

    pub fn refuse(&mut self, what: Refused) -> c_int {
        match self.pmi.refused(what) {
            Ok(_) => ERR_NOT_SUPPORTED,
            Err(_) => ERR_UNREACH,
        }
    }

    pub fn next_handler(&mut self) -> usize {
        self.handlers += 1;
        self.handlers
    }

    /// The rank that is meant, if it is one of this job or all of them.
    fn rank_of(&self, proc: Option<&pmix_proc>) -> Option<u32> {
        let Some(proc) = proc else { return Some(self.job.rank) };
        // SAFETY: the slice is the whole array `nspace`, of which the bytes up to the first NUL are
        // used.
        let bytes = unsafe { std::slice::from_raw_parts(proc.nspace.as_ptr().cast(), NSPACE_ROOM) };
        let nspace = CStr::from_bytes_until_nul(bytes).ok()?.to_bytes();
        let ours = nspace.is_empty() || nspace == NSPACE.as_bytes();
        (ours && (proc.rank < self.job.size || proc.rank == RANK_WILDCARD)).then_some(proc.rank)
    }
}

fn put_key(rank: u32, key: &str) -> String {
    format!("{rank}.{key}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// An agent at which the other ranks have arrived at every barrier.
    #[derive(Default)]
    struct Agent {
        put: BTreeMap<String, String>,
        heard: Vec<String>,
    }

    impl Line for Agent {
        fn ask(&mut self, line: &str) -> io::Result<String> {
            self.heard.push(line.to_string());
            let words: BTreeMap<_, _> = line.split(' ').filter_map(|w| w.split_once('=')).collect();
            Ok(match words["cmd"] {
                "put" => {
                    self.put.insert(words["key"].into(), words["value"].into());
                    "cmd=put_result rc=0".into()
                }
                "get" => match self.put.get(words["key"]) {
                    Some(value) => format!("cmd=get_result rc=0 value={value}"),
                    None => "cmd=get_result rc=1".into(),
                },
                _ => "rc=0".into(),
            })
        }

        fn say(&mut self, line: &str) -> io::Result<()> {
            self.heard.push(line.to_string());
            Ok(())
        }
    }

    fn client() -> Client<Agent> {
        Client::new(Agent::default(), Job { rank: 1, size: 3, dir: "/d".into() })
    }

    #[test]
    fn only_values_that_were_put_or_kept_are_found() {
        let mut client = client();
        let mut name = client.name();
        let address = Value::Bytes(vec![0, 255, 32]);
        assert_eq!(client.put(GLOBAL, "mtl.ofi.5.0", Some(address.clone())), SUCCESS);
        assert_eq!(client.put(GLOBAL, "a.list", None), ERR_NOT_SUPPORTED);
        let heard = client.pmi.0.heard.len();
        let process = Value::Number(UINT32, 4711);
        assert_eq!(client.put(LOCAL, "smsc.cma.5.0", Some(process.clone())), SUCCESS);
        assert_eq!(client.get(Some(&name), "smsc.cma.5.0"), Ok(process));
        assert_eq!(client.pmi.0.heard.len(), heard, "what is for its host only was told");
        assert_eq!(client.get(Some(&name), "mtl.ofi.5.0"), Ok(address));
        name.rank = 2;
        assert_eq!(client.get(Some(&name), "mtl.ofi.5.0"), Err(ERR_NOT_FOUND));
        assert_eq!(client.keep(Some(&name), "pmix.loc", Some(Value::Number(UINT16, 5))), SUCCESS);
        assert_eq!(client.get(Some(&name), "pmix.loc"), Ok(Value::Number(UINT16, 5)));
        name.rank = RANK_WILDCARD;
        assert_eq!(client.get(Some(&name), "pmix.job.size"), Ok(Value::Number(UINT32, 3)));
        name.nspace[0] = b'x' as libc::c_char;
        assert_eq!(client.get(Some(&name), "pmix.job.size"), Err(ERR_NOT_FOUND));
    }

    #[test]
    fn the_last_finalize_is_that_of_the_rank_and_it_may_begin_again() {
        let mut client = client();
        assert_eq!([client.begin(), client.begin(), client.end()], [SUCCESS; 3]);
        assert!(client.has_begun());
        assert_eq!(client.end(), SUCCESS);
        assert!(!client.has_begun());
        assert_eq!(client.end(), ERR_INIT);
        assert_eq!(client.begin(), SUCCESS);
        let heard: Vec<_> =
            client.pmi.0.heard.iter().map(|l| l.split(' ').next().unwrap()).collect();
        assert_eq!(heard, ["cmd=init", "cmd=finalize", "cmd=init"]);
    }

    #[test]
    fn only_all_ranks_can_meet() {
        let mut client = client();
        let of = |rank: u32| pmix_proc { rank, nspace: [0; NSPACE_ROOM] };
        assert_eq!(client.fence(&[]), SUCCESS);
        assert_eq!(client.fence(&[of(RANK_WILDCARD)]), SUCCESS);
        assert_eq!(client.fence(&[of(0), of(1), of(2)]), SUCCESS);
        assert_eq!(client.fence(&[of(0), of(1)]), ERR_NOT_SUPPORTED);
        assert_eq!(client.pmi.0.heard.len(), 3);
    }
}
