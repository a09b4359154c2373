//! What ranks are started to use of their processors (`--cpu`): the level, and the variables that
//! hold libraries to it. The level of the ranks is in their environment, so that it goes wherever
//! the job goes on. Nothing here asks a host.

use eyrie_image::processor::Level;
use eyrie_interface::options::CpuLevel;
use eyrie_wire::agent::ENV_CPU;
use std::ffi::{OsStr, OsString};

type Environment = Vec<(OsString, OsString)>;

/// The C library's names of instructions, which it and its loader choose their code by, each behind
/// the name in /proc/cpuinfo. Versions that do not know one ignore it. XSAVEC goes with XSAVE only:
/// without it the loader saves registers by XSAVE, which writes all that a richer processor has.
const GLIBC: [(&str, &str); 25] = [
    ("avx", "AVX"),
    ("avx2", "AVX2"),
    ("fma", "FMA"),
    ("fma4", "FMA4"),
    ("bmi1", "BMI1"),
    ("bmi2", "BMI2"),
    ("movbe", "MOVBE"),
    ("abm", "LZCNT"),
    ("popcnt", "POPCNT"),
    ("rtm", "RTM"),
    ("ssse3", "SSSE3"),
    ("sse4_1", "SSE4_1"),
    ("sse4_2", "SSE4_2"),
    ("xsave", "XSAVE"),
    ("xsave", "XSAVEC"),
    ("osxsave", "OSXSAVE"),
    ("f16c", "F16C"),
    ("avx512f", "AVX512F"),
    ("avx512bw", "AVX512BW"),
    ("avx512cd", "AVX512CD"),
    ("avx512dq", "AVX512DQ"),
    ("avx512er", "AVX512ER"),
    ("avx512pf", "AVX512PF"),
    ("avx512vl", "AVX512VL"),
    ("avx512_vnni", "AVX512_VNNI"),
];

/// NumPy's names of what it dispatches to, each behind what it needs. Those that a build does not
/// know it ignores.
const NUMPY: [(&str, &str); 14] = [
    ("avx", "AVX"),
    ("f16c", "F16C"),
    ("fma", "FMA3"),
    ("fma4", "FMA4"),
    ("xop", "XOP"),
    ("avx2", "AVX2"),
    ("avx avx2 bmi1 bmi2 f16c fma abm movbe", "X86_V3"),
    ("avx512f", "AVX512F"),
    ("avx512cd", "AVX512CD"),
    ("avx512f avx512bw avx512cd avx512dq avx512vl", "AVX512_SKX X86_V4"),
    ("avx512_vnni", "AVX512_CLX"),
    ("avx512ifma avx512vbmi", "AVX512_CNL"),
    ("avx512_vbmi2 avx512_bitalg avx512_vpopcntdq gfni vaes vpclmulqdq", "AVX512_ICL"),
    ("avx512_fp16 avx512_bf16", "AVX512_SPR"),
];

const TUNABLES: &str = "GLIBC_TUNABLES";
const HWCAPS: &str = "glibc.cpu.hwcaps";

/// The kernels of BLAS libraries that a level has the instructions for, the best first: what is
/// needed, and how OpenBLAS and MKL name them.
const KERNELS: [(&str, &str, &str); 4] = [
    ("avx512f avx512bw avx512cd avx512dq avx512vl", "SkylakeX", "AVX512"),
    ("avx2 fma", "Haswell", "AVX2"),
    ("avx", "Sandybridge", "AVX"),
    ("", "Nehalem", "SSE4_2"),
];

/// What the ranks of a job are held to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Held {
    /// They may use all that their processors have.
    #[default]
    No,
    /// What all hosts have that have come; none yet.
    Common(Option<Level>),
    To(Level),
}

impl Held {
    /// What was asked for, of ranks with this environment.
    pub fn of(asked: Option<CpuLevel>, env: &Environment) -> Held {
        let text = env.iter().find(|(name, _)| name == ENV_CPU);
        match text.and_then(|(_, text)| Level::parse(text.as_encoded_bytes())) {
            Some(level) => Held::To(level),
            None if asked == Some(CpuLevel::Common) => Held::Common(None),
            None => Held::No,
        }
    }

    /// The level of the hosts that have come, if ranks are held to one.
    pub fn level(&self) -> Option<&Level> {
        match self {
            Held::No => None,
            Held::Common(level) => level.as_ref(),
            Held::To(level) => Some(level),
        }
    }

    /// A host has come that has this. Returns what is compared with the other hosts.
    pub fn come(&mut self, has: Level) -> Option<Level> {
        if let Held::Common(level) = self {
            *level = Some(level.map_or(has, |level| level.in_common(&has)));
        }
        self.level().copied()
    }
}

/// Holds ranks that will have this environment to the level. What the user has set stays, and is
/// returned as what to tell.
pub fn hold(level: &Level, env: &mut Environment) -> Vec<String> {
    let mut notes = Vec::new();
    add_tunables(level, env, &mut notes);
    for (name, value) in variables(level) {
        match env.iter().find(|(key, _)| key == name) {
            Some((_, theirs)) if *theirs != *value => notes.push(theirs_stays(name, theirs)),
            Some(_) => {}
            None => env.push((name.into(), value.into())),
        }
    }
    env.push((ENV_CPU.into(), level.to_string().into()));
    notes
}

fn theirs_stays(name: &str, theirs: &OsStr) -> String {
    let theirs = theirs.to_string_lossy();
    format!(
        "{name}={theirs} is set, so --cpu leaves it: see that it allows no more than all hosts \
         have, or unset it"
    )
}

/// Adds what the C library may not use to its other tunables.
fn add_tunables(level: &Level, env: &mut Environment, notes: &mut Vec<String>) {
    let lacks = |(name, _): &&(&str, &str)| !level.has(name);
    let off: Vec<String> =
        GLIBC.iter().filter(lacks).map(|(_, theirs)| format!("-{theirs}")).collect();
    if off.is_empty() {
        return;
    }
    let ours = format!("{HWCAPS}={}", off.join(","));
    match env.iter_mut().find(|(key, _)| key == TUNABLES) {
        Some((_, value)) if value.to_string_lossy().contains(HWCAPS) => {
            notes.push(theirs_stays(TUNABLES, value));
        }
        Some((_, value)) if value.is_empty() => *value = ours.into(),
        Some((_, value)) => {
            value.push(":");
            value.push(&ours);
        }
        None => env.push((TUNABLES.into(), ours.into())),
    }
}

/// The variables of the other libraries. Functions are bound when they are loaded: a function that
/// is bound at its first call has all registers saved, in room of the size that the processor had
/// at the start, and a richer processor would write beyond it.
fn variables(level: &Level) -> Vec<(&'static str, String)> {
    let kernel = KERNELS.iter().find(|(needs, ..)| level.has(needs));
    let (_, openblas, mkl) = kernel.unwrap_or(&KERNELS[KERNELS.len() - 1]);
    let lacks = |(name, _): &&(&str, &str)| !level.has(name);
    let numpy: Vec<&str> = NUMPY.iter().filter(lacks).map(|(_, theirs)| *theirs).collect();
    let [ecx, edx, ebx7, ecx7, ..] = level.masked().map(u64::from);
    let mut all = vec![
        ("LD_BIND_NOW", "1".to_string()),
        ("OPENBLAS_CORETYPE", openblas.to_string()),
        ("MKL_ENABLE_INSTRUCTIONS", mkl.to_string()),
        ("OPENSSL_ia32cap", format!("~{:#x}:~{:#x}", ecx << 32 | edx, ecx7 << 32 | ebx7)),
    ];
    // Reductions of Open MPI that ask the processor themselves.
    if !level.has(KERNELS[0].0) {
        all.push(("OMPI_MCA_op", "^avx".to_string()));
    }
    if !numpy.is_empty() {
        all.push(("NPY_DISABLE_CPU_FEATURES", numpy.join(" ")));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(env: &'a Environment, name: &str) -> &'a str {
        let all: Vec<_> = env.iter().filter(|(key, _)| key == name).collect();
        assert_eq!(all.len(), 1, "{name}: {env:?}");
        all[0].1.to_str().unwrap()
    }

    fn level(name: &str) -> Level {
        Level::named(name).unwrap()
    }

    #[test]
    fn libraries_are_held_to_the_level() {
        let mut env = vec![(TUNABLES.into(), "glibc.malloc.hugetlb=1".into())];
        assert_eq!(hold(&level("x86-64-v3"), &mut env), Vec::<String>::new());
        let tunables = value(&env, TUNABLES);
        assert!(tunables.starts_with("glibc.malloc.hugetlb=1:glibc.cpu.hwcaps=-"), "{tunables}");
        assert!(tunables.contains("-AVX512F,-AVX512BW") && !tunables.contains("-AVX2"));
        assert!(!tunables.contains("XSAVEC"), "{tunables}");
        assert_eq!(value(&env, "OPENBLAS_CORETYPE"), "Haswell");
        assert_eq!(value(&env, "MKL_ENABLE_INSTRUCTIONS"), "AVX2");
        assert_eq!(value(&env, "LD_BIND_NOW"), "1");
        assert_eq!(value(&env, "OMPI_MCA_op"), "^avx");
        let numpy = value(&env, "NPY_DISABLE_CPU_FEATURES");
        assert!(numpy.starts_with("FMA4 XOP AVX512F ") && numpy.contains("X86_V4"), "{numpy}");
        // AES is no part of the level: bit 25 of ecx. AVX-512F is bit 16 of leaf 7's ebx.
        let (first, second) = value(&env, "OPENSSL_ia32cap").split_once(":~0x").unwrap();
        let first = u64::from_str_radix(first.strip_prefix("~0x").unwrap(), 16).unwrap();
        let second = u64::from_str_radix(second, 16).unwrap();
        assert!(first & 1 << (32 + 25) != 0 && first & 1 << (32 + 28) == 0, "{first:#x}");
        assert!(second & 1 << 16 != 0 && second & 1 << 5 == 0, "{second:#x}");
        assert_eq!(Held::of(None, &env), Held::To(level("x86-64-v3")));
    }

    #[test]
    fn each_level_has_its_kernels() {
        for (name, openblas) in
            [("x86-64-v2", "Nehalem"), ("x86-64-v3", "Haswell"), ("x86-64-v4", "SkylakeX")]
        {
            let mut env = vec![];
            hold(&level(name), &mut env);
            assert_eq!(value(&env, "OPENBLAS_CORETYPE"), openblas);
        }
        let mut env = vec![];
        hold(&level("x86-64-v2"), &mut env);
        assert!(value(&env, TUNABLES).contains("-XSAVEC,-OSXSAVE"));
    }

    #[test]
    fn what_the_user_has_set_stays_and_is_said() {
        let mut env: Environment = vec![
            (TUNABLES.into(), "glibc.cpu.hwcaps=-AVX2".into()),
            ("OPENBLAS_CORETYPE".into(), "Zen".into()),
            ("LD_BIND_NOW".into(), "1".into()),
        ];
        let notes = hold(&level("x86-64-v3"), &mut env);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].starts_with("GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2 is set"), "{notes:?}");
        assert!(notes[1].contains("OPENBLAS_CORETYPE=Zen"), "{notes:?}");
        assert_eq!(value(&env, "OPENBLAS_CORETYPE"), "Zen");
        assert_eq!(value(&env, TUNABLES), "glibc.cpu.hwcaps=-AVX2");
    }

    #[test]
    fn common_is_what_all_hosts_have_that_have_come() {
        let mut held = Held::of(Some(CpuLevel::Common), &vec![]);
        assert_eq!(held.level(), None);
        assert_eq!(held.come(level("x86-64-v4")), Some(level("x86-64-v4")));
        assert_eq!(held.come(level("x86-64-v3")), Some(level("x86-64-v3")));
        assert_eq!(held.come(level("x86-64-v4")), Some(level("x86-64-v3")));
        let mut held = Held::To(level("x86-64-v4"));
        assert_eq!(held.come(level("x86-64-v2")), Some(level("x86-64-v4")));
        assert_eq!(Held::of(None, &vec![]).come(level("x86-64-v2")), None);
    }
}
