//! Network specifications as written on a command line: `torus:12x12`, `mesh:6x6x6:order=2,1,0`,
//! `tofu:2x1x6x2x3x2:shape=12x12`, `fattree:18^2:taper=2:rails=2`, `xgft:18,18;1,18`,
//! `dragonfly:9x1x8x4:valiant`, `graph:FILE`, `slurm:FILE`. The caller reads the files: there is no
//! I/O here.

use crate::cartesian::Cartesian;
use crate::coords;
use crate::dragonfly::{Dragonfly, Routing};
use crate::error::TopologyError;
use crate::fat_tree::FatTree;
use crate::graph::Graph;
use crate::hostlist::shorten;
use crate::layout::Layout;
use crate::network::Network;
use crate::slurm::{self, SlurmTopology};
use crate::tofu::Tofu;

/// A network, its natural grid of cells if it has one, and the names of its nodes.
pub struct Parsed {
    pub network: Box<dyn Network>,
    /// Mesh, torus and Tofu (through its virtual shape) have a grid of their own. The others use
    /// the extended grid of the job, cell i on node i.
    pub layout: Option<Layout>,
    /// Host names by node number, if a file gives them; else empty.
    pub names: Vec<String>,
}

/// How to read the files that a specification names.
pub struct Files<'a> {
    /// The text of a file, or an error that names it.
    pub text: &'a dyn Fn(&str) -> Result<String, TopologyError>,
    /// Which topology of a topology.yaml; `None`: the cluster's default.
    pub slurm_topology: Option<&'a str>,
    /// How much thinner the uplinks of a switch in a Slurm tree are than the nodes below it
    /// together.
    pub taper: f64,
}

/// Reads a specification that may name a file. Errors in a file begin with its path.
pub fn parse_with(text: &str, files: &Files) -> Result<Parsed, TopologyError> {
    let (path, read): (_, fn(&str, &str, &Files) -> _) = match text.split_once(':') {
        Some(("graph", path)) => (path, |_, content, _| free(Graph::parse(content)?)),
        Some(("slurm", path)) => (path, slurm_file),
        _ => return parse(text),
    };
    let content = (files.text)(path)?;
    read(path, &content, files).map_err(|e| TopologyError(format!("{path}: {e}")))
}

fn slurm_file(path: &str, content: &str, files: &Files) -> Result<Parsed, TopologyError> {
    let topology = if path.ends_with(".yaml") || path.ends_with(".yml") {
        slurm::parse_yaml(content, files.slurm_topology, files.taper)?
    } else {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let include = |name: &str| {
            if name.starts_with('/') || !path.contains('/') {
                return (files.text)(name);
            }
            (files.text)(&format!("{folder}/{name}"))
        };
        SlurmTopology::Tree(slurm::parse_conf(content, &include, files.taper)?)
    };
    match topology {
        SlurmTopology::Tree(tree) => free(tree),
        SlurmTopology::Torus(torus, names) => Ok(Parsed { names, ..with_own_grid(torus)? }),
    }
}

/// The forms of a network, for `--help` and errors.
pub const FORMS: &str = "mesh:XxYx…[:order=1,0], torus:XxYx…[:order=1,0], tofu:XxYxZxAxBxC[:shape=12x12][:detour=a,b,c], \
fattree:K^N[:taper=T][:rails=R], xgft:m1,m2,…;w1,w2,…[:rails=R], dragonfly:GROUPSxROUTERSxNODES or \
GROUPSxCHASSISxBLADESxNODES[:valiant[=SEED]]";

/// Reads a specification. Every error names the part that is wrong and what is allowed.
pub fn parse(text: &str) -> Result<Parsed, TopologyError> {
    let mut parts = text.split(':');
    let kind = parts.next().unwrap_or("");
    let Some(shape) = parts.next() else {
        return crate::refuse!("network `{}`: write one of {FORMS}", shorten(text));
    };
    let mut options = Options::read(parts)?;
    let parsed = match kind {
        "mesh" | "torus" => {
            let dims = coords::parse_dims(shape)?;
            let mut network =
                if kind == "mesh" { Cartesian::mesh(&dims) } else { Cartesian::torus(&dims) };
            if let Some(order) = options.take("order") {
                network = network.with_order(&numbers(&order, "order")?)?;
            }
            with_own_grid(network)
        }
        "tofu" => {
            let mut network = Tofu::new(&coords::parse_dims(shape)?)?;
            let virtual_shape = match options.take("shape") {
                Some(shape) => coords::parse_dims(&shape)?,
                None => Layout::tofu_default_shape(&network),
            };
            let layout = Layout::tofu(&network, &virtual_shape)?;
            if let Some(detour) = options.take("detour") {
                let legs = numbers(&detour, "detour")?;
                let Ok(legs) = <[usize; 3]>::try_from(legs) else {
                    return crate::refuse!(
                        "detour `{detour}`: three steps, on A, B and C, such as 1,0,0"
                    );
                };
                network = network.with_detour(legs)?;
            }
            Ok(Parsed { network: Box::new(network), layout: Some(layout), names: Vec::new() })
        }
        "fattree" => {
            let Some((k, n)) = shape.split_once('^') else {
                return crate::refuse!("fattree:{}: write K^N, such as 18^2", shorten(shape));
            };
            let k = number(k, "K")?;
            let n = number(n, "N")?;
            let taper = options.number("taper", 1)?;
            let rails = options.number("rails", 1)?;
            free(FatTree::k_ary(k, n, taper, rails)?)
        }
        "xgft" => {
            let Some((m, w)) = shape.split_once(';') else {
                return crate::refuse!("xgft:{}: write m1,m2,…;w1,w2,…", shorten(shape));
            };
            let rails = options.number("rails", 1)?;
            free(FatTree::xgft(&numbers(m, "m")?, &numbers(w, "w")?, rails)?)
        }
        "dragonfly" => {
            let routing = match options.take("valiant") {
                None => Routing::Minimal,
                Some(seed) if seed.is_empty() => Routing::Valiant { seed: 1 },
                Some(seed) => Routing::Valiant { seed: number(&seed, "valiant seed")? as u64 },
            };
            let d = coords::parse_dims(shape)?;
            match d[..] {
                [g, r, n] => free(Dragonfly::new(g, 1, r, n, routing)?),
                [g, c, b, n] => free(Dragonfly::new(g, c, b, n, routing)?),
                _ => crate::refuse!(
                    "dragonfly:{shape}: three extents (groups x routers x nodes) or four"
                ),
            }
        }
        _ => crate::refuse!("network kind `{}`: write one of {FORMS}", shorten(kind)),
    }?;
    options.finish(kind)?;
    Ok(parsed)
}

fn with_own_grid(network: Cartesian) -> Result<Parsed, TopologyError> {
    let layout = Layout::natural(&network)?;
    Ok(Parsed { network: Box::new(network), layout: Some(layout), names: Vec::new() })
}

fn free(network: impl Network + 'static) -> Result<Parsed, TopologyError> {
    Ok(Parsed { network: Box::new(network), layout: None, names: Vec::new() })
}

fn number(text: &str, what: &str) -> Result<usize, TopologyError> {
    match text.trim().parse() {
        Ok(n) => Ok(n),
        Err(_) => crate::refuse!("{what} `{}` is not a whole number", shorten(text)),
    }
}

fn numbers(text: &str, what: &str) -> Result<Vec<usize>, TopologyError> {
    text.split(',').map(|part| number(part, what)).collect()
}

struct Options(Vec<(String, String)>);

impl Options {
    fn read<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Self, TopologyError> {
        let mut options: Vec<(String, String)> = Vec::new();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if options.iter().any(|(k, _)| k == key) {
                return crate::refuse!("option `{}` is given twice", shorten(key));
            }
            options.push((key.into(), value.into()));
        }
        Ok(Options(options))
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(k, _)| k == key)?;
        Some(self.0.remove(at).1)
    }

    fn number(&mut self, key: &str, default: usize) -> Result<usize, TopologyError> {
        self.take(key).map_or(Ok(default), |value| number(&value, key))
    }

    fn finish(self, kind: &str) -> Result<(), TopologyError> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) => {
                crate::refuse!(
                    "network `{kind}` has no option `{}`: write one of {FORMS}",
                    shorten(key)
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_described_again() {
        for text in [
            "mesh:3x4",
            "torus:3x4x2:order=2,0,1",
            "tofu:2x1x6x2x3x2",
            "tofu:2x1x6x2x3x2:detour=1,2,0",
            "fattree:4^2",
            "fattree:4^2:taper=2:rails=2",
            "xgft:3,4;1,2:rails=2",
            "dragonfly:5x1x4x2",
            "dragonfly:5x2x4x2:valiant=3",
        ] {
            assert_eq!(parse(text).unwrap().network.describe(), text);
        }
        let shaped = parse("tofu:2x1x6x2x3x2:shape=12x12").unwrap();
        assert_eq!(shaped.layout.unwrap().dims(), [12, 12]);
    }

    #[test]
    fn files_are_read_by_the_caller_and_named_in_errors() {
        let text = |path: &str| match path {
            "g" => Ok("eyrie-graph 1\nroutes shortest\nnode a\nnode b\nlink a b\n".to_string()),
            "t.conf" => Ok("SwitchName=s0 Nodes=n[0-3]\n".to_string()),
            "bad" => Ok("nonsense\n".to_string()),
            _ => crate::refuse!("reading {path}: there is none"),
        };
        let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
        let nodes = |spec| parse_with(spec, &files).map(|p| p.network.nodes());
        assert_eq!(nodes("graph:g"), Ok(2));
        assert_eq!(nodes("slurm:t.conf"), Ok(4));
        assert_eq!(nodes("torus:3x3"), Ok(9));
        for (spec, fault) in [
            ("graph:bad", "bad: "),
            ("slurm:bad", "bad: "),
            ("graph:none", "reading none: there is none"),
            ("ring:5", "network kind `ring`"),
        ] {
            let error = nodes(spec).unwrap_err().0;
            assert!(error.starts_with(fault), "{spec}: {error}");
        }
    }

    #[test]
    fn errors_name_the_fault() {
        for (text, fault) in [
            ("torus", "write one of"),
            ("ring:5", "network kind `ring`"),
            ("torus:5x", "is not an extent"),
            ("torus:5x5:order=0,0", "each of the 2 axes once"),
            ("torus:5x5:taper=2", "no option `taper`"),
            ("fattree:4", "K^N"),
            ("fattree:4^x", "N `x`"),
            ("dragonfly:4", "three extents"),
            ("tofu:2x2x2x2x3x2:shape=5x5", "does not fit"),
            ("tofu:2x2x2x2x3x2:detour=2,0,0", "at most 1"),
            ("mesh:4x4:order=0,1:order=1,0", "twice"),
        ] {
            let error = parse(text).map(|_| ()).unwrap_err().0;
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}
