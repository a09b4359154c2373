use super::Images::HaveFiles;
use super::Severity::Warn;
use super::*;
use crate::facts::gather;
use crate::file;
use proptest::prelude::*;

/// Of a processor with these components.
fn places(of: &[(usize, u32)]) -> [u32; 20] {
    let mut places = [0; 20];
    of.iter().for_each(|(part, place)| places[*part] = *place);
    places
}

fn file(role: Role, path: &str) -> File {
    File { size: 100, modified_ns: 5, build_id: 7, ..File::unknown(role, path, "") }
}

fn facts() -> Facts {
    Facts {
        version: "1.0".into(),
        command: file(Role::Program, "/usr/bin/eyrie"),
        identity: String::new(),
        node: Platform {
            kernel: "6.1.0-21".into(),
            cpu_vendor: "GenuineIntel".into(),
            features: [1 << 28, 1, 1 << 5, 0, 0, 0, 0, 0],
            xcr0: 7,
            xsave_len: 832,
            places: places(&[(2, 576)]),
            hides: true,
        },
        limits: Limits {
            overcommit: 0,
            lowest_address: 65536,
            mappings: 65530,
            huge_pages: 0,
            open_files: 1 << 20,
            locked_memory: u64::MAX,
            stack: u64::MAX,
            address_space: u64::MAX,
        },
        files: vec![file(Role::Program, "/opt/solver"), file(Role::Library, "/lib/libc.so.6")],
    }
}

/// The one difference that a change makes on host b.
fn only(change: impl FnOnce(&mut Facts)) -> Difference {
    let a = facts();
    let mut b = facts();
    change(&mut b);
    let mut all = differences(("b", &b), ("a", &a), Needs::default());
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

#[test]
fn each_difference_is_one_sentence_with_hosts_and_remedy() {
    use Severity::*;
    use What::*;
    type Change = fn(&mut Facts);
    let cases: [(Change, Severity, What, &str); 13] = [
        (|f| f.version = "1.1".into(), Refuse, Version, "b has Eyrie 1.1, a has 1.0"),
        (|f| f.command.build_id = 8, Warn, Build, "b has another build of Eyrie 1.0"),
        (|f| f.node.kernel = "6.1.0-22".into(), Warn, Kernel, "b runs kernel 6.1.0-22, a runs 6"),
        (
            |f| f.node.cpu_vendor = "AuthenticAMD".into(),
            Refuse,
            CpuVendor,
            "of AuthenticAMD, a one",
        ),
        (|f| f.node.features[2] = 0, Refuse, Instructions, "b's CPU lacks avx2, which a's has"),
        (
            |f| f.node.features[3] = 1 << 8,
            Refuse,
            Instructions,
            "a's CPU lacks gfni, which b's has",
        ),
        (|f| f.node.xcr0 = 0xe7, Refuse, RegisterState, "b's CPU has the register state 0xe7"),
        (|f| f.limits.open_files = 4096, Warn, Limit, "b allows 4096 open files, a 1048576"),
        (|f| f.limits.overcommit = 2, Warn, Limit, "b counts memory that was never touched"),
        (|f| f.files[1].build_id = 8, Refuse, OtherFile, "/lib/libc.so.6 is 100 bytes, build 0000"),
        (|f| f.files.truncate(1), Refuse, MissingFile, "a uses /lib/libc.so.6, b does not"),
        (|f| f.files[0].problem = "No such file".into(), Refuse, MissingFile, "does not (No such"),
        (
            |f| {
                f.files.push(File {
                    role: Role::Argument,
                    ..file::look(Role::Argument, "/proc/self/exe".as_ref())
                })
            },
            Warn,
            Argument,
            "b uses /",
        ),
    ];
    for (change, severity, what, words) in cases {
        let d = only(|f| {
            change(f);
            // A change of the file's build id also counts if the times differ.
            for file in f.files.iter_mut().filter(|file| file.build_id == 8) {
                file.modified_ns = 6;
            }
        });
        assert_eq!((d.severity, d.what), (severity, what), "{d}");
        assert!(d.text.contains(words), "{words:?} is not in {d}");
        assert!(d.text.contains(": ") && d.text.contains("; "), "no meaning or remedy: {d}");
        assert!(!d.text.ends_with('.') && d.value != d.other_value, "{d:?}");
    }
}

/// Hosts with AVX-512 and without, which hide instructions or do not.
fn unequal(hides: bool) -> (Facts, Facts) {
    let mut rich = facts();
    rich.node.features[2] |= 1 << 16;
    rich.node.xcr0 = 0xe7;
    rich.node.xsave_len = 2688;
    rich.node.places = places(&[(2, 576), (5, 1088), (6, 1152), (7, 1664)]);
    let mut poor = facts();
    rich.node.hides = hides;
    poor.node.hides = hides;
    (rich, poor)
}

#[test]
fn a_level_that_both_have_makes_unequal_processors_equal() {
    let (rich, poor) = unequal(true);
    let between = |level: Option<&processor::Level>| {
        differences(("rich", &rich), ("poor", &poor), Needs { level, ..Needs::default() })
    };
    let refused = between(None);
    assert_eq!(refused.len(), 2, "{refused:#?}");
    assert!(refused.iter().all(|d| d.text.contains("--cpu common")), "{refused:#?}");
    let v3 = processor::Level::named("x86-64-v3").unwrap();
    assert_eq!(between(Some(&v3)), []);
    let common = crate::in_common([&rich.node, &poor.node].into_iter()).unwrap();
    assert_eq!(between(Some(&common)), []);
    let v4 = processor::Level::named("x86-64-v4").unwrap();
    let refused = between(Some(&v4));
    assert_eq!(refused.len(), 2, "{refused:#?}");
    assert!(refused[0].text.contains("poor's CPU lacks avx512f"), "{refused:#?}");
    assert!(refused[1].text.contains("registers of AVX-512"), "{refused:#?}");
    assert!(crate::lacking(&v4, &poor.node).unwrap().contains("avx512f"));
}

#[test]
fn what_cannot_be_hidden_from_our_libraries_is_refused_by_name() {
    let (rich, poor) = unequal(false);
    let v3 = processor::Level::named("x86-64-v3").unwrap();
    let refused = differences(
        ("rich", &rich),
        ("poor", &poor),
        Needs { level: Some(&v3), ..Needs::default() },
    );
    assert_eq!(refused.len(), 1, "{refused:#?}");
    assert!(refused[0].text.contains("avx512f") && refused[0].text.contains("no means to hide"));
}

#[test]
fn registers_in_another_place_are_refused() {
    let (rich, mut poor) = unequal(true);
    poor.node.places = places(&[(2, 640)]);
    let v3 = processor::Level::named("x86-64-v3").unwrap();
    let refused = differences(
        ("rich", &rich),
        ("poor", &poor),
        Needs { level: Some(&v3), ..Needs::default() },
    );
    assert!(refused.iter().all(|d| d.what == What::RegisterState), "{refused:#?}");
    assert!(refused[0].text.contains("registers of AVX"), "{refused:#?}");
}

#[test]
fn a_library_of_another_place_is_named() {
    let d = differences(
        ("b", &Facts { files: vec![file(Role::Library, "/usr/lib/libx.so")], ..facts() }),
        ("a", &Facts { files: vec![file(Role::Library, "/opt/lib/libx.so")], ..facts() }),
        Needs::default(),
    );
    assert_eq!(d.len(), 2);
    assert!(d[0].text.contains("loads /usr/lib/libx.so instead"), "{}", d[0]);
}

#[test]
fn a_copy_without_its_time_is_refused_with_what_helps() {
    let plain = |modified_ns| {
        let content = "0123456789abcdef0123".to_string();
        File { build_id: 0, content, modified_ns, ..file(Role::Library, "/opt/numpy.so") }
    };
    let with = |file: File| Facts { files: vec![file], ..facts() };
    let d =
        differences(("b", &with(plain(1_000_000_005))), ("a", &with(plain(6))), Needs::default());
    assert_eq!((d.len(), d[0].what), (1, What::FileTime));
    assert!(d[0].text.contains("of the time 1.000000005 on b") && d[0].text.contains("cp -p"));
    // A script is read, not mapped.
    let script = |ns| with(File { role: Role::Script, ..plain(ns) });
    assert_eq!(differences(("b", &script(1)), ("a", &script(2)), Needs::default()), []);
}

#[test]
fn images_that_have_the_files_do_not_need_them() {
    let with = |files: Vec<File>| Facts { files, ..facts() };
    let program = || file(Role::Program, "/opt/solver");
    let between = |b: &Facts, a: &Facts| {
        differences(("b", b), ("a", a), Needs { images: HaveFiles, level: None })
    };
    let d = between(&with(vec![]), &with(vec![program()]));
    assert_eq!((d.len(), d[0].severity, d[0].what), (1, Warn, What::MissingFile));
    assert!(d[0].text.contains("a rank without an image does not start on b"), "{}", d[0]);
    let library = || file(Role::Library, "/lib/libc.so.6");
    let d = between(&with(vec![]), &with(vec![program(), library()]));
    assert_eq!(d.len(), 1, "it is not said of each library: {d:?}");
    let d = between(&with(vec![program()]), &with(vec![program(), library()]));
    assert_eq!((d.len(), d[0].severity, d[0].what), (1, Warn, What::MissingFile));
    let d = between(&with(vec![File { size: 99, ..program() }]), &with(vec![program()]));
    assert_eq!((d.len(), d[0].severity, d[0].what), (1, Warn, What::OtherFile));
    assert!(d[0].text.contains("starts with the one that is there"), "{}", d[0]);
    // The same content: another time of change does not matter then.
    let content = "0123456789abcdef0123".to_string();
    let plain =
        |modified_ns| File { build_id: 0, content: content.clone(), modified_ns, ..program() };
    assert_eq!(between(&with(vec![plain(1)]), &with(vec![plain(2)])), []);
    // What helps without it.
    for d in differences(("b", &with(vec![])), ("a", &with(vec![program()])), Needs::default()) {
        assert!(d.text.ends_with("or use --self-contained"), "{d}");
    }
}

#[test]
fn facts_can_be_sent() {
    let host = gather("1", None, &["/proc/self/exe".as_ref()]);
    let text = serde_json::to_string(&host).unwrap();
    assert_eq!(serde_json::from_str::<Facts>(&text).unwrap(), host);
    assert_eq!(differences(("a", &host), ("a", &host), Needs::default()), []);
}

fn any_file() -> impl Strategy<Value = File> {
    let role =
        prop::sample::select(vec![Role::Program, Role::Script, Role::Library, Role::Argument]);
    let problem = prop::sample::select(vec!["", "", "No such file"]);
    (role, 0u8..4, 0u64..2, 0i64..2, 0u64..3, problem).prop_map(
        |(role, name, size, modified_ns, build_id, problem)| File {
            size,
            modified_ns,
            build_id,
            content: if build_id == 0 { "0123456789abcdef".into() } else { String::new() },
            ..File::unknown(role, &format!("/lib/{name}"), problem)
        },
    )
}

prop_compose! {
    fn any_facts()(
        version in 0u8..2,
        command in any_file(),
        kernel in 0u8..2,
        vendor in 0u8..2,
        features in prop::array::uniform8(0u32..4),
        state in 0u64..2,
        limits in prop::array::uniform8(0u64..3),
        files in prop::collection::btree_map(0u8..4, any_file(), 0..4),
    ) -> Facts {
        let [overcommit, lowest_address, mappings, huge_pages, open_files, locked_memory, stack, address_space] = limits;
        Facts {
            version: version.to_string(),
            command,
            identity: String::new(),
            node: Platform {
                kernel: kernel.to_string(),
                cpu_vendor: vendor.to_string(),
                features,
                xcr0: state,
                ..facts().node
            },
            limits: Limits {
                overcommit, lowest_address, mappings, huge_pages, open_files, locked_memory, stack, address_space,
            },
            files: files.into_iter().map(|(n, f)| File { path: format!("/lib/{n}"), ..f }).collect(),
        }
    }
}

/// A difference, independent of the order in which the two hosts are named.
fn whichever_first(d: Difference) -> (Severity, What, [(String, String); 2]) {
    let mut sides = [(d.host, d.value), (d.than, d.other_value)];
    sides.sort();
    (d.severity, d.what, sides)
}

proptest! {
    #[test]
    fn equal_hosts_do_not_differ(a in any_facts()) {
        prop_assert_eq!(differences(("a", &a), ("b", &a.clone()), Needs::default()), []);
    }

    #[test]
    fn the_order_of_the_hosts_does_not_matter(a in any_facts(), b in any_facts()) {
        let sorted = |all: Vec<Difference>| {
            let mut all: Vec<_> = all.into_iter().map(whichever_first).collect();
            all.sort();
            all
        };
        let one = differences(("a", &a), ("b", &b), Needs::default());
        let other = differences(("b", &b), ("a", &a), Needs::default());
        prop_assert_eq!(sorted(one), sorted(other));
    }

    /// This refuses exactly what the restorer would refuse.
    #[test]
    fn it_agrees_with_the_restorer(a in any_facts(), b in any_facts()) {
        let a = Facts { node: a.node, ..facts() };
        let b = Facts { node: b.node, ..facts() };
        let all = differences(("a", &a), ("b", &b), Needs::default());
        let refused = all.iter().any(|d| d.severity == Severity::Refuse);
        let there = obstacles(&a.node, &b.node, None);
        let back = obstacles(&b.node, &a.node, None);
        prop_assert_eq!(refused, !there.is_empty() || !back.is_empty());
    }
}

#[test]
fn two_names_of_one_host_are_recognised_and_unknown_hosts_are_not() {
    let said = same_host(("a", "boot net:[1]"), ("10.0.0.1", "boot net:[1]")).unwrap();
    assert!(said.severity == Severity::Refuse && said.what == What::SameHost);
    assert!(said.text.starts_with("a and 10.0.0.1 are one host"), "{said}");
    assert_eq!(same_host(("a", "boot net:[1]"), ("b", "boot net:[2]")), None);
    assert_eq!(same_host(("a", ""), ("b", "")), None);
}
