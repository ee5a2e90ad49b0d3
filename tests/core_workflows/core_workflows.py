#!/usr/bin/env python3
"""Plans Pegasus' own end-to-end workflows with two planners, compares the DAGs, and runs ours.

    core_workflows.py PEGASUS [--reference CMD] [--bin DIR] [--python CMD] [--only TEXT]

PEGASUS is a checkout of Pegasus. Its tests in `test/core` and the notebooks of its tutorial are copied to a work
directory and started there, with stand-ins for Pegasus' programs on PATH. The stand-in for `pegasus-plan` keeps its
command line and the files of the moment. Each such call is then adapted to one machine: every site becomes `local`,
with a shared file system and the code generator PMC; containers are left out; `pegasus-keg` is a stand-in that
writes its output files. Both planners get the adapted call. The result is a table with a line for each call:

    equal      tasks, edges and command lines are those of the reference
    differs    the first difference
    ours only  the reference refuses (its first message)
    refused    our planner refuses (its first message)

and the result of running our plan with `pmc resume`. Nothing of the checkout is kept except in the work directory.

Needs Python 3.9 with PyYAML, bash, a Python with Pegasus.api (--python) and, for generators in Java, javac with the
classes of Pegasus (--classpath). Workflows whose generators fail here, for example for want of network, are listed
at the end.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import yaml

# A generator or a planner that takes longer is stopped.
GENERATE_SECONDS = 40
PLAN_SECONDS = 120
RUN_SECONDS = 90

# Directories of the machines that the tests were written for.
FOREIGN = ("/scitech", "/nfs", "/lizard", "/home/rynge", "/ccg", "/data/scratch", "/opt/pegasus")

PLAN_STAND_IN = """#!{python}
import json, os, shutil, sys
base = os.environ["CORE_CAPTURE"]
number = len(os.listdir(base))
target = os.path.join(base, "call%02d" % number)
shutil.copytree(os.getcwd(), os.path.join(target, "files"), symlinks=True, ignore_dangling_symlinks=True)
with open(os.path.join(target, "call.json"), "w") as file:
    json.dump({{"arguments": sys.argv[1:], "directory": os.getcwd()}}, file)
sys.exit("captured")
"""

CONFIG_STAND_IN = """#!/bin/sh
for word; do case $word in
--bin) echo '{tools}';;
--python) echo '{pythonpath}';;
--classpath) echo '{classpath}';;
*) echo '{home}';;
esac; done
"""

# Reads its inputs, as the original does, so that a missing one shows, and writes what it is asked to.
KEG_STAND_IN = """#!{python}
import sys
name, mode, inputs, outputs = "keg", "", [], []
for word in sys.argv[1:]:
    if word[:1] == "-" and len(word) > 1:
        mode, word = word[1], word[2:]
        if not word:
            continue
    if mode == "a":
        name = word
    elif mode == "i":
        inputs.append(word)
    elif mode == "o":
        outputs.append(word.split("=")[0])
text = "Applicationname: %s\\n" % name
for path in inputs:
    with open(path, errors="replace") as file:
        text += "--- start %s ----\\n%s--- final %s ----\\n" % (path, file.read(), path)
for path in outputs:
    with open(path, "w") as file:
        file.write(text)
if not outputs:
    print(text, end="")
"""


def main():
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    place = Place(options)
    rows, silent = [], []
    for name, directory, command in cases(options, place):
        if options.only and not name.startswith(tuple(options.only.split(","))):
            continue
        calls, log = capture(name, directory, command, place)
        if not calls:
            silent.append((name, last_line(log)))
        for number, call in enumerate(calls):
            label = name if len(calls) == 1 else f"{name} #{number + 1}"
            try:
                row = (label,) + examine(call, options, place)
            except (OSError, ValueError) as error:
                row = (label, f"not adapted: {error}"[:200], "–")
            rows.append(row)
            print(" | ".join(row), flush=True)
    report(rows, silent, options)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pegasus", type=pathlib.Path, metavar="PEGASUS")
    parser.add_argument("--reference", metavar="CMD", help="the original pegasus-plan; without it, only run ours")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("target/debug"), metavar="DIR",
                        help="our programs (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, metavar="CMD", help="a Python with Pegasus.api")
    parser.add_argument("--classpath", default="", help="classes and jars of Pegasus, for generators in Java")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("target/tmp/core_workflows"), metavar="DIR")
    parser.add_argument("--only", metavar="TEXT", help="only workflows that begin with one of these, separated by commas")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE", help="also write the table as Markdown")
    parser.add_argument("--no-run", action="store_true", help="plan only")
    options = parser.parse_args()
    options.pegasus, options.work = options.pegasus.resolve(), options.work.resolve()
    options.bin = options.bin.resolve()
    return options


class Place:
    """Directories with stand-ins: `tools` for generators, `home` as PEGASUS_HOME of the plans."""

    def __init__(self, options):
        self.work = options.work
        self.tools, self.home = self.work / "tools/bin", self.work / "home"
        for directory in (self.tools, self.home / "bin", self.home / "share/pegasus"):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
        python = shutil.which(options.python) or options.python
        values = {"python": sys.executable, "tools": self.tools, "home": self.home, "classpath": options.classpath,
                  "pythonpath": python_path(python)}
        script(self.tools / "pegasus-plan", PLAN_STAND_IN.format(**values))
        script(self.tools / "pegasus-config", CONFIG_STAND_IN.format(**values))
        script(self.tools / "pegasus-keg", KEG_STAND_IN.format(**values))
        script(self.tools / "pegasus-version", "#!/bin/sh\necho 5.1.3\n")
        for name in ("python", "python3"):
            (self.tools / name).symlink_to(python)
        script(self.tools / "uuidgen", "#!/bin/sh\ncat /proc/sys/kernel/random/uuid\n")
        self.packages = values["pythonpath"]
        for name in ("sleep", "wget", "curl", "git", "module", "ssh", "scp"):
            script(self.tools / name, "#!/bin/sh\nexit 0\n")
        for program in options.bin.iterdir():
            if program.name.startswith("pegasus-") and os.access(program, os.X_OK) and program.is_file():
                (self.home / "bin" / program.name).symlink_to(program)
        (self.home / "bin/pegasus-keg").symlink_to(self.tools / "pegasus-keg")


def python_path(python):
    """The directory of the packages of a Python."""
    code = "import os, Pegasus; print(os.path.dirname(list(Pegasus.__path__)[0]))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)


# ---------------------------------------------------------------- from tests to calls

def cases(options, place):
    """Name, source directory and command of each workflow."""
    core = options.pegasus / "test/core"
    for test in sorted(core.iterdir()) if core.is_dir() else []:
        start = test / "run-bamboo-test"
        if not start.is_file():
            continue
        wants_name = re.search(r"\$\{?1\b", start.read_text(errors="replace"))
        parts = [part.name for part in sorted(test.iterdir()) if part.is_dir()] if wants_name else []
        if parts:
            for part in parts:
                yield f"{test.name} {part}", test, ["bash", "./run-bamboo-test", f"./{part}"]
        else:
            yield test.name, test, ["bash", "./run-bamboo-test"]
    for notebook in sorted(options.pegasus.glob("tutorial/**/*.ipynb")):
        for number, code in enumerate(workflows_of(notebook)):
            source = place.work / "notebooks" / f"{notebook.stem}-{number + 1}"
            shutil.rmtree(source, ignore_errors=True)
            source.mkdir(parents=True)
            (source / "workflow.py").write_text(code)
            yield f"tutorial {notebook.stem} {number + 1}", source, ["python3", "workflow.py"]


def workflows_of(notebook):
    """The Python code of a notebook up to each place where a workflow is planned."""
    cells = json.loads(notebook.read_text())["cells"]
    head = "from Pegasus.api import *\nfrom pathlib import Path\nimport logging, os, sys, time\n"
    code, found = head, []
    for cell in cells:
        text = "".join(cell["source"])
        # Programs that a cell writes into files are not what the cell does.
        bare = re.sub(r'""".*?"""', "", text, flags=re.S)
        if cell["cell_type"] != "code" or re.search(r"IPython|Process\(|pickle|time\.sleep|\.graph\(|f\"big|os\.remove", bare):
            text = text if "Workflow(" in text and cell["cell_type"] == "code" else ""
        text = "\n".join("" if line.lstrip().startswith(("!", "%")) else line for line in text.splitlines())
        if ".plan(" in text:
            text = re.sub(r"\n#+ END WORKFLOW.*", "\n", text, flags=re.S)
            found.append(code + text + "\n")
            if "wf = Workflow" in text:
                code = head
        else:
            code += text + "\n"
    return found


def capture(name, source, command, place):
    """Starts a generator in a copy of its directory and returns the planning calls that it made."""
    base = place.work / "cases" / re.sub(r"[^\w.-]+", "_", name)
    shutil.rmtree(base, ignore_errors=True)
    captured = base / "captured"
    captured.mkdir(parents=True)
    copy = base / "source"
    shutil.copytree(source, copy)
    for path in copy.rglob("*"):
        if path.is_file():
            localize(path, base, place)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PEGASUS")}
    environment.update(PATH=f"{place.tools}:{environment['PATH']}", CORE_CAPTURE=str(captured), USER="tester",
                       HOME=str(base), PEGASUS_BIN_DIR=str(place.tools), PYTHONPATH=place.packages)
    with open(base / "generate.log", "w") as log:
        run(command, copy, environment, log, GENERATE_SECONDS)
    return sorted(captured.iterdir()), (base / "generate.log").read_text(errors="replace")


def localize(path, base, place):
    """Replaces directories of other machines in a text file."""
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return
    new = text.replace("/usr/bin/pegasus-keg", str(place.tools / "pegasus-keg"))
    for prefix in FOREIGN:
        new = re.sub(rf"(?<![\w.-]){re.escape(prefix)}(?=[/\"'\s])", str(base / "foreign" / prefix[1:]), new)
    if new != text:
        mode = path.stat().st_mode
        path.write_text(new)
        path.chmod(mode)


def run(command, directory, environment, log, seconds):
    """Runs a command with a time limit; its whole process group ends with it. Returns the exit code."""
    process = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=subprocess.STDOUT,
                               stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return -1
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:150] if lines else "no output"


# ---------------------------------------------------------------- adapting a call

def adapt(call, place):
    """Makes the files of a call those of one machine. Returns the directory and the command line."""
    record = json.loads((call / "call.json").read_text())
    original, files = record["directory"], call / "files"
    arguments, settings = [], []
    words = iter(record["arguments"])
    for word in words:
        option, _, value = word.partition("=")
        if option in ("--submit", "-S", "--json", "-J") or re.fullmatch(r"-v+|--verbose|-q+|--quiet", word):
            continue
        if option in ("--sites", "--site", "-s", "--staging-site", "-ss", "--dir", "--output-sites", "--output-site", "-o"):
            value = value or next(words, "")
            if option in ("--output-sites", "--output-site", "-o"):
                arguments += ["--output-sites", "local"]
            continue
        if option == "--conf":
            settings.append(value or next(words, ""))
            continue
        if word.startswith("-D") and ("catalog.site" in word or "=" not in word or word.startswith("-Dsite")):
            continue
        arguments.append(word.replace(original, str(files)))
    for path in files.rglob("*"):
        if path.is_file() and path.suffix in (".yml", ".yaml", ".dax", ".xml", ".txt", ".data", ".tc", ".rc"):
            adapt_catalog(path, original, files, place)
    (files / "core.properties").write_text(properties(files, settings, original))
    (files / "core-sites.yml").write_text(yaml.safe_dump(site_catalog(place)))
    # The last of equal settings counts.
    settings = ("pegasus.data.configuration=sharedfs", "pegasus.code.generator=PMC", "pegasus.catalog.site=YAML",
                "pegasus.catalog.site.file=core-sites.yml")
    return files, ["--conf", "core.properties", "--sites", "local"] + arguments + [f"-D{each}" for each in settings]


def properties(files, named, original):
    """The properties of a call without those of other file systems and sites."""
    candidates = [files / name.replace(original, str(files)) for name in named] or [files / "pegasus.properties"]
    text = "".join(path.read_text() for path in candidates if path.is_file())
    if not named and (files / "pegasus.properties").is_file():
        (files / "pegasus.properties").unlink()
    dropped = ("pegasus.catalog.site", "pegasus.data.configuration", "pegasus.code.generator", "pegasus.home",
               "pegasus.catalog.workflow", "pegasus.condor", "pegasus.gridstart.path", "pegasus.transfer.worker.package")
    lines = [line for line in text.splitlines() if not line.strip().lower().startswith(dropped)]
    return "\n".join(lines) + "\n"


def site_catalog(place):
    def directory(kind, name):
        path = str(place.work / "run" / name)
        return {"type": kind, "path": path, "fileServers": [{"operation": "all", "url": f"file://{path}"}]}

    local = {"name": "local", "arch": "x86_64", "os.type": "linux",
             "directories": [directory("sharedScratch", "scratch"), directory("localStorage", "outputs")],
             "profiles": {"env": {"PEGASUS_HOME": str(place.home)}}}
    return {"pegasus": "5.0", "sites": [local]}


def adapt_catalog(path, original, files, place):
    """Makes all sites of a workflow or catalog `local`, and removes containers."""
    try:
        text = path.read_text().replace(original, str(files))
    except UnicodeDecodeError:
        return
    # Copies on servers are copies here.
    text = re.sub(rf"\b(scp|sftp|gsiftp|sshftp|https?)://[^/\s\"]+(?={re.escape(str(place.work))}/)", "file://", text)
    if text.lstrip().startswith("<"):
        text = re.sub(r'(\bsite(?:id)?=")[^"]*"', r'\1local"', text)
        text = re.sub(r'\b(os(?:release|version)|glibc)="[^"]*"', "", text)
        text = re.sub(r'\barch="[^"]*"', 'arch="x86_64"', text)
        text = re.sub(r"<profile[^>]*key=\"(execution\.site|style)\"[^>]*>[^<]*</profile>", "", text)
        path.write_text(text)
        return
    if path.suffix not in (".yml", ".yaml") and not re.search(r"(?m)^(pegasus|transformations|jobs):", text):
        text = re.sub(r'(?m)^(\s*site\s+)"?[\w.-]+"?', r'\1"local"', text)
        text = re.sub(r'(?m)^\s*os(release|version)\s.*$', "", text)
        text = re.sub(r'(?m)^(\s*arch\s+).*$', r'\1"x86_64"', text)
        path.write_text(re.sub(r'\bsite="[^"]*"', 'site="local"', text))
        return
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    if isinstance(data, dict) and not isinstance(data.get("sites"), list):
        path.write_text(yaml.safe_dump(localized(data, place), sort_keys=False, allow_unicode=True))


def localized(data, place):
    data.pop("siteCatalog", None)
    for catalog in (data, data.get("transformationCatalog") or {}):
        catalog.pop("containers", None)
        for program in catalog.get("transformations") or []:
            program.get("profiles", {}).pop("condor", None) if isinstance(program.get("profiles"), dict) else None
            sites = {}
            for site in program.get("sites") or []:
                for key in ("container", "os.release", "os.version", "bypass"):
                    site.pop(key, None)
                site.update({"name": "local", "arch": "x86_64", "os.type": "linux"})
                if "keg" in os.path.basename(site.get("pfn", "")):
                    site["pfn"] = str(place.tools / "pegasus-keg")
                sites.setdefault("local", site)
            program["sites"] = list(sites.values())
    for catalog in (data, data.get("replicaCatalog") or {}):
        for replica in catalog.get("replicas") or []:
            for location in replica.get("pfns") or []:
                location["site"] = "local"
    for job in data.get("jobs") or []:
        profiles = job.get("profiles") or {}
        for key in ("execution.site", "executionSite", "execution_site"):
            for namespace in ("selector", "hints"):
                profiles.get(namespace, {}).pop(key, None)
        profiles.get("pegasus", {}).pop("style", None)
        for use in job.get("uses") or []:
            use.pop("bypass", None)
    return data


# ---------------------------------------------------------------- planning, comparing, running

def examine(call, options, place):
    """Result of planning, and of the run, of one call."""
    files, line = adapt(call, place)
    shutil.rmtree(place.work / "run", ignore_errors=True)
    ours, our_log = plan([str(options.bin / "pmc-plan")], "ours", files, line, place)
    if options.reference:
        theirs, their_log = plan(shlex.split(options.reference), "theirs", files, line, place)
        if ours is None and theirs is None:
            result = "both refuse: " + message(our_log)
        elif ours is None:
            result = "refused: " + message(our_log)
        elif theirs is None:
            result = "ours only: " + message(their_log)
        else:
            difference = compare(theirs, ours)
            result = f"differs: {difference}" if difference else "equal"
    else:
        result = "planned" if ours else "refused: " + message(our_log)
    if ours is None or options.no_run:
        return result, "–"
    return result, run_plan(ours, options, place)


def plan(planner, kind, files, line, place):
    """Plans; returns the directory of the plan, or None, and what was printed."""
    target = files.parent / kind
    shutil.rmtree(target, ignore_errors=True)
    # Both planners see the same paths.
    directory = place.work / "run" / "plan"
    shutil.rmtree(directory, ignore_errors=True)
    log = files.parent / f"{kind}.log"
    environment = dict(os.environ, PEGASUS_HOME=str(place.home), USER="tester", HOME=str(place.work))
    with open(log, "w") as output:
        code = run(planner + ["--dir", str(directory)] + line, files, environment, output, PLAN_SECONDS)
    text = log.read_text(errors="replace")
    dags = sorted(directory.rglob("*.dag"))
    if code != 0 or not dags:
        return None, text
    shutil.copytree(dags[0].parent, target, symlinks=True)
    (target / "origin").write_text(str(dags[0].parent))
    return target, text


def message(log):
    lines = [line.strip() for line in log.splitlines() if line.strip() and "condor_config_val" not in line]
    errors = [line for line in lines if re.match(r"\[1\]|pmc-plan: (?!warning)", line)] or lines[-1:] or ["no message"]
    return re.sub(r"^(\[1\] (\w+\.)*\w+: |pmc-plan: )", "", errors[0])[:200].replace("|", "/")


def compare(theirs, ours):
    """The first difference between two plans; None if there is none."""
    first, second = read_plan(theirs), read_plan(ours)
    for what in ("tasks", "edges"):
        missing, more = sorted(first[what] - second[what]), sorted(second[what] - first[what])
        if missing or more:
            return f"{what}: −{len(missing)} +{len(more)}, e.g. {', '.join(map(str, (missing[:1] + more[:1])))}"
    for kind in ("commands", "transfers"):
        for task in sorted(first[kind]):
            old, new = first[kind][task], second[kind].get(task)
            if old != new:
                return f"{kind} of {task}: {word_difference(old, new)}"
    return None


def word_difference(old, new):
    if isinstance(old, list) and isinstance(new, list):
        for number, (a, b) in enumerate(zip(old + ["∅"], new + ["∅"])):
            if a != b:
                before = old[number - 1] if number else ""
                return f"{before} [{a}] → [{b}]"[:160].replace("|", "/")
    return "other files" if new is not None else "none"


def read_plan(directory):
    """Tasks, edges, words of the commands, and file lists of a plan, without paths and times of one planning."""
    origin = (directory / "origin").read_text()
    dag = next(directory.glob("*.dag"))
    tasks, edges, commands, transfers = set(), set(), {}, {}

    def normal(word):
        word = word.replace(origin, "@SUBMIT@")
        word = re.sub(r"/(run\d{4}|run-[0-9a-f-]{36}|\d{8}T\d{6}[+-]\d{4})(?=[/\"\s]|$)", "/@RUN@", word)
        word = re.sub(r"\S*/(pegasus-[a-z-]+)$", r"\1", word)
        word = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:?\d\d", "@TIME@", word)
        word = re.sub(r"pegasus\.\d+\.properties", "@PROPERTIES@", word)
        return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "@UUID@", word)

    for line in dag.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "EDGE":
            parent, child = rest.split()
            # Ours registers before the work directory is removed, as docs/compatibility.md says.
            if not (parent.startswith("register_") and child.startswith("cleanup_")):
                edges.add((parent, child))
        elif kind == "TASK":
            words = [normal(word) for word in shlex.split(rest)]
            tasks.add(words[0])
            if words[0].startswith("register_") and "-w" in words:
                # Registration needs no file of the work directory.
                del words[words.index("-w"):words.index("-w") + 2]
            # The original lists metadata files in the order of a hash table.
            commands[words[0]] = [",".join(sorted(word.split(","))) if ".meta," in word else word for word in words[1:]]
    for path in directory.rglob("*.in"):
        if path.stem in tasks:
            transfers[path.stem] = file_list(normal(path.read_text()))
    return {"tasks": tasks, "edges": edges, "commands": commands, "transfers": transfers}


def file_list(text):
    try:
        entries = json.loads(text)
    except ValueError:
        return sorted(text.split("\n"))
    def urls(entry, key):
        return [url.get("url") for url in entry.get(key, [])]
    listed = [[entry.get("lfn") or "", urls(entry, "src_urls"), urls(entry, "dest_urls"), str(entry.get("target"))]
              for entry in entries]
    return sorted(json.dumps(entry) for entry in listed)


def run_plan(ours, options, place):
    """Runs a plan in the place where it was made, and says how it ended."""
    origin = pathlib.Path((ours / "origin").read_text())
    if not origin.is_dir():
        shutil.copytree(ours, origin, symlinks=True)
    else:
        shutil.rmtree(origin)
        shutil.copytree(ours, origin, symlinks=True)
    log = ours.parent / "run.log"
    environment = dict(os.environ, PEGASUS_HOME=str(place.home), USER="tester", HOME=str(place.work))
    with open(log, "w") as output:
        command = [str(options.bin / "pmc"), "resume", "--workers", "4", str(origin)]
        code = run(command, ours.parent, environment, output, RUN_SECONDS)
    text = log.read_text(errors="replace")
    if code == 0:
        return "succeeds"
    if code == -1:
        return f"stopped after {RUN_SECONDS} s"
    failed = re.findall(r"(?m)^.*(?:failed|error|No such|not found).*$", text)
    return ("fails: " + (failed[0].strip() if failed else last_line(text)))[:170].replace("|", "/")


def report(rows, silent, options):
    kinds = {}
    for _, result, _ in rows:
        kind = result.partition(":")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    runs = sum(outcome == "succeeds" for _, _, outcome in rows)
    counts = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    summary = f"{len(rows)} planning calls: {counts}; {runs} runs succeed."
    text = [summary, "", "| workflow | plan | run |", "|---|---|---|"]
    text += [f"| {' | '.join(row)} |" for row in rows]
    if silent:
        text += ["", "Workflows that were not generated:", ""]
        text += [f"* {name}: {reason}" for name, reason in silent]
    if options.table:
        options.table.write_text("\n".join(text) + "\n")
    print("\n" + summary)
    for name, reason in silent:
        print(f"not generated: {name}: {reason}")


if __name__ == "__main__":
    main()
