//! A crowd of idle processes to be sampled. They end when the crowd is dropped, or when the process
//! that made it dies.

use anyhow::Context;
use std::io::Read;
use std::process::{Child, Command, Stdio};

pub struct Crowd {
    members: Vec<Child>,
}

impl Crowd {
    /// Starts processes with `threads` threads each, and waits until all have them.
    pub fn start(processes: usize, threads: usize) -> anyhow::Result<Crowd> {
        let mut crowd = Crowd { members: Vec::new() };
        for _ in 0..processes {
            let child = Command::new("/proc/self/exe")
                .args(["monitor", "crowd-member", &threads.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .with_context(|| {
                    format!("cannot start process {} of {processes}", crowd.members.len() + 1)
                })?;
            crowd.members.push(child);
        }
        for child in &mut crowd.members {
            let mut ready = [0];
            child
                .stdout
                .as_mut()
                .expect("piped")
                .read_exact(&mut ready)
                .context("a process of the crowd has died")?;
        }
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.members {
            drop(child.stdin.take());
        }
        for child in &mut self.members {
            let _ = child.wait();
        }
    }
}

/// Runs as a member of the crowd: sleeps with its threads until standard input ends.
pub fn member(threads: usize) -> anyhow::Result<()> {
    for _ in 1..threads {
        std::thread::Builder::new().stack_size(64 << 10).spawn(|| loop {
            std::thread::park();
        })?;
    }
    std::io::Write::write_all(&mut std::io::stdout(), b"\n")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
