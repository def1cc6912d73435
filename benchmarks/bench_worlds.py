"""What large worlds cost: a day of training, services, agents, images, rollouts, faults, prices and a cap.

    python benchmarks/bench_worlds.py [--only day million]

`hour` is a day of a machine of 64 nodes whose chat service has an hour of requests in a file (Azure 2023,
conversation); `day` the same with requests all day, at the mean rate of that file; `azure` that hour alone on 16
replicas; `million` a million requests on 16 replicas. CPU seconds of the clock from the first event to the last, in a
process of its own with compiled kernels, and of all, with step costs and the account. `crossings` is how often the
clock brought a workload to a moment; what they cost is the time of the clock itself, and that of streams and agents
outside the compiled loop over requests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SHARED = Path(os.environ.get("ETUDE_SHARED", Path(__file__).resolve().parent.parent.parent / "shared"))
HOUR = SHARED / "requests" / "azure_2023_conv.csv"
BARS = {"hour": 60, "day": 300, "azure": 6, "million": 30}
"""CPU seconds that each may take."""
ASKS = ("next_ns", "advance", "on")
CHAT = {"serve": "llama3-8b", "replicas": "4..32", "slo": "ttft=1s,tpot=50ms", "scale": "queue"}
ALONE = {"machine": {"system": "dgx-h100", "nodes": 2}}
MIX = {
    "pretrain": {"train": "llama3-70b", "gpus": 256, "tp": 8, "pp": 4, "checkpoint": "local:10min,remote:2h",
                 "recover": "spare", "spares": 2},
    "agents": {"workflow": "swe_agent", "models": {"planner": "llama3-70b", "worker": "llama3-8b"}, "cache": "prefix",
               "router": "affinity"},
    "videos": {"images": "wan2.1-14b", "requests": "mix:480x832x81@50", "rate": 0.02, "count": 1700, "gpus": 16,
               "degree": "elastic", "stack": "none"},
    "post": {"rl": "qwen3-8b", "nodes": 2, "rollout": {"samples": 64, "tokens": 256, "at_once": 64, "context": 1000},
             "train": {"time": "20s"}, "steps": 2000, "lend_to": "chat"},
}  # fmt: skip


def scenario(what: str) -> dict[str, Any]:
    if what == "small":
        return ALONE | {"workloads": {"chat": CHAT | {"replicas": 2, "scale": "", "rate": 9, "count": 200}}}
    if what in ("azure", "million"):
        stream = {"requests": str(HOUR)} if what == "azure" else {"rate": 60, "count": 1_000_000}
        chat = {"serve": "llama3-8b", "replicas": 16, "router": "least", **stream}
        return ALONE | {"workloads": {"chat": chat}}
    stream = {"requests": str(HOUR)} if what == "hour" else {"rate": 5.4, "count": 466_000}
    return {
        "machine": {"system": "dgx-h100", "nodes": 64, "regions": ["sweden"]},
        "horizon": "1d",
        "workloads": MIX | {"chat": CHAT | stream},
        "events": {"faults": "llama3"},
        "policies": {"place": "pack", "share": "lend"},
    }


def child(what: str) -> dict[str, Any]:
    from etude.world.build import world_of
    from etude.world.entities import serving, workflow
    from etude.world.makers import is_kind, kinds
    from etude.world.outcome import outcome_of
    from etude.world.scenario import WorkloadKinds, scenario_of

    spent = Counter[str]()

    def timed(function: Any, what: str) -> Any:
        def call(*given: Any) -> Any:
            begin = time.process_time()
            found = function(*given)
            spent[what] += time.process_time() - begin
            return found

        return call

    def run(name: str) -> dict[str, Any]:
        begin = time.process_time()
        spent.clear()
        given = {key: one for key, one in scenario(name).items() if one}
        for one in given["workloads"].values():
            one.pop("scale", "") if not one.get("scale") else None
        world = world_of(scenario_of(given, "world.yaml", WorkloadKinds(is_kind, kinds)))
        for who, one in list(world.clock.entities.items()):
            serves = isinstance(one, serving.ServingWorkload | workflow.WorkflowWorkload)
            if isinstance(one, serving.ServingWorkload):
                one.loop = timed(one.loop, "loop")
            if isinstance(one, workflow.WorkflowWorkload):
                one.loop.loop = timed(one.loop.loop, "loop")
            calls = {name: timed(getattr(one, name), "serving" if serves else "others") for name in ASKS}
            world.clock.entities[who] = SimpleNamespace(name=who, **calls)
        since = time.process_time()
        world.clock.run()
        ran = time.process_time() - since
        for one in world.machine.workloads.values():
            one.close()
        if world.scenario.horizon_ns:
            record = outcome_of(world).record
            counts = {
                who: its.get("finished", its.get("updates", its.get("sessions_done", 0)))
                for who, its in record["workloads"].items()
            }
        else:
            counts = {who: len(one.requests) for who, one in world.machine.workloads.items()}
        whole = time.process_time() - begin
        around = ran - spent["loop"] - spent["others"]
        return {
            "clock": ran, "whole": whole, "around": around / ran, "others": spent["others"] / ran,
            "crossings": world.clock.crossings, "counts": counts,
        }  # fmt: skip

    run("small")
    return run(what)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=BARS, default=list(BARS))
    parser.add_argument("--child", choices=BARS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.child)))
        return 0
    if not HOUR.is_file():
        print(f"needs the reference data ({HOUR})", file=sys.stderr)
        return 0
    late = 0
    for what in given.only:
        done = subprocess.run([sys.executable, __file__, "--child", what], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        late += found["whole"] > BARS[what]
        answered = ", ".join(f"{who} {count:,}" for who, count in found["counts"].items() if count)
        print(
            f"{what}: {found['clock']:.1f} CPU s of the clock, {found['whole']:.1f} of all (bar {BARS[what]}); "
            f"{found['crossings']:,} crossings cost {found['around']:.1%}, other workloads take {found['others']:.1%}; "
            f"{answered}"
        )
    return int(late > 0)


if __name__ == "__main__":
    raise SystemExit(main())
