//! `eyrie plan` as a user calls it: what it prints and writes, and one line for whatever is wrong
//! with the input.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs `eyrie plan` with the words of `line` (no word has a blank).
fn plan(line: &str) -> Output {
    let eyrie = env!("CARGO_BIN_EXE_eyrie");
    Command::new(eyrie).arg("plan").args(line.split_whitespace()).output().expect("eyrie runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Standard output of a call that has to succeed.
fn printed(line: &str) -> String {
    let output = plan(line);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn written(directory: &Path, name: &str, content: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, content).expect("a file");
    path.display().to_string()
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).expect("a file")
}

#[test]
fn all_methods_are_compared_in_a_short_table() {
    let table = printed("--network mesh:13x13 --failed 5,5 --failed 7,2");
    for row in [
        "squeeze                3     2.00x",
        "first-free             8     8.01x",
        "0d                     5     4.98x",
        "1d                     3     3.00x",
        "2d                     1     1.00x",
        "search                 1     1.00x",
    ] {
        assert!(table.lines().any(|l| l.starts_with(row)), "{row} is not in\n{table}");
    }
    let stuck = printed("--network torus:12x12 --job 11x12 --failed 5,5 --failed 7,2");
    assert!(stuck.contains("stuck after 1 failures: no 2D slide from 7,2"), "{stuck}");
}

#[test]
fn few_iterations_left_move_few_ranks() {
    let moved = |iterations: u64| {
        let document = printed(&format!(
            "--network torus:12x12 --job 11x12 --spares 2d(2,1) --traffic stencil5 --failed 5,5 \
             --failed 7,2 --method search --bytes 1MiB --iterations-left {iterations} --json"
        ));
        let document: Value = serde_json::from_str(&document).expect("JSON");
        document["methods"][0]["plan"]["ranks_moved"].as_u64().expect("a number")
    };
    assert!(moved(10) < moved(10_000_000));
}

#[test]
fn wrong_input_is_one_line_that_names_the_value_and_what_is_allowed() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, content: &str| written(directory.path(), name, content);
    let graph = "eyrie-graph 1\nnode a\nnode b\nnode c\nswitch s\n\
                 link a s\nlink b s\nlink c s\nroute a b via s\n";
    let missing = format!("--network graph:{} --job 2 --failed a", file("graph", graph));
    let tree = file("topology.conf", "SwitchName=s0 Nodes=n[0-3]\n");
    let tree = format!("--network slurm:{tree} --job 5x5 --failed n1");
    let matrix = format!("traffic matrix:{}", file("matrix", "0 900 1 1\n"));
    let names = format!("nodes {}", file("names", "n[0-9]\n"));
    let torus = |option: &str| format!("--network torus:12x12 --failed 1 --{option}");
    for (line, named, allowed) in [
        (torus("failed 12,3"), "12,3", "0 to 11 on axis 0"),
        (torus("failed 999"), "999", "0 to 143"),
        (torus("failed 1,2,3"), "1,2,3", "12x12 needs 2"),
        (torus("failed n7"), "n7", "node name, number or coordinates"),
        (torus("failed 0,1"), "0,1", "twice"),
        ("--network mesh:2 --failed 0 --failed 1 --failed 0".into(), "3 failed", "has 2"),
        (torus("job 4x4 --spares list:0,1;6,6"), "1 is also", "only live nodes"),
        (torus("job 13x12"), "13x12", "at most 12 on axis 0"),
        (torus("job 4x4x4"), "4x4x4", "12x12 has 2"),
        (torus("job 0x4"), "0x4", "at least 1"),
        (torus("spares 2d(9,1)"), "2d(9,1)", "1 to 2n"),
        (torus("spares 2d(2,12)"), "2d(2,12)", "12 of 12 on axis 0"),
        (torus("traffic stencil7"), "stencil7", "stencil5 and stencil9"),
        (torus(&matrix), "rank `900`", "0 to 120"),
        (torus("method 3d"), "3d", "at most 2d"),
        (torus("method best"), "best", "squeeze, first-free"),
        (torus("emit list x"), "list", "permutation, hostfile"),
        (torus(&names), "10 names", "144 nodes"),
        ("--network ring:5 --failed 1".into(), "ring", "torus:XxYx"),
        ("--network torus:12x12:order=0,0 --failed 1".into(), "0,0", "2 axes once"),
        ("--network tofu:2x1x6x2x3x2:shape=11x13 --failed 1".into(), "11x13", "4x3x12 does"),
        ("--network fattree:4^2 --job 5x5 --failed 1".into(), "5x5", "has 16"),
        ("--network fattree:4^2 --failed 1".into(), "fattree:4^2", "--job"),
        (missing, "from `a` to `c`", "routes shortest"),
        (tree, "5x5", "has 4"),
    ] {
        let output = plan(&line);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{line}: {error}");
        assert!(error.contains(named) && error.contains(allowed), "{line}: {error}");
        assert!(output.stdout.is_empty(), "{line}");
    }
    // The argument parser's own errors begin with such a line.
    for (line, named, allowed) in [
        (torus("bytes 1XB"), "1XB", "KiB, MiB or GiB"),
        (torus("iterations-left -1"), "-1", "--iterations-left"),
        (torus("machine cray"), "cray", "--machine"),
        (torus("weights load=x"), "load=x", "load=NUMBER"),
        (torus("move-cost -1"), "-1", "at least 0"),
    ] {
        let output = plan(&line);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        let first = error.lines().next().unwrap_or("");
        assert!(first.contains(named) && first.contains(allowed), "{error}");
    }
}

/// Fails unless `value` is what this part of the schema says. Knows the keywords of
/// docs/plan-schema.json, no others.
fn conforms(value: &Value, schema: &Value, root: &Value, at: &str) {
    for (keyword, says) in schema.as_object().expect("a schema") {
        match keyword.as_str() {
            "$schema" | "title" | "description" | "$defs" => {}
            "$ref" => {
                let pointer = says.as_str().expect("a reference").trim_start_matches('#');
                conforms(value, root.pointer(pointer).expect("a definition"), root, at);
            }
            "const" => assert_eq!(value, says, "{at}"),
            "type" => assert!(has_type(value, says), "{at} is {value}, not {says}"),
            "minimum" => assert!(value.as_f64().is_none_or(|v| Some(v) >= says.as_f64()), "{at}"),
            "required" => {
                for key in says.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    assert!(value.is_null() || value.get(key).is_some(), "{at} lacks {key}");
                }
            }
            "properties" => {
                for (key, inner) in value.as_object().into_iter().flatten() {
                    let schema = says.get(key).unwrap_or_else(|| panic!("{at} may not have {key}"));
                    conforms(inner, schema, root, &format!("{at}.{key}"));
                }
            }
            "additionalProperties" => assert_eq!(says, false),
            "items" => {
                for (i, inner) in value.as_array().into_iter().flatten().enumerate() {
                    conforms(inner, says, root, &format!("{at}[{i}]"));
                }
            }
            other => panic!("the schema says {other}, which this test does not know"),
        }
    }
}

/// Whether `value` has the type, or one of the types, that a schema names.
fn has_type(value: &Value, names: &Value) -> bool {
    match names {
        Value::Array(names) => names.iter().any(|name| has_type(value, name)),
        name => match name.as_str() {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("integer") => value.is_u64() || value.is_i64(),
            Some("number") => value.is_number(),
            Some("null") => value.is_null(),
            _ => panic!("a schema has no type {name}"),
        },
    }
}

#[test]
fn json_is_what_its_schema_says() {
    let schema = include_str!("../../../docs/plan-schema.json");
    let schema: Value = serde_json::from_str(schema).expect("a schema");
    for line in [
        "--network torus:6x6 --failed 2,2 --failed 3,1",
        "--network torus:6x6 --failed 2,2 --failed 3,1 --at-once --dead-routers",
        "--network torus:12x12 --job 11x12 --failed 5,5 --failed 7,2 --iterations-left 9",
        "--network dragonfly:5x4x2 --job 3x3 --traffic allreduce --failed 4 --may-squeeze",
    ] {
        let document = printed(&format!("{line} --json"));
        let document: Value = serde_json::from_str(&document).expect("JSON");
        conforms(&document, &schema, &schema, "plan");
    }
}

#[test]
fn placements_are_written_in_every_form() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    let conf =
        "SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Nodes=n[4-7]\nSwitchName=top Switches=s[0-1]\n";
    let forms = ["permutation", "hostfile", "rankfile", "rankmap"];
    let emit = forms.map(|form| format!("--emit {form} {}", at.join(form).display())).join(" ");
    printed(&format!(
        "--network slurm:{} --job 5 --spares contiguous:3 --failed n1 --method first-free {emit}",
        written(at, "topology.conf", conf)
    ));
    assert_eq!(read(at.join("permutation")), "0\n4\n1\n2\n3\n");
    assert_eq!(read(at.join("hostfile")), "n0\nn5\nn2\nn3\nn4\n");
    assert_eq!(read(at.join("rankfile")).lines().nth(1), Some("rank 1=n5 slot=0"));
    assert_eq!(read(at.join("rankmap")).lines().nth(2), Some("1 5 n5"));
}

#[test]
fn a_picture_shows_nodes_links_and_a_legend() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("plan.svg");
    for (network, slices) in [("mesh:12x12", 0), ("torus:6x6x6", 6), ("fattree:12^2 --job 8x8", 0)]
    {
        let picture = path.display();
        printed(&format!("--network {network} --failed 7 --method 0d --picture {picture}"));
        let svg = read(&path);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches(">z = ").count(), slices, "{network}");
        for word in ["rank that moved", "spare", "failed", "messages on a link:"] {
            assert!(svg.contains(word), "{network}: {word}");
        }
    }
}

#[test]
fn a_plan_has_a_bound_and_says_what_it_does_only_when_asked() {
    // No machine reads the network and finds a placement in a thousandth of a second.
    let silent = plan("--network mesh:200000 --failed 5 --limit 1ms");
    assert!(silent.status.code().is_some_and(|code| code == 1 || code == 2), "{silent:?}");
    let told = text(&silent.stdout) + &text(&silent.stderr);
    assert!(told.contains("1ms") && told.contains("--limit gives more time"), "{told}");
    assert!(text(&silent.stderr).lines().count() <= 1, "{silent:?}");
    let asked = text(&plan("--network mesh:200000 --failed 5 --limit 2500ms --progress").stderr);
    assert!(asked.contains("eyrie: planning: "), "{asked}");
}

#[test]
fn a_wrong_topology_file_of_millions_of_lines_is_refused_by_the_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut conf = String::new();
    for i in 0..200_000 {
        conf += &format!("SwitchName=s{i} Nodes=n[{}-{}]\n", 15 * i, 15 * i + 14);
    }
    let file = |last: &str| written(directory.path(), "topology.conf", &format!("{conf}{last}"));
    for (last, fault) in [
        ("Foo\n", "line 200001: `Foo` is not Key=Value"),
        ("SwitchName=s7 Nodes=m7\n", "line 200001: switch `s7` is defined twice"),
        ("SwitchName=x Nodes=m[0-2999999]\n", "line 200001: more than 4000000 host names"),
    ] {
        let path = file(last);
        // A sixth of the memory that three million names as they are would take.
        let eyrie = env!("CARGO_BIN_EXE_eyrie");
        let limited =
            format!("ulimit -v {}; exec {eyrie} plan --network slurm:{path} --failed 1", 400 << 10);
        let output = Command::new("sh").args(["-c", &limited]).output().expect("sh runs");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(&path) && error.contains(fault), "{error}");
    }
}
