//! Batch scripts and submission, with stub programs in place of the schedulers' commands.

#[expect(dead_code, reason = "only a part of the helpers is needed here")]
mod common;
#[path = "batch/restarts.rs"]
mod restarts;
#[path = "batch/size.rs"]
mod size;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use common::Case;
use pmc_plan::cli::result_text;

const WORKFLOW: &str = r#"pegasus: "5.0"
name: two words
jobs:
- type: job
  id: A
  name: first
- type: job
  id: B
  name: second
  profiles: {pegasus: {cores: "4", memory: "3000"}}
"#;

const LINE: &str = "--sites local --output-sites local --dir submit";

fn case() -> Case {
    let case = Case::new(WORKFLOW);
    case.programs(&["first", "second"]);
    case
}

/// Directives of a script, without their prefix.
fn directives<'a>(script: &'a str, prefix: &str) -> Vec<&'a str> {
    let all: Vec<&str> = script
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('#'))
        .filter_map(|line| line.strip_prefix(prefix)?.strip_prefix(' '))
        .map(str::trim)
        .collect();
    assert!(
        script.lines().filter(|line| line.contains(prefix)).count() == all.len(),
        "directives after the first command are ignored by schedulers:\n{script}"
    );
    all
}

/// Fails if bash cannot parse the script.
fn assert_valid_bash(path: &Path) {
    let output = Command::new("bash")
        .arg("-n")
        .arg(path)
        .output()
        .expect("bash is there");
    assert!(output.status.success(), "{}: {output:?}", path.display());
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of directives")]
fn every_scheduler_gets_its_directives() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    case.put(
        "pegasus.properties",
        "pegasus.batch.setup = module load mpi\\nexport A='x y'\npegasus.batch.directives = --extra 1\n\
         pegasus.batch.stampede = yes\n",
    );
    let plan = case.plan(&format!(
        "{LINE} --batch pbspro,lsf,flux,cobalt --nodes 3 --ppn 4 --walltime 2:00:00 --node-cpus 16 --node-memory 32G \
         --queue big --account p1 --drain 15"
    ))?;
    let submit = plan.planned.submit_dir.display().to_string();
    let base = plan
        .planned
        .dag
        .file_stem()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let output = |suffix: &str| format!("{submit}/{base}.{suffix}");
    let script = std::fs::read_to_string(output("sbatch"))?;
    assert!(
        script.contains(" --monitord-hack --per-task-stdio --stampede --max-wall-time job:115 "),
        "{script}"
    );
    let expected: [(&str, &str, Vec<String>); 5] = [
        (
            "pbs",
            "#PBS",
            vec![
                "-l select=3:ncpus=16:mpiprocs=4:mem=32768mb".into(),
                "-l place=scatter".into(),
                "-l walltime=2:00:00".into(),
                "-q big".into(),
                "-A p1".into(),
                "--extra 1".into(),
            ],
        ),
        (
            "sbatch",
            "#SBATCH",
            vec![
                "--nodes=3".into(),
                "--ntasks-per-node=4".into(),
                "--cpus-per-task=4".into(),
                "--mem=32768M".into(),
                "--time=2:00:00".into(),
                format!("--output={}", output("out")),
                "--open-mode=append".into(),
                // 5 minutes for the executor and 15 for running tasks.
                "--signal=B:USR1@1200".into(),
                "--partition=big".into(),
                "--account=p1".into(),
                "--extra 1".into(),
            ],
        ),
        (
            "lsf",
            "#BSUB",
            vec![
                "-n 12".into(),
                "-R \"span[ptile=4]\"".into(),
                "-R \"rusage[mem=8192MB]\"".into(),
                "-W 2:00".into(),
                format!("-e {}", output("err")),
                "-q big".into(),
                "-P p1".into(),
                "--extra 1".into(),
            ],
        ),
        (
            "flux",
            "#FLUX:",
            vec![
                "--nodes=3".into(),
                "--nslots=12".into(),
                "--cores-per-slot=4".into(),
                "--time-limit=120m".into(),
                "--queue=big".into(),
                "--bank=p1".into(),
                "--extra 1".into(),
            ],
        ),
        (
            "cobalt",
            "#COBALT",
            vec![
                "-n 3".into(),
                "-t 120".into(),
                "-q big".into(),
                "-A p1".into(),
                "--extra 1".into(),
            ],
        ),
    ];
    for (suffix, prefix, wanted) in expected {
        let name = format!("{base}.{suffix}");
        let script = plan.file(&name);
        let found = directives(&script, prefix);
        for directive in wanted {
            assert!(
                found.contains(&directive.as_str()),
                "{name} lacks {directive}:\n{script}"
            );
        }
        assert_valid_bash(&plan.planned.submit_dir.join(&name));
        let launcher = match suffix {
            "flux" => "flux run --nodes=3 --ntasks=12",
            "cobalt" => "aprun -n 12 -N 4",
            _ => "mpiexec",
        };
        let (timeout, drain) = match suffix {
            "sbatch" => ("", ""),
            _ => (
                " timeout --foreground --preserve-status --signal=USR1 6000",
                " --drain-after 6000",
            ),
        };
        let limit = match suffix {
            "sbatch" | "flux" => "job:115",
            _ => "115 --stop-grace 10",
        };
        let comment =
            "# Starts an executor that has crashed again, and knows what follows when this job ends.";
        let start = format!(
            "set --{timeout}\n{comment}\n[ ! -x /opt/pegasus/bin/pmc ] || set -- /opt/pegasus/bin/pmc supervise \
             --minutes 115{drain} {base}.dag --\nexec \"$@\" "
        );
        let run = format!(
            "cd {submit} || exit 1\nmodule load mpi\nexport A='x y'\n{start}{launcher} \
             /opt/pegasus/bin/pegasus-mpi-cluster --host-memory 32768 --host-cpus {} --monitord-hack \
             --per-task-stdio --stampede --max-wall-time {limit} {base}.dag\n",
            // LSF starts a process on each CPU that is asked for.
            if suffix == "lsf" { 4 } else { 16 }
        );
        assert!(script.ends_with(&run), "{script}\n--- should end with\n{run}");
    }
    let mode = fs::metadata(plan.planned.submit_dir.join(format!("{base}.cobalt")))?
        .permissions()
        .mode();
    assert_eq!(mode & 0o111, 0o111, "Cobalt requires executable scripts");
    Ok(())
}

#[test]
fn every_plan_has_pbs_and_slurm_scripts() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    let plan = case.plan(LINE)?;
    let names: Vec<String> = plan
        .planned
        .scripts
        .iter()
        .map(|script| {
            format!(
                "{} {}",
                script.scheduler,
                script.path.extension().expect("one").display()
            )
        })
        .collect();
    assert_eq!(names, ["torque pbs", "slurm sbatch"]);
    for script in &plan.planned.scripts {
        assert_valid_bash(&script.path);
    }
    // By default, tasks get a twelfth of the wall time to end, if the scheduler can signal the executor.
    let script = fs::read_to_string(&plan.planned.scripts[1].path)?;
    assert!(script.contains("\n#SBATCH --signal=B:USR1@600\n"), "{script}");
    for line in ["--drain 0", "--launcher ./mine", "--walltime 10"] {
        let plan = case.plan(&format!("{LINE} {line}"))?;
        let script = fs::read_to_string(&plan.planned.scripts[1].path)?;
        assert!(!script.contains("--signal"), "{line}: {script}");
    }
    let plan = case.plan(&format!("{LINE} --drain 90"))?;
    assert!(
        plan.warnings()
            .iter()
            .any(|w| w.contains("no task would be started")),
        "{:?}",
        plan.planned.warnings
    );
    Ok(())
}

#[test]
fn output_is_packed_on_demand() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    for (option, expected) in [
        ("", " --per-task-stdio --max-wall-time "),
        (
            "-Dpegasus.batch.output=packed",
            " --per-task-stdio --packed-output --max-wall-time ",
        ),
    ] {
        // The script that equals that of Pegasus, and one that does not.
        for size in ["", "--nodes 3"] {
            let plan = case.plan(&format!("{LINE} --batch torque {size} {option}"))?;
            let text = fs::read_to_string(&plan.planned.scripts[0].path)?;
            assert!(text.contains(expected), "{text}");
            // So is it by hand.
            let by_hand = result_text(&plan.planned, &BTreeMap::new());
            let options = expected.trim_end_matches("--max-wall-time ");
            assert!(by_hand.contains(&format!("{options}/")), "{by_hand}");
        }
    }
    let refused = case.plan(&format!("{LINE} -Dpegasus.batch.output=pack"));
    let error = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(
        error.contains("must be auto, files or packed, not pack"),
        "{error}"
    );
    Ok(())
}

#[test]
fn special_characters_in_directories_are_quoted() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    let plan =
        case.plan("--sites local --output-sites local --relative-dir it's_100%_\"$HOME\" --batch lsf,flux")?;
    for script in &plan.planned.scripts {
        assert_valid_bash(&script.path);
    }
    let sbatch = fs::read_to_string(
        &plan
            .planned
            .scripts
            .iter()
            .find(|s| s.path.extension().is_some_and(|e| e == "sbatch"))
            .expect("a script for Slurm")
            .path,
    )?;
    assert!(sbatch.contains("it's_100%%_\\\"$HOME\\\"/"), "{sbatch}");
    assert!(sbatch.contains("cd '"), "{sbatch}");
    Ok(())
}

#[test]
fn all_cores_of_a_node_are_used_by_default() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    let sbatch = |options: &str| {
        let plan = case.plan(&format!("{LINE} {options}")).expect("a plan");
        let script = plan
            .planned
            .scripts
            .iter()
            .find(|s| s.path.extension().is_some_and(|e| e == "sbatch"));
        let text = fs::read_to_string(&script.expect("a script for Slurm").path).expect("a text");
        (text, plan.planned.batch_size.expect("a size"))
    };
    let plan = case.plan(&format!("{LINE} --batch flux --nodes 2"))?;
    let text = fs::read_to_string(&plan.planned.scripts[0].path)?;
    assert!(
        directives(&text, "#FLUX:").starts_with(&[
            "--job-name=two_words-0",
            "--nodes=2",
            "--nslots=2",
            "--exclusive"
        ]) && text.contains("\nexec \"$@\" flux run --nodes=2 --exclusive --tasks-per-core=1 "),
        "{text}"
    );
    let guesses = |warning: &String| warning.contains("number of its cores is unknown");
    assert_eq!(plan.warnings().into_iter().find(guesses), None);
    let has = |text: &str, directive: &str| directives(text, "#SBATCH").contains(&directive);
    // The jobs request 1 CPU and 2048 MiB, and 4 CPUs and 2.93 GiB.
    let (text, size) = sbatch("--batch slurm");
    assert!(has(&text, "--exclusive") && has(&text, "--mem=0"), "{text}");
    assert!(!text.contains("--ntasks"), "{text}");
    assert_eq!(
        size,
        "a slot for each core of 1 node; a job requests up to 4 CPUs and 2.93 GiB"
    );
    let (text, _) = sbatch("--batch slurm --launcher srun");
    assert!(
        text.contains("exec \"$@\" srun --ntasks-per-node=\"$SLURM_CPUS_ON_NODE\" "),
        "{text}"
    );
    let (text, size) = sbatch("--batch slurm --nodes 2 --node-cpus 16 --node-memory 32G");
    assert!(
        has(&text, "--ntasks-per-node=16") && has(&text, "--mem=32768M"),
        "{text}"
    );
    assert!(!has(&text, "--exclusive"), "{text}");
    let request = "a job requests up to 4 CPUs and 2.93 GiB";
    assert_eq!(
        size,
        format!("31 slots on 2 nodes; {request}, so that 8 run at a time")
    );
    let (_, size) = sbatch("--batch slurm --node-cpus 16 --node-memory 7000");
    assert_eq!(
        size,
        format!("15 slots on 1 node; {request}, so that 2 run at a time")
    );
    let (text, size) = sbatch("--batch slurm --ppn 4");
    assert!(
        has(&text, "--ntasks-per-node=4") && !text.contains("--mem"),
        "{text}"
    );
    assert_eq!(
        size,
        format!("3 slots on 1 node; {request}, so that at most 3 run at a time")
    );
    let (text, _) = sbatch("--batch slurm --ppn 4 --node-memory 0");
    assert!(has(&text, "--mem=0"), "{text}");
    let plan = case.plan(&format!("{LINE} --batch lsf"))?;
    let warnings = plan.warnings();
    assert!(
        warnings
            .iter()
            .any(|text| text.contains("the script for lsf starts 4 processes on each node")),
        "{warnings:?}"
    );
    Ok(())
}

#[test]
fn agents_take_the_place_of_an_mpi_launcher() {
    let start = |scheduler: &str, line: &str, properties: &str| {
        let case = case();
        case.put("pegasus.properties", properties);
        let plan = case
            .plan(&format!("{LINE} --nodes 3 --batch {scheduler} {line}"))
            .expect("planned");
        let script = plan.planned.dag.with_extension(match scheduler {
            "slurm" => "sbatch",
            other => other,
        });
        assert_valid_bash(&script);
        let script = fs::read_to_string(script).expect("readable");
        let start = script.lines().find(|line| line.contains("exec "));
        (start.expect("starts the executor").to_owned(), script)
    };
    let agents = "pegasus.batch.transport = agents\n";
    let (line, script) = start("slurm", "", agents);
    assert!(
        line.contains(
            "/pegasus-mpi-cluster --agents \"${SLURM_JOB_NUM_NODES:-3}\" --launch srun --monitord-hack"
        ),
        "{line}"
    );
    assert!(!line.contains("mpiexec"), "{line}");
    assert!(script.contains("#SBATCH --no-kill\n"), "{script}");
    let (line, _) = start("lsf", "--ppn 4", agents);
    assert!(line.contains(" --launch blaunch --slots 4 "), "{line}");
    let (line, _) = start("slurm", "--launcher ./start", agents);
    assert!(line.contains(" --launch ./start "), "{line}");
    let (line, script) = start("slurm", "", "");
    assert!(line.contains("mpiexec") && !line.contains("--agents"), "{line}");
    assert!(!script.contains("--no-kill"), "{script}");
    let (line, _) = start("slurm", "", "pegasus.batch.transport = none\n");
    assert!(!line.contains("mpiexec") && !line.contains("--agents"), "{line}");
}

#[test]
fn the_default_of_memory_can_be_switched_off() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    let task = |options: &str| {
        let plan = case.plan(&format!("{LINE} {options}")).expect("a plan");
        let dag = fs::read_to_string(&plan.planned.dag).expect("a DAG");
        let line = dag
            .lines()
            .find(|line| line.starts_with("TASK first_A "))
            .map(str::to_owned);
        line.expect("the task")
    };
    assert!(task("").starts_with("TASK first_A -m 2048 -c 1 "));
    assert!(
        task("-Dpegasus.memory=0").starts_with("TASK first_A -c 1 "),
        "{}",
        task("-Dpegasus.memory=0")
    );
    Ok(())
}

#[test]
fn invalid_settings_are_refused_before_anything_is_written() {
    let case = case();
    for (options, words) in [
        ("--node-cpus 3", &["task second_B", "4 CPUs", "a node has 3"][..]),
        (
            "--node-memory 1999M",
            &["task first_A", "2 GiB", "task second_B", "2.93 GiB", "1.952 GiB"],
        ),
        ("--node-cpus 8 --ppn 9", &["9 processes per node", "8 CPUs"]),
        ("--nodes 1 --ppn 1", &["one process", "--launcher none"]),
        ("--batch torque,pbspro", &["torque and pbspro"]),
        ("--launcher A=1", &["launcher", "pegasus.batch.setup"]),
    ] {
        let message = case.fail(&format!("{LINE} {options}"));
        for word in words {
            assert!(message.contains(word), "{options}: {message}");
        }
    }
    for (property, word) in [
        ("pegasus.batch.scheduler = sge", "known are torque"),
        ("pegasus.batch.queue = a\\nb", "one word"),
        ("pegasus.batch.node.memory = much", "number of MiB"),
        ("pegasus.batch.drain = -1", "pegasus.batch.drain"),
        ("pegasus.batch.transport = udp", "agents, mpi or none"),
    ] {
        case.put("pegasus.properties", &format!("{property}\n"));
        let message = case.fail(LINE);
        assert!(message.contains(word), "{property}: {message}");
    }
    assert!(!case.path().join("submit").exists(), "no files remain");
}

#[test]
fn a_template_directory_overrides_parts_of_the_templates() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    case.put(
        "site/run.j2",
        "cd {{ submit_dir | sh }}\nours {{ ranks }} {{ scheduler }} {{ dag }}\n",
    );
    let plan = case.plan(&format!(
        "{LINE} --template-dir site --batch lsf --nodes 2 --ppn 3"
    ))?;
    for script in &plan.planned.scripts {
        let text = fs::read_to_string(&script.path)?;
        assert!(
            text.contains(&format!("\nours 6 {} two", script.scheduler)),
            "{text}"
        );
    }
    case.put("site/run.j2", "{{ nodse }}\n");
    let message = case.fail(&format!("{LINE} --template-dir site --nodes 2"));
    assert!(message.contains("run.j2"), "{message}");
    Ok(())
}

/// Writes stub programs into a directory and returns its path.
fn write_stubs(case: &Case, programs: &[(&str, &str)]) -> std::path::PathBuf {
    let bin = case.path().join("bin");
    fs::create_dir_all(&bin).expect("a directory");
    for (name, script) in programs {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    bin
}

/// Runs pmc-plan with only `bin` on its `PATH`.
fn pmc_plan(case: &Case, bin: &Path, line: &str) -> Output {
    Command::new(testutils::programs::path("pmc-plan"))
        .args(line.split_whitespace())
        .current_dir(case.path())
        .env_clear()
        .env("PATH", bin)
        .env("HOME", case.path())
        .output()
        .expect("the program starts")
}

/// Shell code that writes its command line and working directory to `$HOME/called`.
const RECORD_CALL: &str = "echo \"$(/bin/basename \"$0\") $* in $(/bin/pwd)\" >\"$HOME/called\"\n";

#[test]
fn each_scheduler_receives_its_script() -> Result<(), Box<dyn std::error::Error>> {
    for (option, program, answer, called, id) in [
        (
            "slurm",
            "sbatch",
            "Submitted batch job 71",
            "sbatch two_words-0.sbatch",
            "71",
        ),
        ("torque", "qsub", "72.head", "qsub two_words-0.pbs", "72.head"),
        ("pbspro", "qsub", "73.head", "qsub two_words-0.pbs", "73.head"),
        ("flux", "flux", "f4", "flux batch two_words-0.flux", "f4"),
        (
            "cobalt",
            "qsub",
            "75",
            "qsub --mode script two_words-0.cobalt",
            "75",
        ),
        (
            "lsf",
            "bsub",
            "Job <76> is submitted to queue <q>.",
            "bsub ",
            "76",
        ),
    ] {
        let case = case();
        let reads = if program == "bsub" {
            "/bin/cat >\"$HOME/read\"\n"
        } else {
            ""
        };
        let bin = write_stubs(
            &case,
            &[(program, &format!("{RECORD_CALL}{reads}echo '{answer}'"))],
        );
        let output = pmc_plan(&case, &bin, &format!("{LINE} --submit --batch {option}"));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{option}: {output:?}");
        assert!(
            printed.contains(&format!("{option} job {id}\n")),
            "{option}: {printed}"
        );
        let line = fs::read_to_string(case.path().join("called"))?;
        let (words, dir) = line.split_once(" in ").expect("where it was called");
        assert_eq!(words.trim_end(), called.trim_end(), "{option}");
        assert!(dir.trim_end().ends_with("/run0001"), "{option}: {dir}");
        if program == "bsub" {
            let read = fs::read_to_string(case.path().join("read"))?;
            assert!(read.contains("#BSUB -n 4\n"), "a job requests 4 CPUs: {read}");
        }
        let quiet = pmc_plan(&case, &bin, &format!("{LINE} -q -S --batch {option}"));
        assert_eq!(
            String::from_utf8_lossy(&quiet.stdout),
            format!("{id}\n"),
            "{option}"
        );
        let json = pmc_plan(&case, &bin, &format!("{LINE} --json -S --batch {option}"));
        let object: serde_json::Value = serde_json::from_slice(&json.stdout)?;
        assert_eq!(
            (&object["scheduler"], &object["job_id"]),
            (&option.into(), &id.into())
        );
    }
    Ok(())
}

#[test]
fn the_scheduler_is_detected_from_the_path() -> Result<(), Box<dyn std::error::Error>> {
    let version =
        |text: &str| format!("[ \"$1\" = --version ] && {{ echo '{text}'; exit 0; }}\n{RECORD_CALL}echo 5");
    for (programs, scheduler) in [
        (vec![("qsub", version("pbs_version = 20.0.1"))], "pbspro"),
        (vec![("qsub", version("qsub.py : Cobalt 1.0"))], "cobalt"),
        (vec![("qsub", version("Version: 6.1.2"))], "torque"),
        (
            vec![
                ("qsub", version("Version: 6.1.2")),
                ("sbatch", format!("{RECORD_CALL}echo 5")),
            ],
            "slurm",
        ),
    ] {
        let case = case();
        let programs: Vec<(&str, &str)> = programs.iter().map(|(n, s)| (*n, s.as_str())).collect();
        let bin = write_stubs(&case, &programs);
        let output = pmc_plan(&case, &bin, &format!("{LINE} --submit"));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            printed.contains(&format!("{scheduler} job 5\n")),
            "{scheduler}: {output:?}"
        );
    }
    Ok(())
}

#[test]
fn errors_of_schedulers_are_reported() {
    let case = case();
    let bin = write_stubs(&case, &[]);
    for (options, words) in [
        ("--submit", &["none of sbatch", "--batch"][..]),
        ("--submit --batch lsf", &["bsub is not on PATH"]),
    ] {
        let output = pmc_plan(&case, &bin, &format!("{LINE} {options}"));
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{options}: {output:?}");
        for word in words {
            assert!(printed.contains(word), "{options}: {printed}");
        }
        assert!(!case.path().join("submit").exists(), "no plan was written");
    }
    let bin = write_stubs(
        &case,
        &[(
            "sbatch",
            "echo 'sbatch: error: invalid partition specified: nowhere' >&2\nexit 3",
        )],
    );
    let output = pmc_plan(&case, &bin, &format!("{LINE} --submit --partition nowhere"));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for word in [
        "sbatch refused the job",
        "exit status: 3",
        "invalid partition specified",
        "submit it with: sbatch /",
        "/run0001/two_words-0.sbatch",
    ] {
        assert!(printed.contains(word), "{word}: {printed}");
    }
}
