#!/usr/bin/env python3
"""A stand-in for pegasus-cluster: runs the commands of a list one after another.

    standin_cluster.py LIST

After each command comes its record, after the last a summary, as monitoring expects them in the output
of a clustered job. Ends with 0 if all commands succeeded, else with 1, after having run all of them.

Python 3.11, standard library only.
"""

import datetime
import os
import shlex
import subprocess
import sys
import time


def stamp(seconds):
    at = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return at.isoformat(timespec="milliseconds")


def main():
    begin = time.time()
    lines = open(sys.argv[1]).read().splitlines()
    failed = tasks = 0
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        tasks += 1
        words = shlex.split(line)
        start = time.time()
        child = subprocess.Popen(words)
        _, status, _ = os.wait4(child.pid, 0)
        failed += status != 0
        print('[cluster-task id=%d, start="%s", duration=%.3f, status=%d, line=%d, pid=%d, app="%s"]' % (
            tasks, stamp(start), time.time() - start, status, number, child.pid, words[0]), flush=True)
    print('[cluster-summary stat="ok", lines=%d, tasks=%d, succeeded=%d, failed=%d, extra=0, duration=%.3f, '
          'start="%s", pid=%d, app="%s"]' % (len(lines), tasks, tasks - failed, failed, time.time() - begin,
                                           stamp(begin), os.getpid(), sys.argv[0]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
