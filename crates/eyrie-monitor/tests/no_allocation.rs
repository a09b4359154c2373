//! A tick allocates nothing, whatever the reader, while processes come and go.

use eyrie_monitor::policy::Policy;
use eyrie_monitor::reader::Kind;
use eyrie_monitor::sampling_thread::{Config, Sampler};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::{Child, Command};
use std::time::Duration;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged, and counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promises are those that `System` needs.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promises are those that `System` needs.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn children(count: usize) -> Vec<Child> {
    (0..count).map(|_| Command::new("sleep").arg("1000").spawn().unwrap()).collect()
}

fn end(children: &mut Vec<Child>) {
    for mut child in children.drain(..) {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_tick_allocates_nothing() {
    let mut tried = 0;
    for kind in Kind::ALL {
        for policy in [Policy::Off, Policy::Threshold { share: 0.1 }, Policy::Error { share: 0.01 }]
        {
            let interval = Duration::from_millis(25);
            let config = Config {
                reader: Some(kind),
                policy,
                interval,
                budget: Some(1.0),
                ..Config::default()
            };
            let mut sampler = match Sampler::prepare(config) {
                Ok(sampler) => sampler,
                // Not available to this user or on this node; other tests check the reasons.
                Err(why) if why.contains("not available") => continue,
                Err(why) => panic!("{why}"),
            };
            tried += 1;
            let ring = sampler.ring();
            let mut running = Vec::new();
            for round in 0..4 {
                if round % 2 == 0 {
                    running = children(5);
                } else {
                    end(&mut running);
                }
                let before = COUNT.with(Cell::get);
                sampler.tick(&ring);
                sampler.tick(&ring);
                assert_eq!(COUNT.with(Cell::get), before, "{kind:?} with {policy:?} allocates");
                let frame = ring.latest().unwrap();
                for child in &running {
                    assert!(
                        frame.processes.iter().any(|p| p.pid == child.id()),
                        "{kind:?} misses a new process"
                    );
                }
            }
            end(&mut running);
        }
    }
    assert!(tried >= 6, "at least /proc and CPU clocks work everywhere");
}
