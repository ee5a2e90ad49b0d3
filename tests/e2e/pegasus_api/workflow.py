"""Plans and runs a workflow with Pegasus.api, which calls the programs of Pegasus that are on PATH.

Arguments: success, again or remove. Working directory: an empty one.
"""

import json
import logging
import os
import sys
from pathlib import Path

from Pegasus.api import File, Job, ReplicaCatalog, Transformation, TransformationCatalog, Workflow

logging.basicConfig(level=logging.INFO)
here = Path.cwd()


def program(name, script):
    path = here / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return Transformation(name, site="local", pfn=str(path), is_stageable=False)


def workflow(first_script):
    names = [File(name) for name in ("in.txt", "mid.txt", "out.txt")]
    (here / "in.txt").write_text("text\n")
    copy = 'cp "$1" "$2"\n'
    first, second = program("first", first_script + copy), program("second", copy)
    replicas = ReplicaCatalog().add_replica("local", names[0], str(here / "in.txt"))
    wf = Workflow("api")
    wf.add_transformation_catalog(TransformationCatalog().add_transformations(first, second))
    wf.add_replica_catalog(replicas)
    for job, source, target in ((first, *names[:2]), (second, *names[1:])):
        wf.add_jobs(
            Job(job)
            .add_args(source, target)
            .add_inputs(source)
            .add_outputs(target, stage_out=target is names[2], register_replica=False)
        )
    return wf


PLAN = dict(sites=["local"], dir=str(here / "work"), output_dir=str(here / "output"))


def success():
    wf = workflow("")
    wf.plan(**PLAN).run().wait(delay=1).analyze().statistics()
    wf.status(long=True)
    assert (here / "output/out.txt").read_text() == "text\n"
    assert wf.run_output["submit_dir"] == str(wf.braindump.submit_dir)
    return wf


def again():
    wf = workflow("exit 3\n")
    wf.plan(**PLAN).run().wait(delay=1)
    assert state(wf) == "Failure", wf.get_status()
    # The end of the first run must not be taken for that of the second.
    program("first", 'sleep 2\ncp "$1" "$2"\n')
    wf.run().wait(delay=1)
    assert (here / "output/out.txt").read_text() == "text\n"
    return wf


def remove():
    wf = workflow("sleep 600\n")
    wf.plan(submit=True, **PLAN)
    assert state(wf) == "Running", wf.get_status()
    wf.remove()
    return wf


def state(wf):
    return wf.get_status()["dags"]["root"]["state"]


done = {"success": success, "again": again, "remove": remove}[sys.argv[1]]()
with open(os.environ["RESULT"], "w") as result:
    json.dump(done.get_status()["dags"]["root"], result)
