//! Every rule of the default file, and the parts of rules, on a fake node.

use super::*;
use std::path::Path;

const SECOND: Duration = Duration::from_secs(1);

struct FakeNode {
    root: tempfile::TempDir,
    world: World,
    health: Health,
    now: Duration,
}

impl FakeNode {
    /// An empty node with these rules.
    fn new(rules: Rules) -> FakeNode {
        let root = tempfile::tempdir().unwrap();
        let world = World { clock: || (true, SECOND), ..World::new(root.path()) };
        FakeNode { world, health: Health::new(rules, "n1"), now: SECOND, root }
    }

    /// A node with one of the default rules, read every second.
    fn with(rule: &str) -> FakeNode {
        let mut rules = Rules::default();
        rules.rule.retain(|r| r.name == rule);
        assert_eq!(rules.rule.len(), 1, "there is a rule {rule}");
        rules.rule[0].every = time::Time(SECOND);
        FakeNode::new(rules)
    }

    fn put(&self, path: &str, text: impl ToString) {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text.to_string()).unwrap();
    }

    /// Reads once, `after` later.
    fn check_after(&mut self, after: Duration) -> Vec<Event> {
        self.now += after;
        self.health.check(&self.world, self.now, 7)
    }

    fn check(&mut self) -> Vec<Event> {
        self.check_after(SECOND)
    }

    /// Reads once; returns the only event.
    fn event(&mut self) -> Event {
        let mut events = self.check();
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }
}

/// An executable script. Another process writes it: if this one had it open for writing, a child of
/// another test would inherit it, and the kernel does not execute a file that is open for writing.
fn program(dir: &Path, text: &str) -> String {
    let path = dir.join("program").to_str().unwrap().to_string();
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod 755 "$2""#;
    let mut shell = std::process::Command::new("sh");
    assert!(shell.args(["-c", write, "sh", text, &path]).status().unwrap().success());
    path
}

#[test]
fn the_default_rules_have_sources_and_an_empty_node_is_ok() {
    let mut node = FakeNode::new(Rules::default());
    node.put("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n");
    let mut rules = Rules::default();
    // Drives and file systems are those of the machine that runs the test.
    rules.rule.retain(|r| !r.name.starts_with("disk"));
    node.health = Health::new(rules, "n1");
    assert_eq!(node.check(), []);
    assert_eq!(node.health.state(), HealthState::Ok);
    assert!(Rules::default().rule.iter().all(|r| r.source.len() > 20));
}

#[test]
fn corrected_errors_fill_a_bucket_that_leaks() {
    let mut node = FakeNode::with("memory-corrected-errors");
    let dimm = "sys/devices/system/edac/mc/mc0/dimm3/";
    node.put(&format!("{dimm}dimm_label"), "DIMM_A1\n");
    node.put(&format!("{dimm}dimm_ce_count"), "1000\n");
    assert_eq!(node.check(), [], "what happened before the first reading does not count");
    node.put(&format!("{dimm}dimm_ce_count"), "1009\n");
    assert_eq!(node.check(), [], "9 are below 10");
    node.put(&format!("{dimm}dimm_ce_count"), "1011\n");
    let event = node.event();
    assert_eq!(
        (event.what.as_str(), event.from, event.to),
        ("DIMM_A1", HealthState::Ok, HealthState::Suspect)
    );
    assert!(event.evidence.read_from.ends_with("mc0/dimm3/dimm_ce_count"));
    assert!(event.evidence.source.contains("mcelog") && event.evidence.value > Some(10.9));
    node.put(&format!("{dimm}dimm_ce_count"), "1060\n");
    assert_eq!(node.event().to, HealthState::Failing);
    // Hysteresis: two days later the bucket is empty, and an hour after that the state ends.
    assert_eq!(node.check_after(Duration::from_secs(2 * 86_400)), []);
    let events = node.check_after(Duration::from_secs(3600));
    assert_eq!((events[0].to, events[0].node_state), (HealthState::Ok, HealthState::Ok));
}

#[test]
fn nine_errors_a_day_for_a_month_do_not_count() {
    let mut node = FakeNode::with("memory-corrected-errors");
    for day in 0..30 {
        node.put("sys/devices/system/edac/mc/mc0/ce_count", 9 * day);
        assert_eq!(node.check_after(Duration::from_secs(86_400)), []);
    }
}

#[test]
fn one_uncorrected_error_is_enough() {
    let mut node = FakeNode::with("memory-uncorrected-errors");
    node.put("sys/devices/system/edac/mc/mc1/ue_count", 0);
    assert_eq!(node.check(), []);
    node.put("sys/devices/system/edac/mc/mc1/ue_count", 1);
    let event = node.event();
    assert_eq!(
        (event.what.as_str(), event.to, event.node_state),
        ("mc1", HealthState::Failing, HealthState::Failing)
    );
}

#[test]
fn a_sensor_must_stay_hot_to_raise_and_cool_down_well_to_clear() {
    let mut node = FakeNode::with("temperature");
    let sensor = |node: &FakeNode, now: i32| {
        node.put("sys/class/hwmon/hwmon2/name", "k10temp");
        node.put("sys/class/hwmon/hwmon2/temp1_crit", 95_000);
        node.put("sys/class/hwmon/hwmon2/temp1_input", now);
    };
    sensor(&node, 96_000);
    assert!(node.check().is_empty() && node.check().is_empty(), "two readings may be an accident");
    let event = node.event();
    assert_eq!(
        (event.to, event.evidence.value, event.evidence.threshold),
        (HealthState::Failing, Some(1.0), Some(0.0))
    );
    assert!(event.evidence.said.contains("critical at 95"));
    sensor(&node, 91_000);
    assert!(node.check().is_empty());
    let events = node.check_after(Duration::from_secs(60));
    assert_eq!(events[0].to, HealthState::Suspect, "below critical, but near");
    sensor(&node, 86_000);
    assert!(
        node.check().is_empty() && node.check_after(Duration::from_secs(600)).is_empty(),
        "not cool enough to clear"
    );
    sensor(&node, 80_000);
    assert!(node.check().is_empty());
    assert_eq!(node.check_after(Duration::from_secs(60))[0].to, HealthState::Ok);
    // A sensor without a critical temperature is not judged.
    node.put("sys/class/hwmon/hwmon3/temp1_input", 999_000);
    assert_eq!(node.check(), []);
}

#[test]
fn throttling_network_and_infiniband_are_counted() {
    let cases = [
        (
            "throttling",
            "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count",
            10,
            HealthState::Suspect,
        ),
        ("network-errors", "sys/class/net/eth0/statistics/rx_errors", 100, HealthState::Suspect),
        ("network-errors", "sys/class/net/eth0/statistics/rx_errors", 10_000, HealthState::Failing),
        (
            "infiniband-errors",
            "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error",
            120,
            HealthState::Suspect,
        ),
        (
            "infiniband-link-down",
            "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed",
            3,
            HealthState::Failing,
        ),
    ];
    for (rule, file, count, state) in cases {
        let mut node = FakeNode::with(rule);
        node.put("sys/class/net/eth0/statistics/tx_errors", 0);
        node.put("sys/class/net/lo/statistics/rx_errors", 1_000_000);
        node.put("sys/class/net/lo/statistics/tx_errors", 0);
        node.put(file, 5);
        assert_eq!(node.check(), [], "{rule}");
        node.put(file, 5 + count - 1);
        let almost = node.check();
        assert!(almost.iter().all(|e| e.to < state), "{rule}: {almost:?}");
        // Some leak away in the seconds in between.
        node.put(file, 5 + count + count / 10 + 1);
        assert_eq!(node.event().to, state, "{rule}");
    }
}

#[test]
fn a_counter_that_was_reset_counts_from_nothing() {
    let mut node = FakeNode::with("throttling");
    let file = "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count";
    node.put(file, 1_000_000);
    assert_eq!(node.check(), []);
    node.put(file, 3);
    assert_eq!(node.check(), []);
    node.put(file, "not a number");
    assert_eq!(node.check(), []);
}

#[test]
fn drives_are_read_through_smartctl() {
    let dir = tempfile::tempdir().unwrap();
    let fake = program(
        dir.path(),
        r#"case "$*" in
*--scan*) echo '{"devices":[{"name":"/dev/sda"},{"name":"/dev/nvme0"},{"name":"/dev/broken"}]}';;
*sda*) echo '{"smart_status":{"passed":true},"ata_smart_attributes":{"table":[{"id":5,"name":"Reallocated_Sector_Ct","raw":{"value":8}},{"id":194,"name":"Temperature","raw":{"value":40}}]}}'; exit 64;;
*nvme0*) echo '{"smart_status":{"passed":false},"nvme_smart_health_information_log":{"critical_warning":4,"media_errors":0}}'; exit 8;;
*) echo garbage; exit 2;;
esac"#,
    );
    let with = |rule: &str| {
        let mut rules = Rules::default();
        rules.rule.retain(|r| r.name == rule);
        match &mut rules.rule[0].read {
            probe::Probe::Smart { program, .. } | probe::Probe::SmartVerdict { program } => {
                *program = Some(fake.clone())
            }
            _ => unreachable!(),
        }
        FakeNode::new(rules)
    };
    let event = with("disk-sectors").event();
    assert_eq!(
        (event.what.as_str(), event.to),
        ("/dev/sda 5 Reallocated_Sector_Ct", HealthState::Suspect)
    );
    let event = with("disk-verdict").event();
    assert_eq!((event.what.as_str(), event.to), ("/dev/nvme0", HealthState::Failing));
}

#[test]
fn space_and_memory_run_out() {
    let mut rules = Rules::default();
    rules.rule.retain(|r| r.name == "disk-full");
    // The used part of this machine's disk is above zero.
    (rules.rule[0].suspect, rules.rule[0].failing) = (Some(0.0), None);
    let mut node = FakeNode::new(rules);
    let event = node.event();
    assert_eq!(
        (event.what.as_str(), event.to),
        ("/", HealthState::Suspect),
        "/tmp and /var are not there"
    );
    let mut node = FakeNode::with("memory-exhausted");
    node.put("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 45 kB\n");
    assert!(node.check().is_empty() && node.check().is_empty());
    let event = node.event();
    assert_eq!((event.to, event.evidence.value), (HealthState::Suspect, Some(0.955)));
    node.put("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 5 kB\n");
    assert!(node.check().is_empty() && node.check().is_empty());
    assert_eq!(node.event().to, HealthState::Failing);
}

#[test]
fn a_clock_that_is_not_synchronized() {
    let mut node = FakeNode::with("clock");
    node.world.clock = || (false, SECOND);
    assert!((0..3).all(|_| node.check().is_empty()));
    assert_eq!(node.event().to, HealthState::Suspect);
    node.world.clock = || (true, SECOND);
    assert!(node.check().is_empty());
    assert_eq!(node.check_after(Duration::from_secs(60))[0].to, HealthState::Ok);
}

#[test]
fn a_check_of_the_site_has_a_time_limit() {
    let dir = tempfile::tempdir().unwrap();
    let judge = |text: &str| {
        let check = program(dir.path(), text);
        let rules = Rules::parse(&format!(
            "[[rule]]\nname = 'site'\nsource = 'ours'\nfailing = 1\n\
             read = {{ probe = 'check', program = '{check}', limit = '200ms' }}\n"
        ));
        FakeNode::new(rules.unwrap()).check()
    };
    assert_eq!(judge("exit 0"), []);
    let events = judge("echo 'the scratch file system is gone'; exit 3");
    assert_eq!(events[0].to, HealthState::Failing);
    assert!(
        events[0].evidence.said.contains("exit code 3")
            && events[0].evidence.said.contains("scratch")
    );
    assert!(judge("kill -9 $$")[0].evidence.said.contains("signal 9"));
    // It ignores SIGTERM, and its child holds its output open.
    let begin = std::time::Instant::now();
    let events = judge("trap '' TERM; sleep 60 & sleep 60");
    assert!(events[0].evidence.said.contains("did not end within 200 ms"), "{events:?}");
    assert!(begin.elapsed() < Duration::from_secs(30));
    std::fs::remove_file(dir.path().join("program")).unwrap();
}

#[test]
fn a_rule_is_raised_by_hand() {
    let mut node = FakeNode::with("clock");
    let event = node.health.inject("clock", HealthState::Failing, 5).unwrap();
    assert!(event.evidence.injected && event.node_state == HealthState::Failing);
    assert_eq!(node.health.states(), [("clock".to_string(), HealthState::Failing)]);
    assert_eq!(node.check(), [], "readings do not clear it");
    assert_eq!(node.health.state(), HealthState::Failing);
    assert_eq!(node.health.inject("clock", HealthState::Ok, 6).unwrap().from, HealthState::Failing);
    assert_eq!(node.health.state(), HealthState::Ok);
    assert!(node.health.inject("nothing", HealthState::Failing, 5).unwrap_err().contains("clock"));
}

#[test]
fn rules_that_are_wrong_are_refused() {
    let rule = |rest: &str| {
        Rules::parse(&format!("[[rule]]\nname = 'a'\n{rest}\n")).err().unwrap_or_default()
    };
    assert!(rule("read = { probe = 'memory' }\nfailing = 1").contains("source"));
    assert!(
        rule("read = { probe = 'memory' }\nsource = ''\nfailing = 1").contains("source is empty")
    );
    assert!(rule("read = { probe = 'memory' }\nsource = 's'").contains("neither"));
    assert!(rule("read = { probe = 'memory' }\nsource = 's'\nsuspect = 2\nfailing = 1")
        .contains("above failing"));
    assert!(rule("read = { probe = 'phase-of-the-moon' }\nsource = 's'\nfailing = 1")
        .contains("phase-of-the-moon"));
    assert!(rule("read = { probe = 'memory' }\nsource = 's'\nfailing = 1\nwithin = '5'")
        .contains("unit"));
    assert!(rule("read = { probe = 'memory' }\nsource = 's'\nfailing = 1\nfailling = 2")
        .contains("failling"));
    assert_eq!(rule("read = { probe = 'memory' }\nsource = 's'\nfailing = 1"), "");
}

#[test]
fn links_and_processors_should_stay_as_fast_as_they_were() {
    for (rule, path, fast, slow) in [
        ("link-speed", "sys/class/net/eth0/speed", 10_000, 1_000),
        (
            "processor-limit",
            "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq",
            3_000_000,
            800_000,
        ),
    ] {
        let mut node = FakeNode::with(rule);
        node.put("sys/class/net/eth0/operstate", "up");
        node.put(path, slow);
        assert_eq!(node.check(), [], "it was never faster");
        node.put(path, fast);
        assert_eq!(node.check(), []);
        node.put(path, slow);
        assert_eq!(node.check(), [], "once is not enough");
        assert_eq!(node.event().to, HealthState::Suspect);
        node.put(path, fast);
        assert_eq!(node.check(), []);
        assert_eq!(node.check_after(Duration::from_secs(60)).len(), 1, "{rule} is over");
    }
    let mut node = FakeNode::with("link-speed");
    node.put("sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)");
    node.put("sys/class/net/eth1/speed", "-1");
    node.put("sys/class/net/eth1/operstate", "up");
    assert_eq!(node.check(), []);
    node.put("sys/class/infiniband/mlx5_0/ports/1/rate", "2.5 Gb/sec (1X SDR)");
    node.check();
    assert_eq!(node.event().what, "mlx5_0 port 1");
}

#[test]
fn processes_that_wait_for_memory_make_a_node_suspect() {
    let mut node = FakeNode::with("memory-pressure");
    let waits = |full: &str| {
        format!(
            "some avg10=9.00 avg60=0.00 avg300=0.00 total=9\nfull avg10={full} avg60=0 total=1\n"
        )
    };
    node.put("proc/pressure/memory", waits("25.00"));
    assert_eq!((node.check(), node.check()), (vec![], vec![]));
    let event = node.event();
    assert_eq!((event.to, event.evidence.value), (HealthState::Suspect, Some(25.0)));
}

#[test]
fn a_clock_that_is_set_is_found_and_one_that_is_only_wrong_is_not() {
    let mut node = FakeNode::with("clock-step");
    let booted = |at: u64| format!("cpu  1 2 3 4\nintr 5\nbtime {at}\nprocesses 7\n");
    node.put("proc/stat", booted(1_000_000));
    assert_eq!(node.check(), []);
    node.put("proc/stat", booted(1_000_001));
    assert_eq!(node.check(), [], "a second is how exact it is");
    node.put("proc/stat", booted(1_003_600));
    let event = node.event();
    assert_eq!((event.to, event.evidence.value), (HealthState::Suspect, Some(3599.0)));
    assert_eq!(node.check(), []);
    assert_eq!(node.check_after(Duration::from_secs(60))[0].to, HealthState::Ok);
}

#[test]
fn rules_that_are_not_for_jobs_are_left_out_there() {
    let names = |rules: Rules| rules.rule.into_iter().map(|r| r.name).collect::<Vec<_>>();
    let all = names(Rules::default());
    let of_jobs = names(Rules::default().of_jobs());
    let left: Vec<&String> = all.iter().filter(|name| !of_jobs.contains(name)).collect();
    assert_eq!(left, ["clock"]);
}
