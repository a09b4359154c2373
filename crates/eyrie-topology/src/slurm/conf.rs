//! topology.conf, in the grammar of all of Slurm's .conf files: `Key=Value` with or without blanks
//! around `=`, quoted values, comments, lines continued after a backslash, included files.

use std::borrow::Cow;
use std::ops::Range;

use super::block_sizes;
use crate::error::TopologyError;
use crate::hostlist::shorten;
use crate::switch_tree::{Branch, Refusal, SwitchTree, Visitor};

/// Returns the text of an included file. Its name is as written: relative to the file that is read.
pub type Include<'a> = &'a dyn Fn(&str) -> Result<String, TopologyError>;

/// Most files that one may include, directly or through others.
const MOST_INCLUDES: usize = 1000;

/// Reads topology.conf with topology/tree (`SwitchName=`) or topology/block (`BlockName=`) lines.
///
/// # Errors
/// Names the line, and the file if it was included.
pub fn parse_conf(text: &str, include: Include, taper: f64) -> Result<SwitchTree, TopologyError> {
    let sources = Sources::read(text, include)?;
    let blocks = sources.check()?;
    let entries = |visit: &mut Visitor<'_>| -> Result<(), Refusal> {
        for (_, line) in sources.lines() {
            if let Some(Statement::Switch(entry) | Statement::Block(entry)) = statement(&line.text)?
            {
                visit(entry)?;
            }
        }
        Ok(())
    };
    SwitchTree::build(&entries, blocks, taper).map_err(|refusal| match refusal.entry {
        Some(entry) => sources.at_entry(entry, refusal.why),
        None => refusal.why,
    })
}

/// A file and the files that it includes.
struct Sources<'t> {
    /// Their names and texts; the name of the first is empty.
    texts: Vec<(String, Cow<'t, str>)>,
    /// The parts to read, in order.
    segments: Vec<Segment>,
}

/// A part of a file that includes nothing.
struct Segment {
    source: usize,
    range: Range<usize>,
    /// Number of its first line.
    line: usize,
}

impl<'t> Sources<'t> {
    fn read(text: &'t str, include: Include) -> Result<Self, TopologyError> {
        let texts = vec![(String::new(), Cow::Borrowed(text))];
        let mut sources = Sources { texts, segments: Vec::new() };
        sources.divide(0, &mut vec![0], include)?;
        Ok(sources)
    }

    /// Divides a source at its included files. `within`: it and the files that include it.
    fn divide(
        &mut self,
        source: usize,
        within: &mut Vec<usize>,
        include: Include,
    ) -> Result<(), TopologyError> {
        let text = self.texts[source].1.clone();
        let mut from = (0, 1);
        for line in lines(&text, 1) {
            let name = included(&line.text).map_err(|e| self.at(source, line.number, e))?;
            let Some(name) = name else { continue };
            self.segments.push(Segment { source, range: from.0..line.range.start, line: from.1 });
            from = (line.range.end, line.next);
            if within.iter().any(|source| self.texts[*source].0 == name) {
                let why = format!("`{}` includes itself", shorten(name));
                return Err(self.at(source, line.number, TopologyError::new(why)));
            }
            if self.texts.len() > MOST_INCLUDES {
                let why = format!("more than {MOST_INCLUDES} files are included");
                return Err(self.at(source, line.number, TopologyError::new(why)));
            }
            let more = include(name).map_err(|e| self.at(source, line.number, e))?;
            self.texts.push((name.to_string(), Cow::Owned(more)));
            within.push(self.texts.len() - 1);
            self.divide(self.texts.len() - 1, within, include)?;
            within.pop();
        }
        self.segments.push(Segment { source, range: from.0..text.len(), line: from.1 });
        Ok(())
    }

    /// All lines except those that include files, each with its source.
    fn lines(&self) -> impl Iterator<Item = (usize, Line<'_>)> {
        self.segments.iter().flat_map(|segment| {
            let text = &self.texts[segment.source].1[segment.range.clone()];
            lines(text, segment.line).map(|line| (segment.source, line))
        })
    }

    /// Checks every line, and all of them together; returns whether these are blocks.
    fn check(&self) -> Result<bool, TopologyError> {
        let mut switches = false;
        let mut blocks = false;
        let mut sized = false;
        for (source, line) in self.lines() {
            let refuse = |why: &str| Err(self.at(source, line.number, TopologyError::new(why)));
            let read = statement(&line.text).map_err(|e| self.at(source, line.number, e))?;
            match read {
                None => continue,
                Some(Statement::Switch(_)) => switches = true,
                Some(Statement::Block(_)) => blocks = true,
                Some(Statement::Sizes) if sized => return refuse("BlockSizes comes twice"),
                Some(Statement::Sizes) => sized = true,
            }
            if switches && (blocks || sized) {
                return refuse(
                    "topology.conf mixes SwitchName lines with BlockName or BlockSizes lines: \
                     keep one kind",
                );
            }
        }
        if !switches && !blocks {
            return crate::refuse!("topology.conf has no SwitchName and no BlockName line");
        }
        Ok(blocks)
    }

    fn at(&self, source: usize, line: usize, why: TopologyError) -> TopologyError {
        let name = &self.texts[source].0;
        if name.is_empty() {
            return why.at_line(line);
        }
        TopologyError::new(format!("{}: line {line}: {why}", shorten(name)))
    }

    /// The same for a switch or block, counted from 0.
    fn at_entry(&self, entry: usize, why: TopologyError) -> TopologyError {
        let is_entry = |line: &Line| {
            matches!(statement(&line.text), Ok(Some(Statement::Switch(_) | Statement::Block(_))))
        };
        match self.lines().filter(|(_, line)| is_entry(line)).nth(entry) {
            Some((source, line)) => self.at(source, line.number, why),
            None => why,
        }
    }
}

/// A line with its continuations, without comments and escapes.
struct Line<'t> {
    number: usize,
    /// The number of the line that follows.
    next: usize,
    range: Range<usize>,
    text: Cow<'t, str>,
}

/// The lines of a text whose first one has the number `number`.
fn lines(text: &str, mut number: usize) -> impl Iterator<Item = Line<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == text.len() {
            return None;
        }
        let first = number;
        let begin = at;
        let mut joined: Cow<str> = Cow::Borrowed("");
        loop {
            let rest = &text[at..];
            let end = rest.find('\n').map_or(rest.len(), |end| end + 1);
            at += end;
            number += 1;
            let (part, goes_on) = without_backslash(without_comment(&rest[..end]));
            joined += part;
            if !goes_on || at == text.len() {
                break;
            }
        }
        if joined.contains('\\') {
            joined = Cow::Owned(without_escapes(&joined));
        }
        Some(Line { number: first, next: number, range: begin..at, text: joined })
    })
}

/// The text before the first `#` that no backslash escapes.
fn without_comment(line: &str) -> &str {
    let mut escaped = false;
    for (at, c) in line.bytes().enumerate() {
        match c {
            b'#' if !escaped => return &line[..at],
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    line
}

/// The line without the backslash at its end, and whether the next line continues it.
fn without_backslash(line: &str) -> (&str, bool) {
    let trimmed = line.trim_end();
    let backslashes = trimmed.bytes().rev().take_while(|c| *c == b'\\').count();
    match backslashes % 2 {
        1 => (&trimmed[..trimmed.len() - 1], true),
        _ => (line, false),
    }
}

fn without_escapes(line: &str) -> String {
    let mut chars = line.chars();
    let mut text = String::with_capacity(line.len());
    while let Some(c) = chars.next() {
        text.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    text
}

/// The file that a line includes.
fn included(line: &str) -> Result<Option<&str>, TopologyError> {
    const WORD: &str = "include";
    let word = line.trim_start();
    let (Some(begin), Some(rest)) = (word.get(..WORD.len()), word.get(WORD.len()..)) else {
        return Ok(None);
    };
    if !begin.eq_ignore_ascii_case(WORD) || !rest.starts_with(char::is_whitespace) {
        return Ok(None);
    }
    if word.len() < line.len() {
        return crate::refuse!("Include stands at the beginning of a line: remove the blanks");
    }
    let mut words = rest.split_whitespace();
    let Some(name) = words.next() else {
        return crate::refuse!("Include names no file");
    };
    if let Some(more) = words.next() {
        return crate::refuse!("`{}` after the included file", shorten(more));
    }
    if name.contains('*') || name.contains('%') {
        return crate::refuse!(
            "Include `{}`: write the name of one file, without `*` and `%`",
            shorten(name)
        );
    }
    Ok(Some(name))
}

/// The content of a line.
enum Statement<'a> {
    Switch(Branch<'a>),
    Block(Branch<'a>),
    Sizes,
}

/// Reads a line; `None` if it is empty.
fn statement(line: &str) -> Result<Option<Statement<'_>>, TopologyError> {
    let mut rest = line;
    let Some((first, name)) = pair(&mut rest)? else { return Ok(None) };
    let is = |key: &str| first.eq_ignore_ascii_case(key);
    if is("SwitchName") {
        let [nodes, children, speed] = values(rest, first, ["Nodes", "Switches", "LinkSpeed"])?;
        if let Some(speed) = speed.filter(|speed| !is_speed(speed)) {
            return crate::refuse!("LinkSpeed `{}` is not a whole number", shorten(speed));
        }
        if nodes.is_some() && children.is_some() {
            return crate::refuse!(
                "switch `{}` has both Nodes and Switches: put the nodes on a switch of their own",
                shorten(name)
            );
        }
        return Ok(Some(Statement::Switch(Branch { name, children, nodes })));
    }
    if is("BlockName") {
        let [nodes] = values(rest, first, ["Nodes"])?;
        return Ok(Some(Statement::Block(Branch { name, children: None, nodes })));
    }
    if is("BlockSizes") {
        let [] = values(rest, first, [])?;
        let sizes: Result<Vec<u64>, _> =
            name.split(',').filter(|size| !size.is_empty()).map(str::parse).collect();
        let Ok(sizes) = sizes else {
            return crate::refuse!("BlockSizes `{}`: numbers such as 4,16", shorten(name));
        };
        block_sizes::check(&sizes)?;
        return Ok(Some(Statement::Sizes));
    }
    if is("RingName") {
        return crate::refuse!(
            "Eyrie does not read rings (topology/ring): describe the network with graph:FILE"
        );
    }
    crate::refuse!(
        "`{}` does not begin with SwitchName, BlockName, BlockSizes or Include",
        shorten(line.trim())
    )
}

fn is_speed(text: &str) -> bool {
    let words = ["INFINITE", "UNLIMITED"];
    text.parse::<u32>().is_ok() || words.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// The values of the keys that may follow `first` on a line.
fn values<'a, const N: usize>(
    mut rest: &'a str,
    first: &str,
    keys: [&str; N],
) -> Result<[Option<&'a str>; N], TopologyError> {
    let mut found = [None; N];
    while let Some((key, value)) = pair(&mut rest)? {
        let Some(at) = keys.iter().position(|known| key.eq_ignore_ascii_case(known)) else {
            return match keys[..] {
                [] => crate::refuse!("`{}` after {first}", shorten(key)),
                _ => crate::refuse!(
                    "`{}` is no key of a {first} line, which has {}",
                    shorten(key),
                    keys.join(", ")
                ),
            };
        };
        if found[at].replace(value).is_some() {
            return crate::refuse!("{} comes twice: Slurm takes the last one; keep one", keys[at]);
        }
    }
    Ok(found)
}

/// Takes the next `Key=Value` from a line.
fn pair<'a>(rest: &mut &'a str) -> Result<Option<(&'a str, &'a str)>, TopologyError> {
    let text = rest.trim_start();
    if text.is_empty() {
        return Ok(None);
    }
    let is_key = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let (key, after) = text.split_at(text.find(|c| !is_key(c)).unwrap_or(text.len()));
    let operator = after.trim_start();
    // Slurm has `+=` and the like for other files; here they mean the same as `=`.
    let value = operator.strip_prefix(['-', '*', '+', '/']).unwrap_or(operator).strip_prefix('=');
    let value = value.filter(|_| !key.is_empty()).map(str::trim_start).filter(|v| !v.is_empty());
    let Some(value) = value else {
        let word = text.split_whitespace().next().unwrap_or_default();
        return crate::refuse!("`{}` is not Key=Value", shorten(word));
    };
    let (value, after) = match value.strip_prefix('"').and_then(|v| v.split_once('"')) {
        Some((inside, after)) if after.is_empty() || after.starts_with(char::is_whitespace) => {
            (inside, after)
        }
        _ => value.split_at(value.find(char::is_whitespace).unwrap_or(value.len())),
    };
    if value.contains(['"', '=']) {
        return crate::refuse!(
            "`{}` is no value of {key}: a quote or a value is missing",
            shorten(value)
        );
    }
    *rest = after;
    Ok(Some((key, value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{check, Network};

    fn parse(text: &str) -> Result<SwitchTree, TopologyError> {
        parse_conf(text, &|name| crate::refuse!("reading {name}: there is none"), 1.0)
    }

    /// All nodes of a tree, in order.
    fn nodes(text: &str) -> Vec<String> {
        let tree = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        check::routes_connect(&tree);
        (0..tree.nodes() as u32).map(|node| tree.vertex_name(node)).collect()
    }

    #[test]
    fn what_slurm_accepts_is_read() {
        for (text, expected) in [
            ("SwitchName=s Nodes=n[0-1]\nSwitchName=top \\\n  Switches=s\n", "n0 n1"),
            ("SwitchName=s \\ \t\n\\\n Nodes=\\\nn1\n", "n1"),
            ("SwitchName = s Nodes = n1\r\nSwitchName= top Switches =s\r\n", "n1"),
            ("SwitchName=s Nodes=\"n[0-1], m9 m8\"", "n0 n1 m9 m8"),
            ("SwitchName=s Nodes=n1,n2,\n", "n1 n2"),
            ("switchNAME=s NODES=n1 linkspeed=900\n\n# a comment \\\n", "n1"),
            ("SwitchName=s Nodes=n1 # SwitchName=t Nodes=n2 \\\n", "n1"),
            ("SwitchName=\"the switch\" Nodes=n1\n", "n1"),
            ("SwitchName=s Nodes=n1\nSwitchName=spare\nSwitchName=t Switches=s,spare", "n1"),
            ("BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n3\nBlockSizes=2,8\n", "n1 n2 n3"),
        ] {
            assert_eq!(nodes(text).join(" "), expected, "{text}");
        }
    }

    #[test]
    fn what_slurm_refuses_is_refused_with_its_line() {
        for (text, fault) in [
            ("", "no SwitchName"),
            (
                "SwitchName=c Nodes=n1\nSwitchName=a Switches=b",
                "line 2: switch `a` names child `b`, which is not defined",
            ),
            ("\nSwitchName=a Nodes=n1 Switches=b", "line 2: switch `a` has both Nodes and"),
            ("SwitchName=a Nodes=n[1", "line 1: `[` without"),
            ("SwitchName=a Nodes=n1\nSwitchName=b Switches=c\nSwitchName=c Switches=b", "line 2: "),
            ("SwitchName=a Nodes=n1\nSwitchName=b Switches=b", "line 2: switch `b` is its own"),
            ("\nSwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "line 3: switch `a` is defined"),
            ("SwitchName=a Nodes=n1\n\nSwitchName=b \\\nSwitches=c", "line 3: switch `b` names"),
            ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2", "line 2: topology.conf mixes"),
            ("SwitchName=a Nodes=n1\nBlockSizes=4", "line 2: topology.conf mixes"),
            ("BlockName=b Nodes=n1\nBlockSizes=4,6", "line 2: block size 6"),
            ("BlockName=b Nodes=n1\nBlockSizes=x", "line 2: BlockSizes `x`"),
            ("BlockName=b Nodes=n1 Switches=a", "line 1: `Switches` is no key of a BlockName"),
            ("SwitchName=a Nodes=n1 Node=n2", "line 1: `Node` is no key of a SwitchName line"),
            ("SwitchName=a Nodes=n1 Nodes=n2", "line 1: Nodes comes twice"),
            ("SwitchName=a Nodes=n1 n2", "line 1: `n2` is not Key=Value"),
            ("SwitchName=a Nodes=\"n1, n2", "line 1: `\"n1,` is no value of Nodes"),
            ("SwitchName=a Nodes= Switches=b", "line 1: `Switches=b` is no value of Nodes"),
            ("Nodes=n1 SwitchName=a", "line 1: `Nodes=n1 SwitchName=a` does not begin with"),
            ("SwitchName=a Nodes=n1 LinkSpeed=fast", "line 1: LinkSpeed `fast`"),
            ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[2-", "line 2: `[` without"),
            ("SwitchName=a Nodes=n[0-2999999]\nSwitchName=b Nodes=m[0-2999999]", "line 2: more"),
            ("RingName=r Nodes=n[1-4]", "line 1: Eyrie does not read rings"),
            ("Foo", "line 1: `Foo` is not Key=Value"),
            ("Foo=1", "line 1: `Foo=1` does not begin with SwitchName"),
            ("\n Include a", "line 2: Include stands at the beginning"),
            ("Include a*", "line 1: Include `a*`: write the name of one file"),
            ("Include a b", "line 1: `b` after the included file"),
            ("Include a", "line 1: reading a: there is none"),
        ] {
            let error = parse(text).map(|_| ()).unwrap_err().0;
            assert!(error.contains(fault), "{text}: {error}");
        }
        let long = format!("SwitchName={} Nodes=n1", "s".repeat(65));
        assert!(parse(&long).unwrap_err().0.contains("1 to 64 bytes"));
    }

    #[test]
    fn included_files_are_part_of_the_file() {
        let files = |name: &str| match name {
            "rack1" => Ok("SwitchName=s1 Nodes=n[2-3]\nSwitchName=s2 Nodes=n4\n".to_string()),
            "bad" => Ok("SwitchName=s1 Nodes=n2\n\nNodeName=n3\n".to_string()),
            "child" => Ok("SwitchName=s1 Switches=nowhere\n".to_string()),
            "round" => Ok("include round\n".to_string()),
            _ => crate::refuse!("reading {name}: there is none"),
        };
        let parse = |text: &str| parse_conf(text, &files, 1.0);
        let text = "SwitchName=s0 Nodes=n[0-1]\nINCLUDE\track1 # of the rack\nSwitchName=t Switches=s[0-2]";
        let tree = parse(text).unwrap();
        check::routes_connect(&tree);
        assert_eq!((tree.nodes(), tree.vertex_name(4)), (5, "n4".into()));
        for (text, fault) in [
            ("\ninclude bad\n", "bad: line 3: `NodeName=n3` does not begin"),
            ("include child\nSwitchName=a Nodes=n1", "child: line 1: switch `s1` names child"),
            ("include rack1\nSwitchName=a Switches=b", "line 2: switch `a` names child"),
            ("include round\n", "round: line 1: `round` includes itself"),
            ("\ninclude none\n", "line 2: reading none"),
        ] {
            let error = parse(text).map(|_| ()).unwrap_err().0;
            assert!(error.starts_with(fault), "{text}: {error}");
        }
    }

    #[test]
    fn a_deep_tree_is_read_quickly() {
        let mut text = String::from("SwitchName=s0 Nodes=n0\n");
        for i in 1..200_000 {
            text += &format!("SwitchName=s{i} Switches=s{}\n", i - 1);
        }
        let tree = parse(&text).unwrap();
        assert_eq!((tree.nodes(), tree.vertices()), (1, 200_001));
    }
}
