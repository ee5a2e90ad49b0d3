#!/usr/bin/env python3
"""Adds the numbers from 1 to the argument. Goes on where an earlier attempt has saved its state."""
import json
import subprocess
import sys
import time


def checkpoint(*words):
    return subprocess.run(["pmc", "checkpoint", *words]).returncode == 0


step, total = 0, 0
if checkpoint("get", "state", "state.json"):
    with open("state.json") as file:
        step, total = json.load(file)
while step < int(sys.argv[1]):
    step, total = step + 1, total + step + 1
    time.sleep(0.02)  # for the work of a step
    if step % 10 == 0 or checkpoint("due"):
        with open("state.json", "w") as file:
            json.dump([step, total], file)
        checkpoint("put", "state", "state.json")
print(f"The sum is {total}")
