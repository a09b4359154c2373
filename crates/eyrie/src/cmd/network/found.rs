//! A network as it is said or was found out: its words, the text of its file where there is none,
//! where it is from, and how sure that is. Finds nothing out itself.

use eyrie_cli::instance::read_text;
use eyrie_controller::runtime::JobNetwork;
use eyrie_placement::spares;
use eyrie_topology::spec::{parse_with, Files, Parsed};
use eyrie_topology::TopologyError;
use serde::Serialize;

/// The word for a network that is to be found out.
pub const AUTO: &str = "auto";
/// What the file is called that has what was found out: there is none.
const FOUND_FILE: &str = "found by --network auto";

/// How sure a network is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sureness {
    /// The user, or the site's own description, says so.
    Said,
    /// It was measured.
    Measured,
    /// It was guessed from names.
    Guessed,
    /// Nothing is known: all hosts are taken to be as near to each other.
    Unknown,
}

impl Sureness {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Sureness::Said => "sure",
            Sureness::Measured => "likely, as far as a short measurement can tell",
            Sureness::Guessed => "a guess",
            Sureness::Unknown => "nothing is known of it",
        }
    }
}

/// A network, and where it is from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Words of `eyrie plan`, and the text of the file that they name where there is none.
    pub words: String,
    pub text: Option<String>,
    /// Where it is from, in words.
    pub source: String,
    pub sureness: Sureness,
    /// Why it is from nowhere better, a line each.
    pub notes: Vec<String>,
}

impl Found {
    /// What the user has written.
    pub fn said(words: &str) -> Found {
        Found {
            words: words.into(),
            text: None,
            source: format!("--network {words}"),
            sureness: Sureness::Said,
            notes: Vec::new(),
        }
    }

    /// The text of a topology.conf that was found out.
    pub fn conf(text: String, source: String, sureness: Sureness) -> Found {
        let words = format!("slurm:{FOUND_FILE}");
        Found { words, text: Some(text), source, sureness, notes: Vec::new() }
    }

    /// The text of a file that its words name, or that other words do.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn file(&self, path: &str) -> Result<String, TopologyError> {
        file(self.text.as_deref(), path)
    }

    /// The network itself.
    ///
    /// # Errors
    /// Names what is wrong with the words or the file.
    pub fn parsed(&self) -> Result<Parsed, TopologyError> {
        let text = |path: &str| self.file(path);
        parse_with(&self.words, &Files { text: &text, slurm_topology: None, taper: 1.0 })
    }

    /// The hosts that have no node in it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn lacks<'h>(&self, hosts: &[&'h str]) -> Result<Vec<&'h str>, TopologyError> {
        let Parsed { network, names, .. } = self.parsed()?;
        let lacks = |host: &&str| spares::of_host(host, network.as_ref(), &names).is_none();
        Ok(hosts.iter().copied().filter(lacks).collect())
    }

    /// What users are told of it before a job.
    pub fn lines(&self) -> Vec<String> {
        let of = match self.parsed() {
            Ok(parsed) => parsed.network.describe(),
            Err(why) => why.to_string(),
        };
        self.notes.iter().cloned().chain([format!("network: {}", self.sentence(&of))]).collect()
    }

    /// What it is, where it is from and how sure it is. `described`: the network itself.
    pub fn sentence(&self, described: &str) -> String {
        let source = &self.source;
        let sureness = self.sureness.words();
        match self.sureness {
            Sureness::Unknown => format!("{sureness}: {source}"),
            Sureness::Said | Sureness::Measured | Sureness::Guessed => {
                format!("{described}, from {source} ({sureness})")
            }
        }
    }
}

/// The text of the files that the words of a job's network and traffic name.
pub fn files(network: &JobNetwork) -> impl Fn(&str) -> Result<String, TopologyError> + '_ {
    move |path: &str| file(network.text.as_deref(), path)
}

/// The text of a file, or that of the network that was found out.
fn file(text: Option<&str>, path: &str) -> Result<String, TopologyError> {
    match text.filter(|_| path == FOUND_FILE) {
        Some(text) => Ok(text.to_string()),
        None => read_text(path),
    }
}

/// The names of hosts as networks have them: without users.
pub fn names<'h>(hosts: impl Iterator<Item = &'h str>) -> Vec<&'h str> {
    hosts.map(|host| host.rsplit('@').next().unwrap_or(host)).collect()
}
