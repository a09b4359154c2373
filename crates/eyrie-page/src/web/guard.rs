//! Who may ask for what. A page of another site that is open in the same browser must never learn
//! anything nor do anything here: it cannot name this host, cannot send the token, and its origin
//! is refused.

use super::failure::Failure;
use super::token::Token;
use axum::http::uri::Authority;
use axum::http::{header, HeaderMap, HeaderName, HeaderValue, Method};
use axum::response::Response;
use std::net::IpAddr;

/// What a browser says of the site that a request comes from.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The page loads only what is here, and is shown in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Decides who may ask for what.
#[derive(Debug)]
pub struct Guard {
    token: Option<blake3::Hash>,
    /// The names of this host.
    names: Vec<String>,
}

/// The names by which this host is asked for, besides its addresses.
pub fn own_names() -> Vec<String> {
    let full = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let short = full.split('.').next().unwrap_or_default().to_string();
    vec!["localhost".into(), full, short]
}

impl Guard {
    pub fn new(token: Option<&Token>, names: Vec<String>) -> Guard {
        Guard { token: token.map(Token::hash), names }
    }

    /// Whether the request is for this host, and comes from no other site.
    ///
    /// # Errors
    /// When it is not.
    pub fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<(), Failure> {
        let host = text(headers, &header::HOST).unwrap_or_default();
        if !self.is_own(host) {
            return Err(Failure::forbidden(format!(
                "the page does not answer as {host:?}: use localhost, the name of its host or its \
                 address"
            )));
        }
        let changes = !matches!(*method, Method::GET | Method::HEAD);
        let is_other = |origin: &str| origin != format!("http://{host}");
        if text(headers, &header::ORIGIN).is_some_and(is_other) {
            return Err(Failure::forbidden("requests of other sites are refused"));
        }
        let from_other = |site: &str| !matches!(site, "same-origin" | "none");
        if changes && text(headers, &FETCH_SITE).is_some_and(from_other) {
            return Err(Failure::forbidden("requests of other sites are refused"));
        }
        Ok(())
    }

    /// A name that belongs to another site may lead to this host as well. An address cannot.
    fn is_own(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_start_matches('[').trim_end_matches(']');
        !host.contains('@')
            && (name.parse::<IpAddr>().is_ok() || self.names.contains(&name.to_lowercase()))
    }

    /// Whether anyone can act.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether the request has the token.
    ///
    /// # Errors
    /// When it has not.
    pub fn may_act(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let Some(token) = self.token else {
            return Err(Failure::forbidden("the page shows what was: nothing can be done"));
        };
        let given = text(headers, &header::AUTHORIZATION);
        let given = given.and_then(|given| given.strip_prefix("Bearer ")).unwrap_or_default();
        // Hashes are compared in constant time.
        if blake3::hash(given.as_bytes()) == token {
            return Ok(());
        }
        Err(Failure::forbidden(
            "only one that has the token may do this: open the page by the address with the token \
             that `eyrie serve` has printed",
        ))
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    // What is no text is no name, site or token of ours.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// What every answer tells the browser not to do.
pub fn fence_in(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = all.iter().map(|(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        pairs.collect()
    }

    fn guard(token: Option<&Token>) -> Guard {
        Guard::new(token, ["localhost", "n1.site", "n1"].map(String::from).to_vec())
    }

    #[test]
    fn only_names_and_addresses_of_this_host_are_answered() {
        let admits =
            |host: &str| guard(None).admit(&Method::GET, &headers(&[("host", host)])).is_ok();
        for host in [
            "localhost:9466",
            "LOCALHOST",
            "127.0.0.1:1",
            "[::1]:9466",
            "10.1.2.3",
            "n1",
            "n1.site:80",
        ] {
            assert!(admits(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "n2",
            "x@localhost",
            "localhost:9466@evil.example",
            "http://localhost",
            "a b",
        ] {
            assert!(!admits(host), "{host}");
        }
        assert!(guard(None).admit(&Method::GET, &HeaderMap::new()).is_err());
    }

    #[test]
    fn other_sites_are_refused() {
        let host = ("host", "localhost:9466");
        let admits = |method: Method, more: (&'static str, &str)| {
            guard(None).admit(&method, &headers(&[host, more])).is_ok()
        };
        assert!(admits(Method::POST, ("origin", "http://localhost:9466")));
        assert!(admits(Method::POST, ("sec-fetch-site", "same-origin")));
        for origin in [
            "http://localhost:9467",
            "http://127.0.0.1:9466",
            "https://localhost:9466",
            "http://evil.example",
            "null",
        ] {
            assert!(!admits(Method::POST, ("origin", origin)), "{origin}");
            assert!(!admits(Method::GET, ("origin", origin)), "{origin}");
        }
        for site in ["cross-site", "same-site", "?"] {
            assert!(!admits(Method::POST, ("sec-fetch-site", site)), "{site}");
        }
        // A link that leads here.
        assert!(admits(Method::GET, ("sec-fetch-site", "cross-site")));
    }

    #[test]
    fn only_the_token_lets_one_act() {
        let token = Token::draw();
        let guard = guard(Some(&token));
        let may = |value: &str| guard.may_act(&headers(&[("authorization", value)])).is_ok();
        assert!(may(&format!("Bearer {}", token.text())));
        let text = token.text();
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            text,
            &format!("Bearer {}", &text[1..]),
            &format!("Bearer {text}0"),
            &format!("Basic {text}"),
        ] {
            assert!(!may(wrong), "{wrong}");
        }
        assert!(guard.may_act(&HeaderMap::new()).is_err());
        assert_ne!(Token::draw().text(), token.text());
        // Where there is nothing to act on, not even an empty one.
        assert!(super::Guard::new(None, vec![])
            .may_act(&headers(&[("authorization", "Bearer ")]))
            .is_err());
    }
}
