#!/usr/bin/env python3
"""Writes workflow.yml. Needs Pegasus.api: pip install pegasus-wms.api"""

from Pegasus.api import File, Job, Workflow

workflow = Workflow("single")
counts = File("counts.txt")
workflow.add_jobs(
    Job("count", _id="count")
    .add_args("-i", "text-1.txt", "-o", counts)
    .add_inputs(File("text-1.txt"))
    .add_outputs(counts, stage_out=True, register_replica=False)
)
workflow.write("workflow.yml")
