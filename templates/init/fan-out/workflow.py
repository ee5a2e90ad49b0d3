#!/usr/bin/env python3
"""Writes workflow.yml. Needs Pegasus.api: pip install pegasus-wms.api"""

from Pegasus.api import File, Job, Workflow

# As many as there are texts in replicas.yml.
TEXTS = 3

workflow = Workflow("fan-out")
parts = []
for number in range(1, TEXTS + 1):
    text, counts = File(f"text-{number}.txt"), File(f"counts-{number}.txt")
    parts.append(counts)
    workflow.add_jobs(
        Job("count", _id=f"count-{number}")
        .add_args("-i", text, "-o", counts)
        .add_inputs(text)
        .add_outputs(counts, stage_out=False, register_replica=False)
    )
total = File("total.txt")
workflow.add_jobs(
    Job("merge", _id="merge")
    .add_args("-o", total, *parts)
    .add_inputs(*parts)
    .add_outputs(total, stage_out=True, register_replica=False)
)
workflow.write("workflow.yml")
