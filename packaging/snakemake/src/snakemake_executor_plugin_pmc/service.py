"""A run of `pmc serve`, as a program sees it that adds tasks and waits for their ends."""

import json
import os
import signal
import subprocess
import threading
from typing import Dict, List, Optional

# Time for a run to end, in seconds, before it is killed: it gives its tasks a few seconds.
END_TIMEOUT = 30


class ServiceError(Exception):
    """The run cannot be started or asked."""


class Service:
    """Adds tasks to a run and keeps the ends that it tells.

    `options`: those of a run that is started here; None for one that goes on already.
    """

    def __init__(self, program: str, directory: str, options: Optional[List[str]]):
        self.program = program
        self.directory = os.path.abspath(directory)
        self._lock = threading.Lock()
        self._ends: Dict[str, dict] = {}
        self._has_ended = False
        self._server = None
        if options is not None:
            self._server = self._start(["serve", self.directory, *options], stdin=subprocess.DEVNULL)
            if not self._server.stdout.readline():
                raise ServiceError(f"pmc serve {self.directory} does not start")
        self._adder = self._start(["add", self.directory], stdin=subprocess.PIPE)
        self._waiter = self._start(["wait", "--follow", self.directory], stdin=subprocess.DEVNULL)
        self._reader = threading.Thread(target=self._read_ends, daemon=True)
        self._reader.start()

    def _start(self, words: List[str], stdin) -> subprocess.Popen:
        try:
            # Ctrl-C is for this process, which ends them in order.
            return subprocess.Popen(
                [self.program, *words],
                stdin=stdin,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            raise ServiceError(f"{self.program} does not start: {error}")

    def _read_ends(self):
        for line in self._waiter.stdout:
            end = json.loads(line)
            with self._lock:
                self._ends[end["id"]] = end
        with self._lock:
            self._has_ended = True

    def add(self, tasks: List[dict]) -> List[str]:
        """Adds tasks, and returns their names."""
        lines = "".join(json.dumps(task) + "\n" for task in tasks)
        ids = []
        try:
            # The answers are read meanwhile: the pipes hold only a part of many lines.
            writer = threading.Thread(target=self._write, args=(lines,))
            writer.start()
            for _ in tasks:
                answer = self._adder.stdout.readline()
                if not answer:
                    raise ServiceError(f"pmc add {self.directory} has ended: its message says why")
                ids.append(json.loads(answer)["id"])
        finally:
            writer.join()
        return ids

    def _write(self, lines: str):
        try:
            self._adder.stdin.write(lines)
            self._adder.stdin.flush()
        except BrokenPipeError:
            # There is no answer then.
            pass

    def end_of(self, task: str) -> Optional[dict]:
        """Returns how a task has ended, once."""
        with self._lock:
            return self._ends.pop(task, None)

    def has_ended(self) -> bool:
        """Returns whether no more ends come."""
        with self._lock:
            return self._has_ended and not self._ends

    @staticmethod
    def describe(end: dict) -> str:
        """Says why a task is not done."""
        if end["reason"]:
            return end["reason"]
        if end["signal"] is not None:
            return f"It was ended by signal {end['signal']}"
        return f"It has failed with exit code {end['exit_code']}"

    def cancel(self, tasks: List[str]):
        """Ends tasks: all of a run that was started here, else those that run."""
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            return
        for task in tasks:
            words = [self.program, "kill", task, self.directory]
            subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def close(self):
        """Ends the run, if it was started here, and what talks to it."""
        if self._adder.stdin is not None:
            self._adder.stdin.close()
        if self._server is not None and self._server.poll() is None:
            words = [self.program, "serve", self.directory, "--stop"]
            subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            try:
                self._server.wait(END_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._server.kill()
        for process in (self._adder, self._waiter):
            if process is self._waiter and self._server is None:
                process.terminate()
            try:
                process.wait(END_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
