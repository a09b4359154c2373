# Spack's recipe of Eyrie, for Spack 1.0 or newer. It stands in a repository of its own, here in the
# checkout, which is what is built:
#   spack repo add packaging/spack_repo/eyrie && spack dev-build eyrie@main
# Nothing is published: the two addresses below stand for those that will be.
from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Eyrie(Package):
    """Keeps MPI jobs running when ranks and nodes die, without changing the program: a libfabric
    provider that logs messages, images of running processes, and recovery of only what died."""

    homepage = "https://localhost/eyrie"
    git = "https://localhost/eyrie.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("mpich", default=True, description="With an MPICH that ranks can be protected under")
    variant("bpf", default=False, description="With the monitor's readers in BPF (needs clang)")

    depends_on("c", type="build")
    depends_on("rust@1.85:", type="build")
    depends_on("gmake", type="build")
    depends_on("binutils", type="build")
    # For the readers of `eyrie monitor` that cost least; without them it takes slower ones.
    depends_on("llvm+clang", type="build", when="+bpf")
    depends_on("libbpf@1:", type="run", when="+bpf")
    depends_on("mpich@4.3: device=ch4 netmod=ofi", type="run", when="+mpich")

    requires("platform=linux", msg="images of processes are Linux's")
    requires("target=x86_64:", msg="images are of x86_64 processes")

    def install(self, spec, prefix):
        cargo = which("cargo", required=True)
        packages = ("eyrie", "eyrie-provider", "eyrie-calls", "eyrie-pmix")
        words = [word for package in packages for word in ("-p", package)]
        cargo("build", "--release", "--locked", "-j", str(make_jobs), *words)
        make("install", f"PREFIX={prefix}", "ULFM=no")

    def test_version(self):
        """the command says its version, and finds its libraries"""
        eyrie = Executable(self.prefix.bin.eyrie)
        assert "eyrie" in eyrie("--version", output=str)
        assert str(self.prefix.lib.eyrie) in eyrie("check", output=str, fail_on_error=False)
