//! Job scripts for programs in containers: a second script, which runs inside.

use std::borrow::Cow;
use std::fmt::Write as _;

use pmc_calls::shell::shell_quote;
use pmc_job_files::{Container, ContainerKind};

/// Adds the script for the inside, and the call of the container. `settings` and `command` are those of the
/// job.
pub(super) fn call(job: &str, container: &Container, settings: &str, command: &str, text: &mut String) {
    let inner = format!("{job}-cont.sh");
    let (inner, directory) = (shell_quote(&inner), container.directory.as_str());
    let _ = write!(
        text,
        "cat <<'EOF' > {inner}\n#!/bin/bash\nset -e\n# setting environment variables for job\n"
    );
    variables(container, text);
    let _ = write!(
        text,
        "EOF\ncontainer_env {directory} >> {inner}\ncat <<'EOF2' >> {inner}\n{settings}pegasus_lite_inside_container=true\n\
         export pegasus_lite_work_dir={directory}\ncd {directory}\n. ./pegasus-lite-common.sh\npegasus_lite_init\n\
         pegasus_lite_worker_package\n# [Container] Launching user task\n{command}\nEOF2\nchmod +x {inner}\n\
         if ! [ $pegasus_lite_start_dir -ef . ]; then\n    cp $pegasus_lite_start_dir/pegasus-lite-common.sh .\nfi\n\n\
         set +e\njob_ec=0\n"
    );
    let kind = container.kind.name();
    let image = shell_quote(&container.image);
    let _ = writeln!(text, "{kind}_init {image}\njob_ec=$(($job_ec + $?))");
    text.push_str(&run(&inner, container));
    text.push_str("\njob_ec=$(($job_ec + $?))\n");
    if container.kind == ContainerKind::Docker {
        text.push_str("docker rm --force $cont_name 1>&2\njob_ec=$(($job_ec + $?))\n");
    }
}

/// Adds variables of the program.
pub(super) fn variables(container: &Container, text: &mut String) {
    for (name, value) in &container.environment {
        let quoted = value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('$', "\\$")
            .replace('`', "\\`");
        let _ = writeln!(text, "{name}=\"{quoted}\"\nexport {name}");
    }
}

/// Returns the command that runs the script in the container.
fn run(inner: &str, container: &Container) -> String {
    let words = |words: &[String]| -> String {
        let quoted: Vec<Cow<'_, str>> = words.iter().map(|word| shell_quote(word)).collect();
        quoted.iter().map(|word| format!(" {word}")).collect()
    };
    let mounts = |option: &str| -> String {
        let own = "$_CONDOR_SCRATCH_DIR:$_CONDOR_SCRATCH_DIR".to_owned();
        let others = container
            .mounts
            .iter()
            .map(|mount| shell_quote(mount).into_owned());
        let all = std::iter::once(own).chain(others);
        all.map(|mount| format!(" {option} {mount}")).collect()
    };
    let launcher = words(&container.launcher);
    let launcher = match launcher.trim_start() {
        "" => String::new(),
        launcher => format!("{launcher} "),
    };
    let (arguments, image) = (words(&container.arguments), shell_quote(&container.image));
    match container.kind {
        ContainerKind::Singularity => format!(
            "{launcher}$singularity_exec exec --no-home --bind $PWD:/srv{}{arguments} {image} /srv/{inner}",
            mounts("--bind")
        ),
        ContainerKind::Docker | ContainerKind::Podman => format!(
            "{launcher}docker run --user root -v $PWD:/scratch{} -w=/scratch --entrypoint /bin/sh{arguments} --name \
             $cont_name $cont_image -c \"set -e; if ! grep -q -E \\\"^$cont_group:\\\" /etc/group; then groupadd -f --gid \
             $cont_groupid $cont_group; fi; if ! id $cont_user 2>/dev/null; then useradd -o --uid $cont_userid --gid \
             $cont_groupid $cont_user; fi; su $cont_user -c \\\"./{inner}\\\"\"",
            mounts("-v")
        ),
        ContainerKind::Shifter => {
            let volumes: Vec<String> = container.mounts.iter().map(|mount| format!("{mount};")).collect();
            format!(
                "{launcher}shifter --image {image} --volume \"{}$PWD:/scratch\" --workdir=/scratch{arguments} ./{inner}",
                volumes.concat()
            )
        }
    }
}
