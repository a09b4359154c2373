//! The monitors that ours is compared with: Debian's process-exporter and collectl, which
//! scripts/monitor-tools.sh unpacks into a folder.

use super::process::Running;
use anyhow::{ensure, Context};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// CPU time of a scrape of process-exporter in seconds, `times` times.
pub fn process_exporter(tools: &Path, times: u32) -> anyhow::Result<Vec<f64>> {
    let program = tools.join("usr/bin/prometheus-process-exporter");
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("all.yml");
    // Its documentation's way to group by the name of the command.
    std::fs::write(&config, "process_names:\n  - name: \"{{.Comm}}\"\n    cmdline:\n    - '.+'\n")?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let address = format!("127.0.0.1:{port}");
    let running = Running::start(
        Command::new(&program)
            .arg("-config.path")
            .arg(&config)
            .arg(format!("-web.listen-address={address}")),
    )?;
    let until = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(&address).is_err() {
        ensure!(Instant::now() < until, "process-exporter does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    scrape(&address)?;
    (0..times)
        .map(|_| {
            let before = running.cpu()?;
            scrape(&address)?;
            Ok((running.cpu()? - before).as_secs_f64())
        })
        .collect()
}

fn scrape(address: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(
        text.contains("namedprocess_namegroup_cpu_seconds_total"),
        "process-exporter shows no processes"
    );
    Ok(())
}

/// CPU time of a sample of all processes by collectl in seconds: the mean over its samples, which
/// it takes every second.
pub fn collectl(tools: &Path, samples: u32) -> anyhow::Result<f64> {
    let cpu_after = |count: u32| -> anyhow::Result<f64> {
        let begin = children_cpu();
        let done = Command::new("perl")
            .arg(tools.join("usr/bin/collectl"))
            .args(["-sZ", "-i1:1", &format!("-c{count}")])
            .output()
            .context("cannot run collectl (is perl there?)")?;
        ensure!(done.status.success() && !done.stdout.is_empty(), "collectl shows no processes");
        Ok(children_cpu() - begin)
    };
    // Both contain the cost of starting.
    let few = cpu_after(1)?;
    Ok(((cpu_after(1 + samples)? - few) / f64::from(samples)).max(0.0))
}

/// CPU time of reaped children, in seconds.
fn children_cpu() -> f64 {
    // SAFETY: a rusage of zeros is valid, and `getrusage` writes only to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The programs that are missing.
pub fn missing(tools: &Path) -> Vec<&'static str> {
    [("prometheus-process-exporter", "process-exporter"), ("collectl", "collectl")]
        .into_iter()
        .filter(|(file, _)| !tools.join("usr/bin").join(file).exists())
        .map(|(_, name)| name)
        .collect()
}
