# The recipe for Spack. Put this directory as `packages/pmc` into a repository of yours (`spack repo create`), and
# name the archive of the sources in `url`, with its checksum in `version`.

from spack.package import *


class Pmc(CargoPackage):
    """Plans Pegasus workflows and runs them as one batch job, without HTCondor and Java."""

    homepage = "https://pegasus.isi.edu"
    url = "file:///path/to/pmc-0.1.0.tar.gz"
    license("Apache-2.0")

    version("0.1.0")

    variant("mpi", default=True, description="Executor that runs under MPI")
    variant("full", default=True, description="Transfers from and to S3 and GCS, PostgreSQL databases")

    depends_on("c", type="build")
    depends_on("rust@1.91:", type="build")
    depends_on("mpi", when="+mpi")
    depends_on("llvm +clang", type="build", when="+mpi")

    def setup_build_environment(self, env):
        if self.spec.satisfies("+mpi"):
            env.set("MPICC", self.spec["mpi"].mpicc)
            env.set("LIBCLANG_PATH", self.spec["llvm"].prefix.lib)

    @property
    def build_directory(self):
        return join_path(self.stage.source_path, "pmc")

    @property
    def build_args(self):
        features = [name for name in ("mpi", "full") if self.spec.satisfies(f"+{name}")]
        return ["--locked", "--features", ",".join(features)] if features else ["--locked"]

    @run_after("install")
    def install_share(self):
        install_tree(join_path(self.stage.source_path, "share"), self.prefix.share)
