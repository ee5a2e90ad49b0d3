//! Links the part of the compiler's library that unwinds the stack into the program, instead of having the dynamic
//! linker find and load `libgcc_s` at each start: for a program that runs a millisecond this is a tenth of it.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    // Other packages use this file, too; each has its directory beside this one.
    println!("cargo::rerun-if-changed=../transfer/build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    if !is("CARGO_CFG_TARGET_OS", "linux")
        || !is("CARGO_CFG_TARGET_ENV", "gnu")
        || env::var("HOST") != env::var("TARGET")
    {
        return;
    }
    // Without the static library everything stays as it is.
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
