//! Domains that join simulated jobs, and controllers that die.

use super::*;
use eyrie_interface::request::{NewDomain, NewGateway};

impl World {
    /// A user asks for a domain more: a new one, or one that may have ended.
    pub(super) fn ask_to_join(&mut self) {
        let Site { machine, asked, .. } = &mut self.sites[0];
        let keys = machine.domains().map_or(0, |domains| domains.all.len());
        let keys = (0..keys).map(|_| LineKey::new()).collect();
        *asked += 1;
        let request = *asked;
        let name = format!("site-{}", self.random.gen_range(1..5));
        let address = format!("gw-{request}:7411");
        let gateway = NewGateway { host: "gw".into(), address, port: 7411 };
        let (hosts, spares, launcher, via) = Default::default();
        let new = NewDomain { name, hosts, spares, launcher, gateway, via };
        self.say(0, Says::User, Event::JoinDomain { request, new, keys });
    }

    /// The controller of a domain is to be started, and may not be, or not come.
    pub(super) fn start_domain(&mut self, domains: Domains) {
        let id = domains.own;
        let config = config(domains, self.sites[0].machine.ranks.len() as u32);
        // Numbers of domains that were never started are those of no site.
        while self.sites.len() < id.index() {
            let mut never = Site::new(config.clone(), self.now);
            never.ended = Some((0, None));
            never.is_member = false;
            self.sites.push(never);
        }
        if self.random.gen_bool(0.1) {
            let cause = "ssh fails".into();
            return self.say(0, Says::User, Event::DomainLost { domain: id, code: 1, cause });
        }
        let config = Config { joins: true, ..config };
        self.sites.push(Site::new(config, self.now));
        self.joining = Some(id.index());
        if self.random.gen_bool(0.9) {
            self.start_agents(id.index());
        }
        if self.random.gen_bool(0.2) {
            let site = self.any_site();
            self.fail(site);
        }
    }

    pub(super) fn has_joined(&mut self) {
        let site = self.joining.take().expect("a domain that was not started has joined");
        self.joined += 1;
        self.sites[site].is_member = true;
        let ended = &self.sites[site].ended;
        assert!(ended.is_none(), "site {site} joins, and has ended: {ended:?}");
    }

    /// The connection to a domain that has not joined is closed.
    pub(super) fn has_stayed_out(&mut self) {
        self.stayed_out += 1;
        if let Some(site) = self.joining.take() {
            self.say(site, Says::User, Event::Unwatched);
        }
    }

    /// `eyrie run` sees when the controller of a domain that joins has ended, and its own end is
    /// seen by those that have not joined.
    pub(super) fn see_end(&mut self, site: usize) {
        if site == 0 {
            // Its connections to those that are no part of the job end with it.
            let out = (1..self.sites.len()).filter(|other| !self.sites[*other].is_member);
            let out: Vec<usize> = out.collect();
            out.into_iter().for_each(|other| self.say(other, Says::User, Event::Unwatched));
        }
        if self.joining == Some(site) {
            let domain = DomainId(site as u32);
            let cause = "it has ended".into();
            self.say(0, Says::User, Event::DomainLost { domain, code: 1, cause });
        }
    }

    /// The controller of a site dies. Another one goes on from a snapshot, which `eyrie run` has
    /// started for other sites than its own.
    pub(super) fn replace_controller(&mut self, site: usize) {
        let Site { machine, ended: None, .. } = &mut self.sites[site] else { return };
        if !machine.has_started() || machine.has_ended() {
            return;
        }
        let snapshot = machine.snapshot().unwrap();
        *machine = Machine::new(machine.config.clone());
        machine.restore(&snapshot).unwrap();
        self.resumed += 1;
        // What it was about to find out is lost.
        self.sites[site].queues.remove(&Says::Itself);
        self.handle(site, Event::Resumed);
        // Lines are broken for longer than a domain waits that no `eyrie run` watches. One that
        // stays out is not watched.
        if self.sites[site].is_member || self.joining == Some(site) {
            self.handle(site, Event::Watched);
        }
    }
}
