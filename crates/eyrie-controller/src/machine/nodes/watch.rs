//! What may be changed, and what is asked, when nodes come, answer or are lost.

use super::contact::Contact;
use super::reach::Reach;
use super::Nodes;
use crate::machine::config::Config;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::Ranks;
use crate::machine::roles::missing::Redundancy;
use crate::machine::roles::Roles;

pub struct Watch<'a> {
    pub config: &'a Config,
    pub out: &'a mut Outbox,
    pub nodes: &'a mut Nodes,
    pub contact: &'a mut Contact,
    pub reach: &'a mut Reach,
    pub ranks: &'a Ranks,
    pub roles: &'a Roles,
    pub redundancy: &'a Redundancy,
}
