//! What users ask of a running job, and what it answers: the types that both sides share. It must
//! never know how a job is asked, nor decide anything.

pub mod answer;
pub mod health;
pub mod inject;
pub mod manner;
mod move_phase;
pub mod network;
pub mod options;
pub mod output;
pub mod proposal;
pub mod record;
pub mod request;
pub mod seconds;
pub mod status;
pub mod traffic;

pub use inject::Injection;
pub use manner::{IfSlow, Manner, Way};
pub use options::{Order, RolesAt};
pub use proposal::Goal;
pub use record::Record;
pub use request::{FirstEvent, Request};
pub use status::{Status, Summary};

#[cfg(test)]
mod tests {
    use super::answer::{Checkpoints, Outcome};
    use super::record::{Line, MovePhase};
    use super::status::{CopiesMissing, DomainMoveStatus, DomainStatus, ImageStatus, Kept};
    use super::status::{LeavingStatus, LineStatus, LineTraffic, LogStatus, MoveStatus};
    use super::status::{OverdueStatus, RankStatus, RoleStatus};
    use super::*;
    use eyrie_wire::RankInstance;
    use eyrie_wire::{ImageId, Incarnation, NodeId, Rank, RouterId, StoreId};
    use serde::de::DeserializeOwned;
    use serde::Serialize;
    use std::time::Duration;

    fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(it: &T) -> String {
        let text = serde_json::to_string(it).unwrap();
        assert_eq!(serde_json::from_str::<T>(&text).unwrap(), *it);
        text
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let asked = survives(&Request::Checkpoint { rank: Some(Rank(3)) });
        assert_eq!(asked, r#"{"request":"checkpoint","rank":3}"#);
        let manner = Manner::default();
        survives(&Request::Migrate { ranks: vec![Rank(1), Rank(4)], to: None, manner });
        survives(&Request::Rearrange {
            moves: vec![(Rank(1), NodeId(2))],
            drains: vec![NodeId(3)],
            whole: true,
            manner,
        });
        survives(&Request::Propose { left: Duration::from_secs(60) });
        let goal = Goal::Balance { payback: Duration::from_secs(60) };
        survives(&Request::Measure { over: Duration::from_millis(1500), goal });
        let injection: Injection = "kill-rank=1@1.5s".parse().unwrap();
        let asked = survives(&Request::Inject { injection });
        assert_eq!(asked, r#"{"request":"inject","spec":"kill-rank=1@1.5s"}"#);
        let subscribed = |from| survives(&Request::Subscribe { from });
        assert_eq!(subscribed(FirstEvent::At(7)), r#"{"request":"subscribe","from":7}"#);
        assert_eq!(subscribed(FirstEvent::Oldest), r#"{"request":"subscribe","from":"oldest"}"#);
        subscribed(FirstEvent::New);
        let new = Request::parse(r#"{"request":"subscribe"}"#);
        assert_eq!(new, Ok(Request::Subscribe { from: FirstEvent::New }));
        survives(&Request::Join { host: "n3".into(), allocation: Some(4711) });
        survives(&Request::Routes { pairs: vec![(NodeId(0), NodeId(1))] });
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let stored = Outcome::Stored {
            rank: Rank(0),
            image: ImageId(2),
            bytes: 9,
            pause_ms: 0.5,
            total_ms: 12.25,
        };
        let failed = Outcome::Failed { rank: Rank(1), failed: "it has ended".into() };
        survives(&Checkpoints { checkpoints: vec![stored, failed] });
        let rank = RankStatus {
            instance: RankInstance { rank: Rank(3), incarnation: Incarnation(2) },
            node: NodeId(1),
            state: "running".into(),
            image: Some(ImageStatus {
                number: ImageId(7),
                copies: 2,
                stores: vec![StoreId(1), StoreId(2)],
                bytes: 90,
                file_bytes: 40,
            }),
            overdue: Some(OverdueStatus { seconds: 1.5, cause: "why".into() }),
        };
        let role = RoleStatus { role: "router 0".into(), node: NodeId(1) };
        let moving =
            MoveStatus { rank: Rank(3), to: None, rounds: 2, bytes: 9, took: 0.25, slowed: 20 };
        let line = Some(LineStatus { up: true, seconds: 1.5 });
        let name = "cloud".to_string();
        let gateway = "gw:7411".to_string();
        let traffic = Some(LineTraffic {
            round_trip_s: Some(0.25),
            received_bytes: 9,
            last_second_bytes: 1,
            most_in_a_second_bytes: 5,
        });
        let other = DomainStatus {
            name,
            ranks: 4,
            gateway,
            line,
            traffic,
            waiting_bytes: 3,
            letters: 1,
            finished: Some(0),
            gone: false,
            joins: false,
        };
        let phase = MovePhase::Flushed;
        let leaving = Some(LeavingStatus { phase, round: 0, left: 1, left_bytes: 7 });
        let leaves = DomainMoveStatus { from: "home".into(), to: "cloud".into(), leaving };
        let text = survives(&Status {
            job: "melt".into(),
            program: "./melt".into(),
            nodes_up: vec![true, false],
            drained: vec![NodeId(1)],
            hosts: vec!["a".into(), "b".into()],
            domain: Some("home".into()),
            domains: vec![other],
            domain_moves: vec![leaves],
            output: Some("/w/eyrie-melt.out".into()),
            ranks: vec![rank],
            moves: vec![moving],
            roles: vec![role],
            journal: vec![NodeId(0)],
            cut_off: Some(2.5),
            unprotected: vec![Rank(3)],
            copies_missing: vec![CopiesMissing { what: Kept::Images, cause: "why".into() }],
            logs: vec![LogStatus { router: RouterId(0), memory_bytes: 1, disk_bytes: 2 }],
            log_memory_bytes: 1,
            log_disk_bytes: 2,
            messages: 3,
            store_bytes: 4,
            checkpoint_interval: Some(30.0),
            checkpoint_cost: None,
            summary: Summary { elapsed: Duration::from_millis(1250), ..Summary::default() },
        });
        assert!(text.contains(r#""ranks":[{"rank":3,"incarnation":2,"node":1,"#), "{text}");
        assert!(text.contains(r#""summary":{"elapsed":1.25,"#), "{text}");
    }

    #[test]
    fn lines_of_the_event_stream_are_read_as_they_were_written() {
        let instance = RankInstance { rank: Rank(3), incarnation: Incarnation(2) };
        let record = Record::RankFailed { instance, node: NodeId(1), cause: "why".into() };
        let text = serde_json::to_string(&Line { seq: 7, time: 1.5, record: &record }).unwrap();
        assert_eq!(text, survives(&Line { seq: 7, time: 1.5, record }));
    }
}
