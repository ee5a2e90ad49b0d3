#!/usr/bin/env python3
"""Writes a workflow of two-step chains, its catalogs, properties and input files.

Each chain is in_N.txt -> step -> mid_N.txt -> step -> out_N.txt; a step copies its input.
Pegasus.api writes the workflow as YAML, or this program writes it as DAX 3.6 XML; both describe the
same jobs. By default there are 40 tasks, and

    pmc-plan --conf DIR/pegasus.properties --sites local --output-sites local --cleanup leaf \\
        --dir DIR/submit DIR/workflow.yml

plans 46 jobs: one creates the work directory, two stage in, forty copy, two stage out, one cleans up.

Files in DIR:

    workflow.yml or workflow.xml          the workflow
    sites.yml transformations.yml replicas.yml pegasus.properties
    inputs/in_N.txt                       inputs of the chains
    scratch/  outputs/                    empty; the site's directories
    broken                                only with --break

Needs Python 3.6 or newer and `pip install pegasus-wms==5.1.3`.
"""

import argparse
import pathlib
import sys
from xml.sax.saxutils import escape, quoteattr

try:
    from Pegasus.api import (
        Directory,
        File,
        FileServer,
        Job,
        Operation,
        Properties,
        ReplicaCatalog,
        Site,
        SiteCatalog,
        Transformation,
        TransformationCatalog,
        Workflow,
    )
except ImportError:
    sys.exit("generate.py: Pegasus.api is missing: pip install pegasus-wms==5.1.3")

STEP = pathlib.Path(__file__).resolve().parent / "bin" / "step"


def chains(options):
    """Yields the steps in order: job id, input name, output name, last step?, arguments."""
    number = 0
    for chain in range(options.chains):
        names = ["in_%d.txt" % chain, "mid_%d.txt" % chain, "out_%d.txt" % chain]
        for step in range(2):
            number += 1
            arguments = ["-i", names[step], "-o", names[step + 1]]
            if step == 1 and chain in options.broken:
                arguments = ["-x", str(options.out / "broken")] + arguments
            yield "ID%07d" % number, names[step], names[step + 1], step == 1, arguments


def write_yaml(options):
    """Writes the workflow with Pegasus.api."""
    workflow = Workflow("chains")
    for identifier, source, target, last, arguments in chains(options):
        job = Job("step", _id=identifier)
        job.add_args(*arguments)
        job.add_inputs(File(source))
        job.add_outputs(File(target), stage_out=last, register_replica=False)
        workflow.add_jobs(job)
    workflow.write(str(options.out / "workflow.yml"))


def write_dax(options):
    """Writes the same workflow in the XML of Pegasus 4."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<adag xmlns="http://pegasus.isi.edu/schema/DAX"'
        ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
        ' xsi:schemaLocation="http://pegasus.isi.edu/schema/DAX'
        ' http://pegasus.isi.edu/schema/dax-3.6.xsd" version="3.6" name="chains">',
    ]
    edges = []
    producer = {}
    for identifier, source, target, last, arguments in chains(options):
        words = []
        for word in arguments:
            words.append("<file name=%s/>" % quoteattr(word) if word in (source, target) else escape(word))
        lines += [
            '  <job id="%s" name="step">' % identifier,
            "    <argument>%s</argument>" % " ".join(words),
            '    <uses name=%s link="input"/>' % quoteattr(source),
            '    <uses name=%s link="output" transfer="%s" register="false"/>'
            % (quoteattr(target), "true" if last else "false"),
            "  </job>",
        ]
        producer[target] = identifier
        if source in producer:
            edges.append((producer[source], identifier))
    for parent, child in edges:
        lines += ['  <child ref="%s">' % child, '    <parent ref="%s"/>' % parent, "  </child>"]
    lines.append("</adag>")
    (options.out / "workflow.xml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_catalogs(options):
    """Writes site, transformation and replica catalog, and properties that name them."""
    site = Site("local").add_directories(
        Directory(Directory.SHARED_SCRATCH, str(options.out / "scratch")).add_file_servers(
            FileServer((options.out / "scratch").as_uri(), Operation.ALL)
        ),
        Directory(Directory.LOCAL_STORAGE, str(options.out / "outputs")).add_file_servers(
            FileServer((options.out / "outputs").as_uri(), Operation.ALL)
        ),
    )
    if options.pegasus_home:
        site.add_env(PEGASUS_HOME=str(options.pegasus_home))
    SiteCatalog().add_sites(site).write(str(options.out / "sites.yml"))

    step = Transformation("step", site="local", pfn=str(STEP), is_stageable=False)
    TransformationCatalog().add_transformations(step).write(str(options.out / "transformations.yml"))

    replicas = ReplicaCatalog()
    for chain in range(options.chains):
        name = "in_%d.txt" % chain
        replicas.add_replica("local", name, str(options.out / "inputs" / name))
    replicas.write(str(options.out / "replicas.yml"))

    properties = Properties()
    properties["pegasus.code.generator"] = "PMC"
    properties["pegasus.data.configuration"] = "sharedfs"
    properties["pegasus.register"] = "false"
    for catalog, name in (("site", "sites"), ("transformation", "transformations"), ("replica", "replicas")):
        properties["pegasus.catalog.%s.file" % catalog] = str(options.out / (name + ".yml"))
    properties.write(str(options.out / "pegasus.properties"))


def main():
    parser = argparse.ArgumentParser(
        description="Writes a workflow of two-step chains, its catalogs, properties and input files."
    )
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="DIR", help="directory to write to")
    parser.add_argument("--format", choices=["yaml", "dax"], default="yaml", help="workflow as YAML or DAX XML")
    parser.add_argument("--chains", type=int, default=20, metavar="N", help="number of chains (default 20)")
    parser.add_argument(
        "--break",
        dest="broken",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="the second step of chain N (from 0) fails while the file DIR/broken exists, which is"
        " made here; may be repeated",
    )
    parser.add_argument(
        "--pegasus-home",
        type=pathlib.Path,
        metavar="DIR",
        help="PEGASUS_HOME of the site: the programs are in DIR/bin (default: beside the planner)",
    )
    options = parser.parse_args()
    if options.chains < 1:
        parser.error("--chains must be 1 or more")
    for chain in options.broken:
        if not 0 <= chain < options.chains:
            parser.error("--break %d: there is no such chain" % chain)

    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.resolve()
    if options.pegasus_home:
        options.pegasus_home = options.pegasus_home.resolve()
    for name in ("inputs", "scratch", "outputs"):
        (options.out / name).mkdir(exist_ok=True)
    for chain in range(options.chains):
        text = "This is the input of chain %d.\n" % chain
        (options.out / "inputs" / ("in_%d.txt" % chain)).write_text(text, encoding="utf-8")
    if options.broken:
        (options.out / "broken").write_text("Remove this file and run again.\n", encoding="utf-8")

    write_catalogs(options)
    if options.format == "yaml":
        write_yaml(options)
    else:
        write_dax(options)


if __name__ == "__main__":
    main()
