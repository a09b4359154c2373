//! A job as the page shows it, made of its events and of what it says of itself. Pure: it reads no
//! clock and asks no job. It must never be taken for what the job itself knows: it is behind.

mod asked;
mod course;
mod events;
mod health;
mod moves;
mod network;
mod node;
mod part;
mod rank;
mod recovery;
mod status;
#[cfg(test)]
mod tests;
mod traffic;

use course::Courses;
use eyrie_interface::record::Cause;
use eyrie_interface::status::{CopiesMissing, DomainStatus, LogStatus};
use eyrie_interface::Summary;
use eyrie_wire::{NodeId, Rank};
use moves::MovePicture;
use network::NetworkPicture;
use node::NodePicture;
use part::Part;
pub use part::Version;
use rank::RankPicture;
use recovery::RecoveryPicture;
use serde::Serialize;
use traffic::TrafficPicture;
pub use traffic::{loads, NodePairs, Routed};

/// Most ranks and nodes that a picture has: a number in a damaged line must not fill the memory.
const MOST: usize = 1 << 20;

/// How a job is.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum JobState {
    #[default]
    Starting,
    Running,
    /// It is being saved.
    Saving,
    Ended {
        code: i32,
        cause: Option<Cause>,
        /// Where it was saved.
        saved: Option<String>,
    },
}

/// Whether news come from the job.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum News {
    #[default]
    Come,
    /// They do not, and are asked for again.
    Missing { why: String },
    /// None follow.
    Over { why: Option<String> },
}

/// What is said of the job as a whole.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Head {
    pub job: String,
    pub program: Option<String>,
    /// The name of this domain, where the job has several.
    pub domain: Option<String>,
    pub state: JobState,
    pub news: News,
    /// The MPI library and its version.
    pub library: Option<String>,
    /// Why the controller stands aside.
    pub cut_off: bool,
    /// Whether the job's own figures are known: they are not in a file of events.
    pub has_figures: bool,
}

/// The job's figures.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Figures {
    pub logs: Vec<LogStatus>,
    pub log_memory_bytes: u64,
    pub log_disk_bytes: u64,
    pub messages: u64,
    pub store_bytes: u64,
    pub copies_missing: Vec<CopiesMissing>,
    pub domains: Vec<DomainStatus>,
    /// The length of the newest images of all ranks together.
    pub image_bytes: u64,
    /// In how many stores the newest images are, and of how many ranks; 0: those without.
    pub ranks_by_copies: Vec<(usize, usize)>,
    /// How long ranks stand still for an image in the mean, in seconds.
    pub image_pause: Option<f64>,
    /// From one image of a rank to its next, in seconds; `None`: none is taken by the clock.
    pub checkpoint_interval: Option<f64>,
    /// What an image takes until it is stored, in the mean, in seconds.
    pub checkpoint_cost: Option<f64>,
}

/// A job as the page shows it.
#[derive(Debug)]
pub struct Picture {
    version: Version,
    /// The first one: who has seen less has seen another picture.
    first: Version,
    /// The job's time at the last news, in seconds.
    time: f64,
    /// When the event has happened that changes the picture just now; `None`: the job's status
    /// does.
    event_at: Option<f64>,
    head: Part<Head>,
    figures: Part<Figures>,
    summary: Part<Summary>,
    network: Part<Option<NetworkPicture>>,
    traffic: Part<Option<TrafficPicture>>,
    nodes: Vec<Part<NodePicture>>,
    ranks: Vec<Part<RankPicture>>,
    recoveries: Courses<RecoveryPicture>,
    moves: Courses<MovePicture>,
    /// How long ranks stood still for images, and how many images that were.
    pauses: (f64, u64),
    /// The names of the nodes, where they have some.
    hosts: Vec<String>,
}

/// What has changed in a picture, or all of it.
#[derive(Debug, Serialize)]
pub struct Changes<'a> {
    /// What is not in it is not in the picture.
    pub whole: bool,
    pub version: Version,
    pub time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<&'a Head>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figures: Option<&'a Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<&'a Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<&'a NetworkPicture>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<&'a TrafficPicture>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<&'a NodePicture>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<&'a RankPicture>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recoveries: Vec<&'a RecoveryPicture>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<&'a MovePicture>,
}

/// A job in the list of all.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    pub head: Head,
    pub time: f64,
    pub nodes: usize,
    pub summary: Summary,
}

impl Picture {
    pub fn new(job: &str) -> Picture {
        Picture::beginning(job, 1)
    }

    /// That of another job in the place of this one.
    pub fn begin_anew(&self) -> Picture {
        Picture::beginning(&self.head().job, self.version + 1)
    }

    fn beginning(job: &str, version: Version) -> Picture {
        let head = Head { job: job.into(), ..Head::default() };
        Picture {
            version,
            first: version,
            time: 0.0,
            event_at: None,
            head: Part::new(head, version),
            figures: Part::new(Figures::default(), version),
            summary: Part::new(Summary::default(), version),
            network: Part::new(None, version),
            traffic: Part::new(None, version),
            nodes: Vec::new(),
            ranks: Vec::new(),
            recoveries: Courses::default(),
            moves: Courses::default(),
            pauses: (0.0, 0),
            hosts: Vec::new(),
        }
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn head(&self) -> &Head {
        self.head.get()
    }

    /// Whether the job has said that it ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.head().state, JobState::Ended { .. })
    }

    /// Whether news come from the job.
    pub fn set_news(&mut self, news: News) {
        self.version += 1;
        self.head.edit(self.version, |head| head.news = news);
    }

    /// How many nodes are known.
    pub fn count_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Something has happened that is no part of the picture.
    pub fn touch(&mut self) {
        self.version += 1;
    }

    /// What has changed after this version; all, for one who has seen another picture or none.
    pub fn since(&self, version: Version) -> Changes<'_> {
        let whole = version < self.first;
        let version = if whole { 0 } else { version };
        Changes {
            whole,
            version: self.version,
            time: self.time,
            head: self.head.since(version),
            figures: self.figures.since(version),
            summary: self.summary.since(version),
            network: self.network.since(version).and_then(Option::as_ref),
            traffic: self.traffic.since(version).and_then(Option::as_ref),
            nodes: self.nodes.iter().filter_map(|node| node.since(version)).collect(),
            ranks: self.ranks.iter().filter_map(|rank| rank.since(version)).collect(),
            recoveries: self.recoveries.since(version),
            moves: self.moves.since(version),
        }
    }

    pub fn row(&self) -> Row {
        Row {
            head: self.head().clone(),
            time: self.time,
            nodes: self.count_nodes(),
            summary: self.summary.get().clone(),
        }
    }

    /// The names of the nodes, where they have some.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Lets `edit` change a rank, which there is from now on.
    fn rank(&mut self, rank: Rank, edit: impl FnOnce(&mut RankPicture)) {
        let version = self.version;
        let heard = self.event_at;
        for number in self.ranks.len()..(rank.index() + 1).min(MOST) {
            self.ranks.push(Part::new(RankPicture::new(Rank(number as u32)), version));
        }
        if let Some(rank) = self.ranks.get_mut(rank.index()) {
            rank.edit(version, |rank| {
                rank.heard = heard.unwrap_or(rank.heard);
                edit(rank);
                rank.settle();
            });
        }
    }

    /// Lets `edit` change a node, which there is from now on.
    fn node(&mut self, node: NodeId, edit: impl FnOnce(&mut NodePicture)) {
        let version = self.version;
        for number in self.nodes.len()..(node.index() + 1).min(MOST) {
            self.nodes.push(Part::new(NodePicture::new(NodeId(number as u32)), version));
        }
        let heard = self.event_at;
        if let Some(node) = self.nodes.get_mut(node.index()) {
            node.edit(version, |node| {
                node.heard = heard.unwrap_or(node.heard);
                edit(node);
            });
        }
    }

    fn place_of(&self, rank: Rank) -> Option<NodeId> {
        self.ranks.get(rank.index()).and_then(|rank| rank.get().node)
    }
}
