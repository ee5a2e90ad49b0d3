//! How the programs of this workspace are linked, so that they start quickly: a workflow of short tasks
//! starts several of them, and each lives for a few milliseconds.
//!
//! * They lie at a fixed address. Otherwise the dynamic linker corrects thousands of addresses, 17,000 in
//!   `pmc-plan`, and the system copies the pages that these are in. `PMC_PIE=1` keeps them movable, for
//!   sites where all programs must be.
//! * The part of the compiler's library that unwinds the stack is linked in, instead of having the dynamic
//!   linker find and load `libgcc_s`. Where the static library is missing, that stays as it is.
//!
//! All this is for Linux with the GNU C library.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PMC_PIE");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    if !is("CARGO_CFG_TARGET_OS", "linux")
        || !is("CARGO_CFG_TARGET_ENV", "gnu")
        || env::var("HOST") != env::var("TARGET")
    {
        return;
    }
    if !is("PMC_PIE", "1") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    let found = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    let found = found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    if !found.is_ok_and(|path| Path::new(&path).is_absolute()) {
        return;
    }
    // A linker takes a text of this form for the libraries it names.
    if let Some(directory) = env::var_os("OUT_DIR").map(|path| Path::new(&path).join("link"))
        && fs::create_dir_all(&directory).is_ok()
        && fs::write(directory.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n").is_ok()
    {
        println!("cargo::rustc-link-search=native={}", directory.display());
    }
}
