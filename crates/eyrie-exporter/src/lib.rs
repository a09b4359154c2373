//! What `eyrie monitor` and a job have in common that answer Prometheus: where to listen, a server
//! that no client can hold up, and the text of metrics. It must never know what the metrics are of.

pub mod listen;
pub mod server;
pub mod text;
