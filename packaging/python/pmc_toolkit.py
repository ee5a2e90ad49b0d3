"""Tasks for a run of `pmc serve`, from Python.

    with Executor("work") as executor:
        made = executor.command("./prepare a.dat > a.txt", cpus=2)
        found = executor.submit(math.sqrt, 2)
        print(made.result()["seconds"], found.result())

Functions run in processes of the same Python, and are passed by `pickle`. There is no file a task: what a function
returns goes through its standard output, which is in the packs of the run.
"""

import base64
import concurrent.futures
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from typing import Callable, Dict, List, Optional

# Time for a run to end, in seconds, before it is killed: it gives its tasks a few seconds.
END_TIMEOUT = 30

# Maximum tasks that are cancelled by a command.
MAX_CANCELLED = 1000


class ServiceError(Exception):
    """The run cannot be started or asked."""


class Service:
    """Adds tasks to a run and keeps the ends that it tells.

    `options`: those of a run that is started here; None for one that goes on already.
    """

    def __init__(
        self,
        program: str,
        directory: str,
        options: Optional[List[str]],
        on_end: Optional[Callable[[Optional[dict]], None]] = None,
    ):
        """`on_end` is called with each end, in a thread of its own, and with None after the last one."""
        self.program = program
        self.directory = os.path.abspath(directory)
        self._on_end = on_end
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
            if self._on_end is not None:
                self._on_end(end)
                continue
            with self._lock:
                self._ends[end["id"]] = end
        with self._lock:
            self._has_ended = True
        if self._on_end is not None:
            self._on_end(None)

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
        """Ends tasks: with a run that was started here, all. Those that wait do not run."""
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            return
        for first in range(0, len(tasks), MAX_CANCELLED):
            words = [self.program, "cancel", self.directory, *tasks[first : first + MAX_CANCELLED]]
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


# Runs a pickled function, and writes what it returns or raises after all other output.
RUN_FUNCTION = """\
import base64, pickle, sys
sys.path[:0] = {path!r}
try:
    function, arguments, named = pickle.loads(base64.b64decode({pickled!r}))
    result = (True, function(*arguments, **named))
except BaseException as error:
    result = (False, error)
try:
    text = pickle.dumps(result)
except Exception as error:
    text = pickle.dumps((False, TypeError("the result cannot be pickled: %s" % error)))
sys.stdout.write("\\n{mark}" + base64.b64encode(text).decode() + "\\n")
"""

# Begins the line with the result of a function.
MARK = "pmc-result:"


class TaskError(Exception):
    """A task is not done; `end` says how it has ended."""

    def __init__(self, end: dict):
        super().__init__(f"task {end['id']}: {Service.describe(end)}")
        self.end = end


class Executor(concurrent.futures.Executor):
    """Runs commands and functions as tasks of a run, each with the requests of `pmc add`.

    Starts `pmc serve` in the directory, with these options, and ends it at its end; with `joins`, the run goes on already.
    """

    def __init__(self, directory: str, options: Optional[List[str]] = None, joins: bool = False, program: str = "pmc"):
        self._futures: Dict[str, concurrent.futures.Future] = {}
        # Ends may come before the answers that name their tasks.
        self._early: Dict[str, dict] = {}
        self._lock = threading.Lock()
        self._service = Service(program, directory, None if joins else list(options or []), self._end)

    def command(self, command, **requests) -> concurrent.futures.Future:
        """Adds a command: a text for the shell, or a list of words. The result is its end."""
        return self._add({"command": command, **requests}, lambda end: end)

    def submit(self, function, /, *arguments, **named) -> concurrent.futures.Future:
        """Adds a call of a function. The result is what it returns."""
        pickled = base64.b64encode(pickle.dumps((function, arguments, named))).decode()
        code = RUN_FUNCTION.format(path=[os.getcwd(), *filter(None, sys.path)], pickled=pickled, mark=MARK)
        name = getattr(function, "__name__", "function")
        task = {"command": [sys.executable, "-c", code], "name": name if name.isidentifier() else "function"}
        return self._add(task, self._returned)

    def shutdown(self, wait=True, *, cancel_futures=False):
        """Ends the run, if it was started here, when all tasks have ended."""
        if wait:
            with self._lock:
                futures = list(self._futures.values())
            concurrent.futures.wait(futures)
        self._service.close()

    def _add(self, task: dict, result: Callable) -> concurrent.futures.Future:
        future: concurrent.futures.Future = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        future.pmc_result = result
        with self._lock:
            number = self._service.add([task])[0]
            future.pmc_id = number
            end = self._early.pop(number, None)
            if end is None:
                self._futures[number] = future
        if end is not None:
            self._settle(future, end)
        return future

    def _end(self, end: Optional[dict]):
        with self._lock:
            if end is None:
                left = list(self._futures.values())
                self._futures.clear()
            else:
                future = self._futures.pop(end["id"], None)
                if future is None:
                    self._early[end["id"]] = end
                    return
        if end is not None:
            self._settle(future, end)
            return
        for future in left:
            future.set_exception(ServiceError("the run has ended before the task"))

    @staticmethod
    def _settle(future: concurrent.futures.Future, end: dict):
        try:
            if end["state"] != "done":
                raise TaskError(end)
            future.set_result(future.pmc_result(end))
        except BaseException as error:
            future.set_exception(error)

    def _returned(self, end: dict):
        words = [self._service.program, "log", end["id"], self._service.directory]
        output = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout
        line = next(line for line in reversed(output.splitlines()) if line.startswith(MARK))
        has_returned, value = pickle.loads(base64.b64decode(line[len(MARK):]))
        if has_returned:
            return value
        raise value
