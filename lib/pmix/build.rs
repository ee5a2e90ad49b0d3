//! Compiles the C part, with the feature `library` only.

fn main() {
    println!("cargo::rerun-if-changed=src/shim.c");
    println!("cargo::rerun-if-changed=src/ranks.c");
    #[cfg(feature = "library")]
    compile();
}

#[cfg(feature = "library")]
#[expect(clippy::panic, reason = "the message of a build that cannot go on")]
fn compile() {
    let library = pkg_config::Config::new()
        .atleast_version("4.2")
        .probe("pmix")
        .unwrap_or_else(|error| panic!("the feature `pmix` needs libpmix-dev and pkg-config: {error}"));
    cc::Build::new()
        .file("src/shim.c")
        .file("src/ranks.c")
        .includes(library.include_paths)
        .warnings_into_errors(false)
        .compile("pmc_pmix_shim");
}
