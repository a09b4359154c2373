//! The library without its server is small: it brings neither HTTP nor an async runtime.

use std::process::Command;

fn depends_on(features: &[&str]) -> Vec<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "-p", "eyrie-monitor", "-e", "normal", "--prefix", "none"])
        .args(features)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let words = |line: &str| line.split(' ').next().unwrap_or_default().to_string();
    String::from_utf8(tree.stdout).expect("text").lines().map(words).collect()
}

#[test]
fn http_and_tokio_come_with_the_server_only() {
    let server = ["tokio", "hyper", "hyper-util", "http", "http-body-util", "prometheus-client"];
    let has = |features: &[&str]| {
        let all = depends_on(features);
        server.map(|name| all.iter().any(|dependency| dependency == name))
    };
    assert_eq!(has(&[]), [false; 6]);
    assert_eq!(has(&["--features", "server"]), [true; 6]);
}
