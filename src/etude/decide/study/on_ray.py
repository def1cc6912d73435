"""Tasks on a Ray cluster: an actor on each CPU that has a worker of its own, as on this machine.

Inputs of tasks go through Ray's object store, once for each machine. Etude must be installed on the machines, with the
same code.
"""

import io
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.cluster import TRIES, connected
from etude.decide.study.points import StudyTask
from etude.decide.study.tasks import Answer
from etude.decide.study.workers import PATIENCE_S, Run, WorkerProcess


class RayMachine:
    """What runs on the cluster."""

    def __init__(self) -> None:
        self._worker = WorkerProcess()
        self._inputs = ""

    def carry_out(self, task: dict[str, Any], packed: NDArray[np.uint8]) -> Answer:
        if len(packed) and not self._inputs:
            self._inputs = mkdtemp(prefix="etude-study-inputs-")
            with tarfile.open(fileobj=io.BytesIO(packed.tobytes())) as archive:
                archive.extractall(self._inputs, filter="data")
        here = {name: str(Path(self._inputs) / name) for name in task["inputs"]}
        return self._worker(StudyTask(**{**task, "inputs": here}))

    def close(self) -> None:
        import shutil

        self._worker.close()
        if self._inputs:
            shutil.rmtree(self._inputs, ignore_errors=True)


def on_ray(address: str, workers: int = 0, machine: type[RayMachine] = RayMachine) -> Run:
    """Tasks on a cluster; `machine` is what carries them out there."""

    def run(tasks: Sequence[StudyTask]) -> Iterator[tuple[StudyTask, Answer]]:
        if not tasks:
            return
        with connected(address, workers) as ray:
            yield from _spread(ray, tasks, workers, machine)

    return run


def _spread(
    ray: Any, tasks: Sequence[StudyTask], workers: int, machine_class: type[RayMachine]
) -> Iterator[tuple[StudyTask, Answer]]:
    """A task at a time on every actor; an actor that is lost is replaced, and its task tried again."""
    actor = ray.remote(num_cpus=1)(machine_class)
    cpus = int(ray.cluster_resources().get("CPU", 1))
    count = max(1, min(workers or cpus, cpus, len(tasks)))
    packed = ray.put(_packed(tasks))
    left = [(task, 1) for task in reversed(tasks)]
    running: dict[Any, tuple[Any, StudyTask, int]] = {}
    free = [actor.remote() for _ in range(count)]
    try:
        while left or running:
            while left and free:
                task, tried = left.pop()
                machine = free.pop()
                running[machine.carry_out.remote(asdict(task), packed)] = (machine, task, tried)
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                machine, task, tried = running.pop(reference)
                try:
                    found = ray.get(reference)
                    free.append(machine)
                except ray.exceptions.RayActorError as problem:
                    free.append(actor.remote())
                    if tried < TRIES:
                        left.append((task, tried + 1))
                        continue
                    why = str(problem).strip().splitlines()[-1]
                    found = {"answers": [], "error": f"its machine was lost {TRIES} times: {why}"}
                yield task, found
    finally:
        for machine in free:
            with suppress(ray.exceptions.RayError):
                ray.get(machine.close.remote(), timeout=PATIENCE_S)
        for machine in [*free, *(of for of, _, _ in running.values())]:
            ray.kill(machine)


def _packed(tasks: Sequence[StudyTask]) -> NDArray[np.uint8]:
    """The inputs of all tasks, as a tar."""
    inputs = {name: source for task in tasks for name, source in task.inputs.items()}
    if not inputs:
        return np.empty(0, np.uint8)
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, source in sorted(inputs.items()):
            archive.add(source, arcname=name)
    return np.frombuffer(whole.getvalue(), np.uint8)
