//! Where traces go: a collector that takes OTLP over HTTP.

use hyper::http::uri::Authority;
use hyper::Uri;
use std::fmt;
use std::str::FromStr;

/// The path of traces, which the protocol adds to the address of a collector.
const PATH: &str = "/v1/traces";

/// The address of a collector's traces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Collector(String);

impl FromStr for Collector {
    type Err = String;

    /// Reads `http://HOST:PORT`, as OTEL_EXPORTER_OTLP_ENDPOINT has it too.
    fn from_str(text: &str) -> Result<Collector, String> {
        let write = "write http://HOST:4318, where a collector takes OTLP over HTTP";
        let uri: Uri = text.parse().map_err(|e| format!("{text:?}: {e}; {write}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(format!(
                    "{text:?}: traces go over plain HTTP: send them to a collector on this host or \
                     in this network, which can pass them on over TLS"
                ))
            }
            _ => return Err(format!("{text:?}: {write}")),
        }
        // What stands behind the host is a port, and no name and password are sent.
        let is_good = |at: &Authority| at.as_str() == at.host() || at.port_u16().is_some();
        if !uri.authority().is_some_and(is_good) || text.contains(['?', '@', '#']) {
            return Err(format!("{text:?}: {write}"));
        }
        let base = text.trim_end_matches('/');
        let path = if base.ends_with(PATH) { "" } else { PATH };
        Ok(Collector(format!("{base}{path}")))
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_traces_is_added_unless_it_is_there() {
        let of = |text: &str| text.parse::<Collector>().map(|of| of.to_string());
        let traces = Ok("http://localhost:4318/v1/traces".to_string());
        for text in
            ["http://localhost:4318", "http://localhost:4318/", "http://localhost:4318/v1/traces"]
        {
            assert_eq!(of(text), traces);
        }
        assert_eq!(of("http://h/otlp"), Ok("http://h/otlp/v1/traces".into()));
        for (wrong, remedy) in [
            ("localhost:4318", "write http://HOST:4318"),
            ("grpc://h:4317", "write http://HOST:4318"),
            ("http://h:x", "write http://HOST:4318"),
            ("http://me:secret@h:4318", "write http://HOST:4318"),
            ("", "write http://HOST:4318"),
            ("https://h:4318", "over plain HTTP"),
        ] {
            let error = of(wrong).unwrap_err();
            assert!(error.contains(remedy) && !error.contains('\n'), "{wrong}: {error}");
        }
    }
}
