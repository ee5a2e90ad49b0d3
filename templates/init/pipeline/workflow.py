#!/usr/bin/env python3
"""Writes workflow.yml. Needs Pegasus.api: pip install pegasus-wms.api"""

from Pegasus.api import File, Job, Workflow

text, report = File("f.a"), File("f.d")
words = [File("f.b1"), File("f.b2")]
counts = [File("f.c1"), File("f.c2")]

workflow = Workflow("diamond")
workflow.add_jobs(
    Job("preprocess", _id="ID0000001")
    .add_args("-i", text, "-o", words[0], "-o", words[1])
    .add_inputs(text)
    .add_outputs(*words, stage_out=False, register_replica=False)
)
for number, (part, count) in enumerate(zip(words, counts), start=2):
    workflow.add_jobs(
        Job("findrange", _id=f"ID000000{number}")
        .add_args("-i", part, "-o", count)
        .add_inputs(part)
        .add_outputs(count, stage_out=False, register_replica=False)
    )
workflow.add_jobs(
    Job("analyze", _id="ID0000004")
    .add_args("-i", counts[0], "-i", counts[1], "-o", report)
    .add_inputs(*counts)
    .add_outputs(report, stage_out=True, register_replica=False)
)
workflow.write("workflow.yml")
