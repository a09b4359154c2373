//! What `scontrol show topology` prints: the topology that a running Slurm has, a line for each
//! switch or block. It becomes the text of a topology.conf, which [`super::parse_conf`] reads.

use crate::error::TopologyError;
use crate::hostlist::shorten;

/// Slurm up to 23.02 cuts a word of a line off so that it has this length.
const CUT: usize = 511;

/// The same as the text of a topology.conf. A switch is shown with its switches and with all nodes
/// below it; a file has one of both.
///
/// # Errors
/// When it shows no topology, or what Eyrie does not understand.
pub fn conf_of_shown(text: &str) -> Result<String, TopologyError> {
    let mut conf = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words = || line.split_whitespace();
        if words().any(|word| word.len() == CUT || word.matches('=').count() > 1) {
            return crate::refuse!("`{}` is cut off by Slurm", shorten(line));
        }
        let value = |key: &str| {
            let pairs = words().filter_map(|word| word.split_once('='));
            let mut found = pairs.filter(|(name, value)| *name == key && !value.is_empty());
            found.next().map(|(_, value)| value)
        };
        let [switch, block, nodes, below] =
            ["SwitchName", "BlockName", "Nodes", "Switches"].map(value);
        conf += &match (switch, block, nodes, below) {
            (Some(switch), _, _, Some(below)) => format!("SwitchName={switch} Switches={below}\n"),
            (Some(switch), _, Some(nodes), None) => format!("SwitchName={switch} Nodes={nodes}\n"),
            (None, Some(block), Some(nodes), _) => format!("BlockName={block} Nodes={nodes}\n"),
            // Blocks that others are parts of.
            _ if line.starts_with("AggregatedBlock=") => continue,
            _ => return crate::refuse!("`{}` is no switch or block with nodes", shorten(line)),
        };
    }
    if conf.is_empty() {
        return crate::refuse!("no switch and no block is shown");
    }
    Ok(conf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;
    use crate::slurm::parse_conf;

    #[test]
    fn switches_and_blocks_are_read_as_from_a_file() {
        let nodes = |text: &str| {
            let none = |_: &str| crate::refuse!("nothing is included");
            let tree = parse_conf(&conf_of_shown(text)?, &none, 1.0)?;
            Ok::<_, TopologyError>((tree.nodes(), tree.vertices()))
        };
        let tree = "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=h[0-1] \n\
                    SwitchName=s1 Level=0 LinkSpeed=1 Nodes=h[2-3] \n\
                    SwitchName=top Level=1 LinkSpeed=1 Nodes=h[0-3] Switches=s[0-1] \n";
        assert_eq!(nodes(tree), Ok((4, 7)));
        let blocks = "BlockName=b0 BlockIndex=0 Nodes=h[0-3] BlockSize=4\n\
                      BlockName=b1 BlockIndex=1 Nodes=h[4-7] BlockSize=4\n\
                      AggregatedBlock=b[0-1] BlockIndex=2 Nodes=h[0-7] BlockSize=8\n";
        assert_eq!(nodes(blocks).unwrap().0, 8);
        let long = format!("{},h", "h1,".repeat(300));
        let cut = format!("SwitchName=s0 Level=0 Nodes={}\n", &long[..CUT - 6]);
        let run_on = "SwitchName=top Level=1 Nodes=h0,h1Switches=s[0-1]\n";
        for (text, fault) in [
            (cut.as_str(), "is cut off by Slurm"),
            (run_on, "is cut off by Slurm"),
            ("", "no switch and no block is shown"),
            ("\n \n", "no switch and no block is shown"),
            ("Torus=t0 Dims=4x4\n", "`Torus=t0 Dims=4x4` is no switch or block with nodes"),
            ("SwitchName=s0 Level=0 Nodes=\n", "is no switch or block with nodes"),
        ] {
            let error = nodes(text).unwrap_err().0;
            assert!(error.contains(fault), "{error}");
        }
    }
}
