//! Jobs with directories of their own: the bash scripts of the original, and the descriptions of this project
//! in their place, as sorted lines of facts.

use serde_json::Value;

use super::super::text::regex;
use super::Tree;

/// Replaces the scripts of jobs by their facts, under the names of descriptions.
pub fn settle_scripts(tree: Tree) -> Tree {
    tree.into_iter()
        .map(|(path, text)| match path.strip_suffix(".sh") {
            Some(job) if text.contains("pegasus-lite-common.sh") => (format!("{job}.json"), of_script(&text)),
            _ => (path, text),
        })
        .collect()
}

/// Replaces the descriptions of jobs by their facts.
pub fn settle_descriptions(tree: Tree) -> Tree {
    tree.into_iter()
        .map(|(path, text)| {
            let facts = path.ends_with(".json").then(|| of_description(&text)).flatten();
            (path, facts.unwrap_or(text))
        })
        .collect()
}

/// Lines of facts, collected in any order.
#[derive(Default)]
struct Facts(Vec<String>);

impl Facts {
    fn add(&mut self, what: &str, value: &str) {
        self.0.push(format!("{what}: {value}"));
    }
    /// Adds the entries of a list of transfers.
    fn add_transfers(&mut self, list: &Value) {
        for entry in list.as_array().into_iter().flatten() {
            let mut entry = entry.clone();
            if let Some(entry) = entry.as_object_mut() {
                entry.remove("id");
            }
            self.add("transfer", &entry.to_string());
        }
    }
    /// Adds what is run. The lists of kickstart are named without their directory.
    fn add_command(&mut self, words: &str) {
        let lists = regex!(r"@(?:\$_CONDOR_SCRATCH_DIR|\S*)/([^/ ]+\.lof)");
        let words = lists.replace_all(words, "@$1").replace("<< 'EOF'", "<< EOF");
        self.add("run", &words.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    fn finish(mut self) -> String {
        self.0.sort();
        self.0.dedup();
        self.0.iter().map(|line| format!("{line}\n")).collect()
    }
}

fn of_script(text: &str) -> String {
    let mut facts = Facts::default();
    let mut lines = text.lines();
    let (mut in_task, mut in_environment) = (false, false);
    while let Some(line) = lines.next() {
        let line = line.trim();
        let mut document = || -> Vec<&str> {
            let end = |line: &&str| !line.trim().eq_ignore_ascii_case("eof");
            lines.by_ref().take_while(end).collect()
        };
        if line.starts_with("pegasus-transfer ") && line.to_ascii_lowercase().ends_with("'eof'") {
            let options = line.trim_start_matches("pegasus-transfer").split("1>&2").next();
            let options: Vec<&str> = options.unwrap_or_default().split_whitespace().collect();
            facts.add("options", &options.join(" "));
            let list = document().join("\n");
            facts.add_transfers(&serde_json::from_str(&list).expect("a list of transfers"));
        } else if line.starts_with("pegasus-integrity ") {
            for name in document().iter().flat_map(|line| line.split(";;;")) {
                facts.add("verify", name);
            }
        } else if let Some(program) = line.strip_prefix("/bin/chmod +x ") {
            facts.add("executable", program);
        } else if let Some(directory) = line.strip_prefix("export PEGASUS_WN_TMP=") {
            facts.add("scratch", directory);
        } else if line.starts_with("pegasus_lite_section_start task_execute")
            || line.contains("[Container] Launching user task")
        {
            in_task = true;
        } else if line.starts_with("pegasus_lite_section_start ") {
            in_environment = false;
        } else if line.starts_with("job_ec=$?") || line == "EOF2" || line == "set -e" {
            in_task = false;
        } else if line.starts_with("# setting environment variables for job") {
            in_environment = true;
        } else if line == "EOF" {
            in_environment = false;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| in_environment) {
            // These say what is so without them.
            if !matches!((name, value), ("HOME", "/srv") | ("export PATH", _)) {
                facts.add("variable", &format!("{name}={}", value.trim_matches('"')));
            }
        } else if let Some(directory) = line.strip_prefix("container_env ") {
            let directory = directory.split(' ').next().unwrap_or_default();
            facts.add("directory", directory);
        } else if let Some((kind, image)) = line.split_once("_init ").filter(|(kind, _)| !kind.contains(' '))
        {
            facts.add("container", &format!("{kind} {image}"));
        } else if line.contains(" --bind $PWD:")
            || line.contains(" -v $PWD:")
            || line.contains("shifter --image ")
        {
            add_call(&mut facts, line);
        } else if ["#!", "cat <<", "export "]
            .iter()
            .any(|start| line.starts_with(start))
        {
            // Parts of the script for the inside of a container.
        } else if in_task && !line.is_empty() && !line.starts_with("printf ")
            || line.starts_with("pegasus-kickstart ")
        {
            facts.add_command(line);
        }
    }
    facts.finish()
}

/// Adds how a container is called: launcher, mounts, arguments.
fn add_call(facts: &mut Facts, line: &str) {
    let call = regex!(
        r"(?x) ^ (?P<launcher>.*?) \ ?
        (?: \$singularity_exec\ exec\ --no-home\ --bind\ \$PWD:/srv (?P<s>.*) \ \S+ \ /srv/\S+-cont\.sh
        | docker\ run\ --user\ root\ -v\ \$PWD:/scratch (?P<d>.*?) \ -w=/scratch\ --entrypoint\ /bin/sh (?P<a>.*?)
          \ --name\ \$cont_name .*
        | shifter\ --image\ \S+ \ --volume\ (?P<v>\S*)\$PWD:/scratch\ --workdir=/scratch (?P<w>.*?) \ \./\S+-cont\.sh ) $"
    );
    let found = call.captures(line.trim()).expect("the call of a container");
    let part = |name: &str| found.name(name).map_or("", |part| part.as_str());
    let mut arguments = Vec::new();
    for part in [part("s"), part("d"), part("a"), part("w")] {
        let mut words = part.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                "--bind" | "-v" => {
                    let mount = words.next().unwrap_or_default();
                    if !mount.starts_with("$_CONDOR_SCRATCH_DIR") {
                        facts.add("mount", mount);
                    }
                }
                word => arguments.push(word),
            }
        }
    }
    for mount in part("v").split(';').filter(|mount| !mount.is_empty()) {
        facts.add("mount", mount);
    }
    for (what, words) in [
        ("launcher", part("launcher")),
        ("arguments", &arguments.join(" ")),
    ] {
        if !words.is_empty() {
            facts.add(what, words);
        }
    }
}

/// Adds the facts about the container in a description.
fn add_container(facts: &mut Facts, container: &Value) {
    let text = |key: &str| container[key].as_str().unwrap_or_default();
    facts.add("container", &format!("{} {}", text("kind"), text("image")));
    facts.add("directory", text("directory"));
    for mount in words(&container["mounts"]) {
        facts.add("mount", &mount);
    }
    for what in ["launcher", "arguments"] {
        let words = words(&container[what]).join(" ");
        if !words.is_empty() {
            facts.add(what, &words);
        }
    }
    for (name, value) in container["environment"].as_object().into_iter().flatten() {
        facts.add(
            "variable",
            &format!("{name}={}", value.as_str().unwrap_or_default()),
        );
    }
    facts.add_transfers(&container["fetch"]);
    for file in container["verify"].as_array().into_iter().flatten() {
        facts.add("verify", file["lfn"].as_str().unwrap_or_default());
    }
}

fn words(value: &Value) -> Vec<String> {
    let words = value.as_array().into_iter().flatten();
    words
        .map(|word| word.as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Returns the facts of a description, `None` for other files.
fn of_description(text: &str) -> Option<String> {
    let job: Value = serde_json::from_str(text).ok()?;
    let mut facts = Facts::default();
    let run = job.get("run")?;
    for key in ["stage_in", "checkpoint_in", "checkpoint_out", "stage_out"] {
        facts.add_transfers(&job[key]);
        if job.get(key).is_some() {
            let options = words(&job["transfer_arguments"]);
            facts.add("options", &options.join(" "));
        }
    }
    if !job["container"]["fetch"].is_null() {
        let options = words(&job["transfer_arguments"]);
        facts.add("options", &options.join(" "));
    }
    for file in job["verify"].as_array().into_iter().flatten() {
        facts.add("verify", file["lfn"].as_str().unwrap_or_default());
    }
    for program in words(&job["executables"]) {
        facts.add("executable", &program);
    }
    if let Some(directory) = job["scratch"].as_str() {
        facts.add("scratch", directory);
    }
    if let Some(container) = job.get("container") {
        add_container(&mut facts, container);
    }
    match run.get("kickstart") {
        Some(arguments) => facts.add_command(&format!("pegasus-kickstart {}", words(arguments).join(" "))),
        None => facts.add_command(&words(&run["program"]).join(" ")),
    }
    Some(facts.finish())
}
