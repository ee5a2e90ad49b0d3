#!/usr/bin/env python3
"""Plans Pegasus' own end-to-end workflows with two planners, compares the DAGs, and runs ours.

    core_workflows.py PEGASUS [--reference CMD] [--bin DIR] [--python CMD] [--only TEXT]

PEGASUS is a checkout of Pegasus. Its tests in `test/core` and the notebooks of its tutorial are copied to a work
directory and started there, with stand-ins for Pegasus' programs on PATH. The stand-in for `pegasus-plan` keeps its
command line and the files of the moment. Each such call is then adapted to one machine, as a site would do it:

* the code generator is PMC, and each execution site is `local`; what sites say about clusters stays;
* the data configuration stays: without one it is condorio, as in Pegasus. The original refuses that with PMC. It gets
  what ours makes of it: nonsharedfs, with the work directory of `local` as staging site;
* another staging site is the site `hub`, a WebDAV server of this program;
* containers stay. Their images are files of this machine. Stand-ins for docker and singularity run the programs in
  a mount namespace that has the directories of this machine and those of the container;
* `pegasus-keg` is a stand-in that writes its output files.

Both planners get the adapted call. With --keep-sites, calls are not adapted: sites, staging sites, selectors and data
configuration stay as the workflow has them (condorpool, condorio, …). Only ours plans them, since the original refuses
condorio with PMC. Images of containers and `pegasus-keg` are stand-ins there, too. With --condor, calls keep their sites,
both planners make plans for HTCondor, jobs, edges and file lists of auxiliary jobs are compared, and nothing runs.

The result is a table with a line for each call:

    equal      tasks, edges, command lines and file lists are those of the reference; job scripts of Pegasus are
               compared with our descriptions of the same jobs
    differs    the first difference
    ours only  the reference refuses (its first message)
    refused    our planner refuses (its first message)

and the result of running our plan with `pmc resume`. Nothing of the checkout is kept except in the work directory.

Needs Python 3.9 with PyYAML, bash, a Python with Pegasus.api (--python) and, for generators in Java, javac with the
classes of Pegasus (--classpath). Workflows whose generators fail here, for example for want of network, are listed
at the end.
"""

import argparse
import hashlib
import http.server
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import urllib.parse

import yaml

# A generator or a planner that takes longer is stopped.
GENERATE_SECONDS = 40
PLAN_SECONDS = 120
RUN_SECONDS = 90

# Directories of the machines that the tests were written for.
FOREIGN = ("/scitech", "/nfs", "/lizard", "/home/rynge", "/ccg", "/data/scratch", "/opt/pegasus")

# Endings of workflows and catalogs.
CATALOGS = (".yml", ".yaml", ".dax", ".xml", ".txt", ".data", ".tc", ".rc")

PLAN_STAND_IN = """#!{python}
import json, os, shutil, sys
base = os.environ["CORE_CAPTURE"]
number = len(os.listdir(base))
target = os.path.join(base, "call%02d" % number)
shutil.copytree(os.getcwd(), os.path.join(target, "files"), symlinks=True, ignore_dangling_symlinks=True)
with open(os.path.join(target, "call.json"), "w") as file:
    json.dump({{"arguments": sys.argv[1:], "directory": os.getcwd(), "environment": dict(os.environ)}}, file)
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
import os, sys
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
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
if not outputs:
    print(text, end="")
"""

# Runs a command in a directory tree that has all directories of this machine and those that are mounted.
CONTAINER_STAND_IN = r"""#!{python}
import os, sys
words = sys.argv[1:]
loaded = "{images}/loaded"
if words[0] == "load":
    open(loaded, "w").close()
    print("Loaded image: localhost/stand-in:1")
    sys.exit()
if words[0] == "image":
    sys.exit(not os.path.exists(loaded))
if words[0] in ("rm", "pull"):
    sys.exit()
# Options with a value, apart from those of mounts.
VALUES = ("--user", "-w", "--entrypoint", "--name", "--gpus", "--device")
mounts, directory, first, image, at = [], "/", [], None, 1
while image is None:
    word = words[at]
    if word in ("-v", "--bind", "-B"):
        mounts.append(words[at + 1].split(":"))
        at += 1
    elif word in VALUES:
        directory = words[at + 1] if word == "-w" else directory
        first = words[at + 1:at + 2] if word == "--entrypoint" else first
        at += 1
    elif not word.startswith("-"):
        image = word
    at += 1
quote = lambda word: "'" + word.replace("'", "'\\''") + "'"
script = "set -e; root=$(mktemp -d); mount -t tmpfs none $root; cd /; for d in *; do "
script += "if [ -L $d ]; then cp -P $d $root; elif [ -d $d ]; then mkdir $root/$d; mount --rbind /$d $root/$d; fi; done; "
for here, there in (mount[:2] for mount in mounts if len(mount) > 1):
    if os.path.isdir(here) and here != there:
        script += "mkdir -p $root%s; mount --bind %s $root%s; " % (quote(there), quote(here), quote(there))
inner = "cd " + quote(directory) + " && exec " + " ".join(map(quote, first + words[at:]))
script += "exec /usr/sbin/chroot $root /bin/sh -c " + quote(inner)
environment = {{"PATH": "/usr/local/bin:/usr/bin:/bin"}} if words[0] == "run" else dict(os.environ)
# Another root directory stays behind in the temporary directory of this machine, empty.
os.execvpe("unshare", ["unshare", "--map-root-user", "--mount", "/bin/sh", "-c", script], environment)
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
    parser.add_argument("--keep-sites", action="store_true", help="plan with the sites that workflows have; without --reference")
    parser.add_argument("--condor", action="store_true", help="plan for HTCondor, with the sites that workflows have")
    parser.add_argument("--no-run", action="store_true", help="plan only")
    options = parser.parse_args()
    options.pegasus, options.work = options.pegasus.resolve(), options.work.resolve()
    options.bin = options.bin.resolve()
    if options.keep_sites and options.reference:
        parser.error("--keep-sites cannot be used with --reference")
    if options.condor:
        options.keep_sites = options.no_run = True
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
            if program.name.startswith(("pegasus-", "pmc-plan")) and os.access(program, os.X_OK) and program.is_file():
                (self.home / "bin" / program.name).symlink_to(program)
        for name in ("pegasus-keg",):
            (self.home / "bin" / name).symlink_to(self.tools / name)
        self.engines, self.images = self.work / "engines", self.work / "images"
        for directory in (self.engines, self.images):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
        Dav.root = self.work / "run"
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dav)
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("docker", "singularity"):
            script(self.engines / name, CONTAINER_STAND_IN.format(images=self.images, **values))


class Dav(http.server.BaseHTTPRequestHandler):
    """What transfers need of a WebDAV server."""

    protocol_version = "HTTP/1.1"
    root = None

    def file(self):
        return pathlib.Path(os.path.normpath(f"{self.root}/{urllib.parse.unquote(self.path.partition('?')[0])}"))

    def answer(self, code, content=b""):
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self):
        file = self.file()
        self.answer(*((200, file.read_bytes()) if file.is_file() else (404,)))

    do_HEAD = do_GET

    def do_PUT(self):
        content = b""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.file().parent.mkdir(parents=True, exist_ok=True)
        self.file().write_bytes(content)
        self.answer(201)

    def do_MKCOL(self):
        there = self.file().exists()
        self.file().mkdir(parents=True, exist_ok=True)
        self.answer(405 if there else 201)

    def do_DELETE(self):
        file = self.file()
        code = 204 if file.exists() else 404
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        self.answer(code)

    def log_message(self, *_):
        pass


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
        # Parts may have parts.
        inner = [str(path.parent.relative_to(test)) for path in sorted(test.glob("*/*/test.config"))]
        parts = [part for part in parts if not any(path.startswith(part + "/") for path in inner)] + inner
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
    """Makes the files of a call those of one machine. Returns the directory and the command lines for ours and for
    the reference."""
    record = json.loads((call / "call.json").read_text())
    original, files = record["directory"], call / "files"
    arguments, settings, execution, staging = [], [], [], []
    words = iter(record["arguments"])
    for word in words:
        option, _, value = word.partition("=")
        if option in ("--submit", "-S", "--json", "-J") or re.fullmatch(r"-v+|--verbose|-q+|--quiet", word):
            continue
        if option in ("--sites", "--site", "-s", "--staging-site", "-ss", "--dir", "--output-sites", "--output-site", "-o"):
            value = value or next(words, "")
            if option in ("--output-sites", "--output-site", "-o"):
                arguments += ["--output-sites", "local"]
            elif option in ("--sites", "--site", "-s"):
                execution += value.split(",")
            elif option != "--dir":
                staging += [part.rpartition("=")[2] for part in value.split(",")]
            continue
        if option == "--conf":
            settings.append(value or next(words, ""))
            continue
        if word.startswith("-D") and ("catalog.site" in word or "=" not in word or word.startswith("-Dsite")):
            continue
        arguments.append(word.replace(original, str(files)))
    for path in files.rglob("*"):
        if path.is_file() and path.suffix in CATALOGS:
            adapt_catalog(path, original, files, place)
    text = properties(files, settings, original)
    (files / "core.properties").write_text(text)
    sites = yaml.safe_dump(site_catalog(place, clusters_of(files, execution)))
    (files / "core-sites.yml").write_text(sites)
    if (files / "sites.yml").is_file():
        # Sub-workflows with properties of their own read it.
        (files / "sites.yml").write_text(sites)
    mode = re.search(r"(?m)^\s*pegasus\.data\.configuration[\s=:]+(\w+)", text)
    mode = mode.group(1) if mode else "condorio"
    # The last of equal settings counts.
    settings = ["pegasus.code.generator=PMC", "pegasus.catalog.site=YAML", "pegasus.catalog.site.file=core-sites.yml"]
    sites = ["--sites", "local"]
    if mode == "nonsharedfs" and any(site not in execution for site in staging):
        sites += ["--staging-site", "local=hub"]
    line = ["--conf", "core.properties"] + sites + arguments
    ours = settings + [f"pegasus.data.configuration={mode}"]
    theirs = ours if mode != "condorio" else settings + ["pegasus.data.configuration=nonsharedfs",
                                                         "pegasus.dir.staging.mapper=Flat"]
    return files, line + [f"-D{each}" for each in ours], line + [f"-D{each}" for each in theirs]


def kept(call, place):
    """Makes the directories of a call those of one machine, and keeps its sites. Returns the directory, the command
    line and the variables."""
    record = json.loads((call / "call.json").read_text())
    original, files = record["directory"], call / "files"
    line, words = [], iter(record["arguments"])
    for word in words:
        option, _, value = word.partition("=")
        if option in ("--submit", "-S", "--json", "-J") or re.fullmatch(r"-v+|--verbose|-q+|--quiet", word):
            continue
        if option == "--dir":
            value or next(words, "")
            continue
        line.append(word.replace(original, str(files)))
    for path in files.rglob("*"):
        if path.is_file() and path.suffix in CATALOGS + (".properties", ".conf", ""):
            keep_catalog(path, original, files, place)
    variables = {name: value.replace(original, str(files)) for name, value in record["environment"].items()}
    return files, line, variables


def keep_catalog(path, original, files, place):
    """Replaces directories, programs and images in a workflow, catalog or file of properties."""
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return
    new = text.replace(original, str(files))
    new = re.sub(r"(?m)(\bpfn\b[\s:=]+[\"']?)(?:file://)?[^\s\"']*/pegasus-keg(?=[\"'\s])", rf"\1{place.tools}/pegasus-keg", new)
    if re.search(r"(?m)^\s*-?\s*image:", new) and path.suffix in (".yml", ".yaml"):
        data = yaml.safe_load(new)
        for catalog in (data, data.get("transformationCatalog") or {}):
            for container in catalog.get("containers") or []:
                file = image(place, container["name"], container["type"])
                container.update({"image": f"file://{file}", "image.site": "local"})
                container.pop("checksum", None)
        new = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    if new != text:
        path.write_text(new)


def clusters_of(files, execution):
    """What the first execution site says about clusters."""
    for path in sorted(files.glob("*.y*ml")) + sorted(files.glob("conf/*.y*ml")):
        try:
            data = yaml.safe_load(path.read_text())
        except (yaml.YAMLError, UnicodeDecodeError):
            continue
        for site in (isinstance(data, dict) and data.get("sites")) or []:
            if site.get("name") in execution[:1]:
                profiles = (site.get("profiles") or {}).get("pegasus") or {}
                return {key: value for key, value in profiles.items() if key.startswith("clusters.")}
    return {}


def properties(files, named, original):
    """The properties of a call without those of other sites and of HTCondor."""
    candidates = [files / name.replace(original, str(files)) for name in named] or [files / "pegasus.properties"]
    text = "".join(path.read_text() for path in candidates if path.is_file())
    if not named and (files / "pegasus.properties").is_file():
        (files / "pegasus.properties").unlink()
    dropped = ("pegasus.catalog.site", "pegasus.code.generator", "pegasus.home",
               "pegasus.catalog.workflow", "pegasus.condor", "pegasus.gridstart.path", "pegasus.transfer.worker.package")
    lines = [line for line in text.splitlines() if not line.strip().lower().startswith(dropped)]
    return "\n".join(lines) + "\n"


def site_catalog(place, clusters):
    def directory(kind, name):
        path = str(place.work / "run" / name)
        return {"type": kind, "path": path, "fileServers": [{"operation": "all", "url": f"file://{path}"}]}

    local = {"name": "local", "arch": "x86_64", "os.type": "linux",
             "directories": [directory("sharedScratch", "scratch"), directory("localStorage", "outputs")],
             "profiles": {"env": {"PEGASUS_HOME": str(place.home)}, "pegasus": clusters}}
    server = {"operation": "all", "url": f"webdav://127.0.0.1:{place.port}/hub"}
    hub = {"name": "hub", "arch": "x86_64", "os.type": "linux", "profiles": {"env": {"PEGASUS_HOME": str(place.home)}},
           "directories": [{"type": "sharedScratch", "path": "/hub", "fileServers": [server]}]}
    return {"pegasus": "5.0", "sites": [local, hub]}


def adapt_catalog(path, original, files, place):
    """Makes all sites of a workflow or catalog `local`, and images of containers files of this machine."""
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
        text = re.sub(r'(?m)^(\s*image\s+)"[^"]*"', rf'\1"file://{image(place, "image", "singularity")}"', text)
        text = re.sub(r'(?m)^(\s*image_site\s+).*$', r'\1"local"', text)
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
        for container in catalog.get("containers") or []:
            file = image(place, container["name"], container["type"])
            container.update({"image": f"file://{file}", "image.site": "local"})
            if "checksum" in container:
                container["checksum"] = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for program in catalog.get("transformations") or []:
            program.get("profiles", {}).pop("condor", None) if isinstance(program.get("profiles"), dict) else None
            sites = {}
            for site in program.get("sites") or []:
                for key in ("os.release", "os.version"):
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
        for namespace in ("selector", "hints"):
            if "keg" in os.path.basename(str(profiles.get(namespace, {}).get("pfn", ""))):
                profiles[namespace]["pfn"] = str(place.tools / "pegasus-keg")
        profiles.get("pegasus", {}).pop("style", None)
    return data


def image(place, name, kind):
    """The file of an image."""
    file = place.images / (name + (".tar" if kind == "docker" else ".sif"))
    if not file.exists():
        file.write_text(f"stand-in for the image {name}\n")
    return file


# ---------------------------------------------------------------- planning, comparing, running

def examine(call, options, place):
    """Result of planning, and of the run, of one call."""
    if options.keep_sites:
        files, line, variables = kept(call, place)
        line += ["-Dpegasus.code.generator=" + ("Condor" if options.condor else "PMC")]
        their_line = line
    else:
        (files, line, their_line), variables = adapt(call, place), os.environ
    shutil.rmtree(place.work / "run", ignore_errors=True)
    ours, our_log = plan([str(options.bin / "pmc-plan")], "ours", files, line, place, variables)
    if options.reference:
        theirs, their_log = plan(shlex.split(options.reference), "theirs", files, their_line, place, variables)
        if ours is None and theirs is None:
            result = "both refuse: " + message(our_log)
        elif ours is None:
            result = "refused: " + message(our_log)
        elif theirs is None:
            result = "ours only: " + message(their_log)
        else:
            difference = compare(theirs, ours, read_condor if options.condor else read_plan)
            result = f"differs: {difference}" if difference else "equal"
    else:
        result = "planned" if ours else "refused: " + message(our_log)
    if ours is None or options.no_run:
        return result, "–"
    return result, run_plan(ours, options, place)


def plan(planner, kind, files, line, place, variables):
    """Plans; returns the directory of the plan, or None, and what was printed."""
    target = files.parent / kind
    shutil.rmtree(target, ignore_errors=True)
    # Both planners see the same paths.
    directory = place.work / "run" / "plan"
    shutil.rmtree(directory, ignore_errors=True)
    log = files.parent / f"{kind}.log"
    environment = dict(variables, PEGASUS_HOME=str(place.home), USER="tester", HOME=str(place.work))
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
    # The original ends with the cause.
    causes = [line for line in lines if re.match(r"\[\d\]", line)]
    return re.sub(r"^(\[\d\] (\w+\.)*\w+: |pmc-plan: )", "", (causes or errors)[-1 if causes else 0])[:200].replace("|", "/")


def compare(theirs, ours, read):
    """The first difference between two plans; None if there is none."""
    first, second = read(theirs), read(ours)
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
            without = ["--checksums-to", "--checksums-from"]
            if words[0].startswith(("register_", "cleanup_", "clean_up_", "stage_in_", "stage_out_")):
                # Ours work in the directory only if they need it.
                without.append("-w")
            if "-t" in words[:9]:
                # Attempts of the profile `dagman::retry`, which the original's tasks do not have.
                without.append("-t")
            for option in without:
                if option in words:
                    del words[words.index(option):words.index(option) + 2]
            words = [list_name(word) for word in words]
            # The original lists metadata files in the order of a hash table.
            commands[words[0]] = [",".join(sorted(word.split(","))) if ".meta," in word else word for word in words[1:]]
    for path in directory.rglob("*.in"):
        if path.stem in tasks:
            transfers[path.stem] = file_list(normal(path.read_text()))
    # A job without a shared file system: our description, or the script of the original.
    for path in list(directory.rglob("*.json")) + list(directory.rglob("*.sh")):
        if path.stem not in tasks or any(word.endswith((".dag", "pmc-plan")) for word in commands[path.stem]):
            continue
        read = described if path.suffix == ".json" else scripted
        listed, command = read(normal(path.read_text()))
        transfers[path.stem] = file_list(json.dumps(listed))
        options = [word for word in commands[path.stem] if not word.startswith("@SUBMIT@") and word != "pegasus-lite"]
        commands[path.stem] = options + [word for word in command if word]
    return {"tasks": tasks, "edges": edges, "commands": commands, "transfers": transfers}


def read_condor(directory):
    """Jobs, edges, and file lists of auxiliary jobs of a plan for HTCondor."""
    origin = (directory / "origin").read_text()
    tasks, edges, transfers = set(), set(), {}
    for line in next(directory.glob("*.dag")).read_text().splitlines():
        words = line.split()
        if words[:1] == ["JOB"]:
            tasks.add(words[1])
        elif words[:2] == ["SUBDAG", "EXTERNAL"]:
            tasks.add(words[2])
        elif words[:1] == ["PARENT"]:
            edges.add((words[1], words[3]))
    for path in directory.rglob("*.in"):
        if path.stem in tasks and path.stem.startswith(("stage_", "clean", "create_dir", "register")):
            text = re.sub(r"/(run\d{4}|run-[0-9a-f-]{36}|\d{8}T\d{6}[+-]\d{4})(?=[/\"\s]|$)", "/@RUN@", path.read_text())
            transfers[path.stem] = file_list(text.replace(origin, "@SUBMIT@"))
    return {"tasks": tasks, "edges": edges, "commands": {}, "transfers": transfers}


def described(text):
    """Transfers and command of a description of ours."""
    job = json.loads(text)
    container = job.get("container", {})
    lists = [container.get("fetch"), job.get("stage_in"), job.get("checkpoint_in"), job.get("checkpoint_out"),
             job.get("stage_out")]
    command = ["pegasus-kickstart"] + job["run"]["kickstart"] if "kickstart" in job["run"] else job["run"]["program"]
    return [entry for each in lists if each for entry in each], [list_name(word) for word in command if word != "-M"]


def scripted(text):
    """Transfers and command of a job script of the original."""
    entries = []
    for listed in re.findall(r"(?ms)^\s*pegasus-transfer [^\n]*<< '?(?:eof|EOF)'?\n(.*?)^(?:eof|EOF)$", text):
        entries += json.loads(listed)
    line = re.search(r"(?m)^.*\bpegasus-kickstart  -n .*$", text)
    words = shlex.split(line.group()) if line else []
    return entries, [list_name(word) for word in words]


def list_name(word):
    """A list of files without its directory, which the original's tasks do not have."""
    return "@" + word.rsplit("/", 1)[1] if re.fullmatch(r"@.*\.lof", word) else word


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
    environment = dict(os.environ, PEGASUS_HOME=str(place.home), USER="tester", HOME=str(place.work),
                       PATH=f"{place.engines}:{os.environ['PATH']}", PEGASUS_WN_TMP_MIN_SPACE="1",
                       # Jobs that generate workflows import Pegasus.api.
                       PYTHONPATH=place.packages)
    with open(log, "w") as output:
        command = [str(options.bin / "pmc"), "resume", "--here", "--workers", "4", str(origin)]
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
