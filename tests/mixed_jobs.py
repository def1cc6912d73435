"""Random jobs of every kind of rank that measures of time must tell apart: with a device, with a host alone, as gloo's
are, and as a profiler records hosts; with frames, memory nodes, copies by name, and nodes without length."""

from __future__ import annotations

import random
from typing import Any

from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind

LENGTHS = (0, 0, 1, 7, 40, 100)
KERNELS = ("gemm", "", "ncclDevKernel_AllReduce_Sum", "Memcpy HtoD (Pageable -> Device)", "Memset (Device)",
           "Stream Wait Event")  # fmt: skip
OPERATORS = ("aten::mm", "autograd::engine::evaluate_function", "my part", "c10d::allreduce_", "host")


class MixedRank:
    """One rank being written: `device`, `host` (alone) or `recorded` (a host alone, with time between operators)."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.builder = rng, TraceBuilder()
        self.flavour = rng.choice(["device", "device", "host", "recorded"])

    def compute(self) -> None:
        if self.flavour == "device" and self.rng.random() < 0.6:
            self._add(Kind.COMP, self.rng.choice(KERNELS), cpu=0, stream=self.rng.randrange(3))
        elif self.flavour == "device" and self.rng.random() < 0.3:
            self._add(Kind.COMP, "gemm")  # it does not say where it runs
        else:
            self._operator()

    def memory(self) -> None:
        on = {"cpu": 1, "thread": 1} if self.flavour != "device" else {}
        self._add(self.rng.choice([Kind.MEM_LOAD, Kind.MEM_STORE]), "", tensor_bytes=self.rng.choice([0, 16, 90]), **on)

    def communicate(self, kind: Kind, **row: Any) -> None:
        where = {"cpu": 0, "stream": 5} if self.flavour == "device" else {}  # gloo's messages do not say
        if self.rng.random() < 0.2:
            where = {"cpu": 1, "thread": 2}
        self._add(kind, "", **where, **row)

    def _operator(self) -> None:
        """An operator of the host; now and then one that calls others, which makes it a frame."""
        names = OPERATORS if self.flavour == "recorded" else OPERATORS[:-1]
        top = self._add(Kind.COMP, self.rng.choice(names), cpu=1, thread=1)
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            self._add(Kind.COMP, self.rng.choice(names), cpu=1, thread=1, parent=top)

    def _add(self, kind: Kind, name: str, **row: Any) -> int:
        before = range(max(0, len(self.builder) - 5), len(self.builder))
        data = [d for d in before if self.rng.random() < 0.2]
        duration = {"duration_ns": self.rng.choice(LENGTHS)} if kind == Kind.COMP else {}
        return self.builder.add(kind, name, data=data, **duration, **row)


def mixed_job(rng: random.Random) -> Job:
    ranks = [MixedRank(rng) for _ in range(rng.randint(1, 4))]
    for _ in range(rng.randint(1, 20)):
        what = rng.choice(["compute", "compute", "compute", "memory", "collective", "message"])
        if what == "compute":
            rng.choice(ranks).compute()
        elif what == "memory":
            rng.choice(ranks).memory()
        elif what == "collective":
            size = rng.choice([0, 8, 100])
            for rank in ranks:
                rank.communicate(Kind.COLL, collective=Collective.ALL_REDUCE, in_bytes=size)
        else:
            src, dst = rng.randrange(len(ranks)), rng.randrange(len(ranks))
            ranks[src].communicate(Kind.SEND, dst=dst, tag=1, in_bytes=32)
            ranks[dst].communicate(Kind.RECV, src=src, tag=1, in_bytes=32)
    return job_of("mixed", [rank.builder for rank in ranks])
