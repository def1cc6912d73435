"""Ranks of a job on places of a system: which device each rank takes, by simulation on links.

search: placement
model: wan2.1-14b                      # or `job: folder/` of traces
layers: 2                              # that are simulated, of those of the model, which are alike; 0: all
plan: {gpus: 16, tp: 4, cp: 4, train: forward}
shardings: {tp: [2, 4, 8], cp: [2, 4, 8]}    # optional: plans that are tried, those that send least first
keep: 2                                # of them
system: tpu-v5e-4x4.yaml
network: flow                          # or links; closed forms do not see who shares a link
tries: 300                             # simulations at most, of each plan
"""

from __future__ import annotations

from typing import Any

from etude.base.errors import UsageError
from etude.capture.opening import open as open_job
from etude.decide.search.found import Found
from etude.decide.search.given import Given, SearchRequest
from etude.decide.search.placement_best import TRIES
from etude.decide.search.placement_best import best_placement as best_placement
from etude.decide.search.placement_shardings import best_of_shardings
from etude.decide.search.short_models import count, system_file
from etude.machine import open_system


def solve(given: Given, asked: SearchRequest) -> Found:
    given.only("job", "model", "layers", "plan", "shardings", "keep", "system", "network", "tries")
    keys = given.keys
    if ("job" in keys) == ("model" in keys):
        raise UsageError("`job` or `model` is needed, not both", where=given.where,
                         hint="job: folder/; or model: gpt2 and plan: {gpus: 8, tp: 4}")  # fmt: skip
    system = open_system(system_file(given))
    how: dict[str, Any] = {"network": str(keys.get("network", "flow")), "tries": count(given, "tries", TRIES, 1)}
    if "job" in keys:
        for key in ("layers", "plan", "shardings", "keep"):
            if key in keys:
                raise UsageError(f"`{key}` needs `model`", where=given.where)
        job = open_job(given.path(str(keys["job"])))
        return best_placement(job, system.for_ranks(job.world_size), asked=asked, **how)
    return best_of_shardings(given, asked, system, how)
