"""Calls of one function for a search: here, in persistent processes, or on Ray; answers are kept in a folder, so that
an interrupted search can continue."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from etude.base.errors import UsageError
from etude.decide.search.request import SearchRequest
from etude.decide.study import functions
from etude.decide.study.functions import Function, FunctionCall, RunCalls
from etude.decide.study.results import Results, kept_in, settle
from etude.decide.study.sweep import carry_out
from etude.decide.study.team import Family


class Crew:
    """`ask` gives an answer for each point. Points are never run twice."""

    def __init__(self, function: Function, shared: Mapping[str, Any], run: RunCalls, results: Results) -> None:
        self._function, self._run, self._results = function, run, results
        self._seal = functions.seal_of(function, shared)
        self.asked: set[str] = set()
        self.ran = 0
        """Calls that were run in this search."""

    def ask(self, points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        calls: list[FunctionCall] = functions.calls_at(self._function, points, self._seal)
        self.ran += carry_out(calls, self._results, self._run)
        self.asked.update(call.key for call in calls)
        found = []
        for call in calls:
            answer = self._results[call.key]
            if answer["error"]:
                raise UsageError(f"{call.shown()}: {answer['error']}")
            found.append(functions.columns_of(answer))
        return found


@contextmanager
def crew(
    function: Function, shared: Mapping[str, Any], asked: SearchRequest, family: Family | None = None
) -> Iterator[Crew]:
    """Workers as requested, until the search is done; points of one `family` go to one process."""
    folder = asked.out
    if folder is not None:
        if folder.exists() and not folder.is_dir():
            raise UsageError("is not a folder", where=str(folder))
        folder.mkdir(parents=True, exist_ok=True)
    count = asked.workers or os.cpu_count() or 1
    with kept_in(folder) as results:
        if asked.ray:
            with functions.staying_on_ray(function, shared, asked.ray, asked.workers) as run:
                yield Crew(function, shared, run, results)
        elif count == 1:
            yield Crew(function, shared, functions.here(function, shared), results)
        else:
            with functions.staying(function, shared, count, family) as run:
                yield Crew(function, shared, run, results)
        if folder is not None:
            settle(folder, results)
