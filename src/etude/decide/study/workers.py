"""Processes of this machine that carry out tasks. A worker takes a task a line, and gives an answer a line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import IO, Final, TypeAlias

from etude.base.cluster import TRIES
from etude.base.files import python_path
from etude.decide.study.points import StudyTask
from etude.decide.study.tasks import Answer, Execute, TaskAnswers, answer

Run: TypeAlias = Callable[[Sequence[StudyTask]], Iterator[tuple[StudyTask, Answer]]]
"""Carries out tasks, and gives each with its answer as they come."""

PATIENCE_S: Final = 5.0


class WorkerProcess:
    """A process of its own, started when there is something to do, and again if it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._talk: IO[str] | None = None

    def __call__(self, task: StudyTask) -> Answer:
        for _ in range(TRIES):
            process = self._started()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps(asdict(task)) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except (BrokenPipeError, OSError):
                line = ""
            if line.endswith("\n"):
                found: Answer = json.loads(line)
                return found
            said = self._last_words()
            code = self.close()
        return {"answers": [], "error": f"the worker died {TRIES} times, the last with exit code {code}{said}"}

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            words = [sys.executable, "-m", "etude.surface.cli.executing"]
            self._talk = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed with it
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._talk, text=True,
                encoding="utf-8", start_new_session=True, env={**os.environ, "PYTHONPATH": python_path()},
            )  # fmt: skip
        return self._process

    def _last_words(self) -> str:
        if self._talk is None:
            return ""
        self._talk.seek(0)
        lines = self._talk.read()[-4000:].strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def close(self) -> int:
        """Ends the process. What it was doing is lost."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()  # it removes the folder that it works in
        try:
            process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
        for stream in (process.stdin, process.stdout, self._talk):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return process.wait()


def here(execute: Execute, said: TaskAnswers | None = None) -> Run:
    """One task after the other, in this process; `said` is what others have run before."""
    known = TaskAnswers() if said is None else said

    def run(tasks: Sequence[StudyTask]) -> Iterator[tuple[StudyTask, Answer]]:
        for task in tasks:
            yield task, answer(asdict(task), execute, known)

    return run


def processes(count: int) -> Run:
    """This many workers, each with a task at a time."""

    def run(tasks: Sequence[StudyTask]) -> Iterator[tuple[StudyTask, Answer]]:
        free: SimpleQueue[WorkerProcess] = SimpleQueue()
        workers = [WorkerProcess() for _ in range(min(count, len(tasks)))]
        for worker in workers:
            free.put(worker)

        def carried_out(task: StudyTask) -> tuple[StudyTask, Answer]:
            worker = free.get()
            try:
                return task, worker(task)
            finally:
                free.put(worker)

        pool = ThreadPoolExecutor(max(1, len(workers)))
        try:
            waiting: set[Future[tuple[StudyTask, Answer]]] = {pool.submit(carried_out, task) for task in tasks}
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:  # also when the reader stops, or Ctrl-C
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.close()
            pool.shutdown(wait=True)

    return run
