"""Files that the commands of `command_grammar.py` read: streams, workflows, clusters, clients and spaces, drawn once.

They are the same for every seed of commands, so that a command can be run again by hand: `write_files(folder)`.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

EXAMPLES: Final = Path(__file__).resolve().parent.parent / "examples"
MINE: Final = """
def route(request, replicas, now_s):
    return min(range(len(replicas)), key=lambda i: (replicas[i].queued_tokens, -i))

def order(waiting, replica, now_s):
    return sorted((one["request"] for one in waiting), reverse=True)

def longest(running, replica, now_s):
    return max(running, key=lambda one: (one["prompt"], one["request"]))["request"]

def few(request, replica, now_s):
    return replica.running < 3

def half(request, replica, now_s):
    return 0.5 if request["request"] % 2 else 1.0

def recover(view):
    if not view.lost:
        return "stay"
    return "spare" if view.nodes_up >= view.nodes_needed else "wait"

def smallest(job, now_s):
    return job.left_s * job.gpus
"""


def csv(rows: list[dict[str, Any]]) -> str:
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    return "\n".join(lines) + "\n"


def times(draw: random.Random, count: int, rate: float) -> list[float]:
    at, found = 0.0, []
    for _ in range(count):
        at += draw.expovariate(rate)
        found.append(round(at, 6))
    return found


def requests(draw: random.Random, own: tuple[str, ...] = ("session", "branches")) -> str:
    """Every file has some of the further columns."""
    more = {
        "session": lambda: draw.randrange(8), "tenant": lambda: draw.choice(["chat", "batch"]),
        "tier": lambda: draw.choice(["chat", "batch"]), "deadline": lambda: round(draw.uniform(0.2, 20), 3),
        "adapter": lambda: draw.choice(["", "a", "b", "c"]), "branches": lambda: draw.choice([1, 1, 2, 4]),
    }  # fmt: skip
    names = ["tenant", "tier", "deadline", *draw.sample(own, draw.randint(1, len(own)))]
    rows = [
        {
            "arrival": at,
            "prompt": draw.choice([20, 300, 1500, draw.randrange(1, 3000)]),
            "output": draw.randrange(4, 90),
        }
        | {name: more[name]() for name in names}
        for at in times(draw, draw.randrange(30, 60), draw.choice([2.0, 10.0, 40.0]))
    ]
    return csv(rows)


def adapters(draw: random.Random) -> str:
    return requests(draw, ("adapter",))


def blocks(draw: random.Random) -> str:
    """Mooncake's format: blocks of 512 tokens, many of which were there before."""
    rows = []
    for at in times(draw, 40, 5.0):
        ids = [*range(draw.randrange(1, 6)), draw.randrange(100, 400)]
        rows.append({"timestamp": round(at * 1e3), "input_length": len(ids) * 512, "output_length": draw.randint(1, 50),
                     "hash_ids": ids})  # fmt: skip
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def images(draw: random.Random) -> str:
    sizes = [(512, 512), (768, 1024), (1024, 1024)]
    rows = []
    for at in times(draw, draw.randrange(6, 20), 1.0):
        height, width = draw.choice(sizes)
        rows.append({"arrival": at, "height": height, "width": width, "frames": 1, "steps": draw.randrange(2, 20),
                     "deadline": draw.choice(["", 5, 40])})  # fmt: skip
    return csv(rows)


def pools(draw: random.Random) -> dict[str, Any]:
    decode = draw.choice(["dgx-h100", "dgx-a100"])
    return {
        "model": draw.choice(["llama3-8b", "llama3.2-1b"]),
        "pools": [
            {"role": "prefill", "count": draw.randint(1, 2), "tp": draw.choice([1, 2]), "system": "dgx-h100"},
            {"role": "decode", "count": draw.randint(1, 3), "tp": 1, "system": decode},
        ],
    }


def flow(draw: random.Random) -> dict[str, Any]:
    """A plan, some calls and tools in parallel, a merge, and sometimes a loop."""
    middle: dict[str, Any] = {}
    for n in range(draw.randint(1, 3)):
        call = {
            "model": draw.choice(["big", "small"]),
            "system": draw.choice([0, 300]),
            "message": 150,
            "after": "plan",
        }
        tool = {"tool": "shell", "time": f"{draw.randint(1, 900)}ms", "after": "plan", "output": 50}
        middle[f"part{n}"] = draw.choice([call | {"output": draw.randint(5, 60), "bytes": "5MB"}, tool])
    tasks: dict[str, Any] = {"plan": {"model": "big", "system": 400, "message": 120, "output": draw.randint(5, 50)}}
    tasks |= middle | {"merge": {"model": "big", "after": list(middle), "follows": "plan", "output": 40}}
    made = {
        "name": "flow", "sessions": draw.randint(3, 9), "rate": draw.choice([0.3, 1, 4]), "vary": draw.choice([0, 0.4]),
        "models": {"big": draw.choice(["llama3-8b", "llama3.2-1b"]), "small": "gpt2"}, "tasks": tasks,
    }  # fmt: skip
    if draw.random() < 0.4:
        tasks["test"] = {"tool": "shell", "time": "80ms", "after": "merge", "output": 30}
        made["loops"] = [{"of": ["merge", "test"], "stop": 0.4, "most": 3}]
    return made


def choices(draw: random.Random) -> dict[str, Any]:
    """Tasks with alternatives, none of which is a model."""

    def ways() -> list[dict[str, Any]]:
        return [
            {"tool": place, "time": f"{draw.randint(50, 400) * k}ms", "cost": 0.001 * k * draw.randint(1, 4),
             "label": round(0.8 + 0.05 * k, 2)}
            for k, place in enumerate(("here", "edge", "cloud"), 1)
        ]  # fmt: skip

    tasks = {"look": {"alternatives": ways()}, "find": {"after": "look", "alternatives": ways()},
             "tell": {"after": ["look", "find"], "alternatives": ways()}}  # fmt: skip
    return {"name": "choices", "sessions": draw.randint(10, 40), "rate": 0.2, "vary": draw.choice([0, 0.5]),
            "tasks": tasks, "endpoints": {"here": draw.randint(1, 2)}}  # fmt: skip


def devices(draw: random.Random) -> dict[str, Any]:
    kinds = [
        {"name": name, "system": system, "count": draw.randint(1, 2), "memory": draw.choice(["18GB", "40GB"]),
         "keep": "1GB", "load": f"{draw.randint(4, 20)}GB/s"}
        for name, system in (("h", "dgx-h100"), ("a", "dgx-a100"))
    ]  # fmt: skip
    return {"link": f"{draw.randint(1, 9)}GB/s", "devices": kinds}


# -- fleets ------------------------------------------------------------------------------------------------------------


def faults(draw: random.Random) -> dict[str, Any]:
    return {"name": "mine", "kinds": [
        {"name": "node", "mtbf": f"{draw.randint(100, 900)}h", "repair": f"{draw.randint(1, 8)}h"},
        {"name": "rack", "scope": "rack", "nodes": 2, "mtbf": "700h", "repair": "2h"},
        {"name": "crash", "scope": "process", "mtbf": f"{draw.randint(6, 60)}h"},
        {"name": "hot", "effect": "slow", "scope": "gpu", "mtbf": "900h", "factor": 1.3, "duration": "1h"},
    ]}  # fmt: skip


def events(draw: random.Random) -> str:
    rows = [
        {"time_s": round(at), "name": "node", "effect": "stop", "scope": "node", "node": draw.randrange(1), "nodes": 1,
         "duration_s": draw.randint(300, 4000)}
        for at in times(draw, 6, 1 / 20_000)
    ]  # fmt: skip
    return csv(rows)


def cluster(draw: random.Random) -> dict[str, Any]:
    return {"name": "nodes", "nodes": [
        {"count": draw.randint(1, 3), "gpus": 8, "kind": "h100", "price": 2.5},
        {"count": draw.randint(1, 3), "gpus": 4, "kind": "a100", "price": 1.2},
    ]}  # fmt: skip


def jobs(draw: random.Random) -> str:
    rows = [
        {"name": f"{n}", "arrival_s": round(at), "gpus": draw.choice([1, 2, 4, 8]), "duration_s": draw.randint(9, 9000),
         "kind": draw.choice(["", "", "h100", "a100"]), "weight": draw.choice([1, 2]), "priority": draw.randint(0, 3),
         "deadline_s": round(at) + draw.randint(2000, 20000), "tenant": draw.choice(["x", "y"])}
        for n, at in enumerate(times(draw, draw.randint(8, 25), 1 / 300))
    ]  # fmt: skip
    return csv([row | {"kind": "" if row["gpus"] > 4 else row["kind"]} for row in rows])


def pool(draw: random.Random) -> dict[str, Any]:
    """Own and spot nodes; jobs of one size, and jobs that change theirs."""

    def job(n: int) -> dict[str, Any]:
        one = {"name": f"j{n}", "arrival_s": draw.randint(0, 3000), "gpus": draw.choice([4, 8]),
               "duration_s": draw.randint(300, 6000), "weight": draw.choice([1, 2])}  # fmt: skip
        sizes = {"min_gpus": draw.choice([1, 2]), "max_gpus": 16, "harvest": draw.randint(0, 1), "save_s": 300}
        return one | (sizes if n % 2 else {})

    spot = {"name": "spot", "count": 2, "gpus": 8, "kind": "h100", "price": 0.8, "capacity": "spot.csv"}
    return {
        "nodes": [{"name": "own", "count": 2, "gpus": 8, "kind": "h100", "price": 2.5}, *draw.choice([[], [spot]])],
        "switch": f"{draw.randint(0, 60)}s", "start": f"{draw.randint(0, 90)}s",
        "jobs": [job(n) for n in range(draw.randint(3, 8))],
    }  # fmt: skip


def rl(draw: random.Random) -> dict[str, Any]:
    apart = draw.random() < 0.7
    rollout = {"nodes": "own", "samples": draw.choice([16, 48]), "turns": draw.randint(1, 3), "tokens": 60,
               "spread": draw.choice([0, 0.4]), "at_once": 8, "step_ns": {1: "10ms", 16: "14ms"}}  # fmt: skip
    made = {
        "steps": draw.randint(2, 5), "tenants": draw.randint(1, 2), "stages": "apart" if apart else "together",
        "rollout": rollout, "environment": {"time": f"{draw.randint(0, 3)}s", "spread": 0.5},
        "train": {"nodes": draw.choice(["own", "other"]) if apart else "own", "time": f"{draw.randint(1, 9)}s"},
        "sync": {"link": "1GB/s", "weights": "200MB", "fraction": draw.choice([1.0, 0.1])},
    }  # fmt: skip
    if apart:
        made["staleness"] = draw.randint(0, 2)
    nodes = [{"name": "own", "gpus": 8, "kind": "h100", "price": 2.5}, {"name": "other", "gpus": 8, "kind": "h100"}]
    return {"name": "rl", "nodes": nodes, "rl": made}


def mixed(draw: random.Random) -> dict[str, Any]:
    made = rl(draw)
    made["nodes"] += [{"name": "serving", "gpus": 2, "kind": "h100"}, {"name": "rest", "count": 2, "gpus": 8}]
    stream = {"name": "chat", "nodes": "serving", "model": "gpt2", "system": "dgx-h100", "rate": 8,
              "count": draw.randint(20, 60), "prompt": 300, "output": 30, "slo": {"ttft": "1s"}}  # fmt: skip
    listed = [{"name": f"j{n}", "arrival_s": 3 * n, "gpus": draw.choice([4, 8]), "duration_s": draw.randint(9, 60)}
              for n in range(4)]  # fmt: skip
    return made | {"streams": [stream], "jobs": listed, "policy": "fifo"}


def edge(draw: random.Random) -> dict[str, Any]:
    services = [{"model": model, "deadline": f"{draw.randint(20, 80)}ms", "exits": draw.randint(1, 4)}
                for model in ("resnet-50", "vit-b16", "mobilenet-v2")]  # fmt: skip
    return {"system": "dgx-a100", "services": services, "load": round(draw.uniform(0.3, 1.4), 2),
            "batch": draw.choice([1, 4, 8]), "count": draw.randint(100, 400), "policy": "stability",
            "headroom": draw.choice([0, 0.1])}  # fmt: skip


def backbone(draw: random.Random) -> dict[str, Any]:
    return {"system": "dgx-a100", "backbone": "vit-l16", "tasks": draw.randint(2, 13), "extension": "8MB",
            "extension_time": f"0.{draw.randint(0, 5)}ms", "load": round(draw.uniform(0.2, 1.2), 2),
            "batch": draw.choice([1, 4, 8]), "count": draw.randint(100, 400)}  # fmt: skip


def airan(draw: random.Random) -> dict[str, Any]:
    cells = [{"name": f"cell{n}", "node": "ab"[n], "slot": "1ms", "gpu": f"{draw.randint(30, 300)}us", "cpu": "30us",
              "swing": 0.3, "period": "40s", "phase": round(draw.random(), 2)} for n in range(2)]  # fmt: skip
    ai = [{"name": f"ai{n}", "node": draw.choice("abc"), "rate": draw.randint(3, 30), "gpu": f"{draw.randint(4, 25)}ms",
           "cpu": "2ms", "deadline": f"{draw.randint(60, 400)}ms", "swing": 0.8, "period": "40s"}
          for n in range(4)]  # fmt: skip
    nodes = [{"name": "a"}, {"name": "b", "gpu": draw.choice([1, 0.7])}, {"name": "c", "gpu": 0.5, "cpu": 0.5}]
    return {"nodes": nodes, "radio": cells, "ai": ai, "duration": f"{draw.randint(20, 60)}s", "every": "10s",
            "migrate": "2s", "policy": "haf"}  # fmt: skip


def moe(draw: random.Random) -> dict[str, Any]:
    return {"model": "examples/qwen1.5-moe.yaml", "system": "dgx-a100", "experts_per_function": draw.choice([4, 6, 10]),
            "tenants": draw.randint(1, 4), "every": f"{draw.randint(2, 20)}min", "duration": "30min",
            "prompt": draw.choice([4, 16]), "output": draw.randint(1, 8), "cold": f"{draw.randint(50, 900)}ms",
            "keep": draw.choice(["10s", "60s", "endless"]), "invoke": "1ms", "instances": draw.choice([0, 2]),
            "load": draw.choice(["0GB/s", "10GB/s"]), "shared": draw.random() < 0.5}  # fmt: skip


def clients(draw: random.Random) -> str:
    rows = [{"name": f"c{n}", "step_s": round(draw.uniform(0.5, 4), 2), "down": f"{draw.randint(5, 90)}Mb/s",
             "up": f"{draw.randint(1, 30)}Mb/s", "available": draw.choice([1, 0.8, 0.5]), "away": draw.choice([0, 3]),
             "drops": draw.choice([0, 0.1]), "samples": draw.randint(10, 900), "share": draw.choice([1, 0.5]),
             "group": n % 3, "label": n % 4} for n in range(draw.randint(6, 20))]  # fmt: skip
    return csv(rows)


# -- spaces ------------------------------------------------------------------------------------------------------------


def mix(draw: random.Random) -> dict[str, Any]:
    return {
        "search": "mix", "models": {"chat": {"model": "gpt2"}, "large": {"model": "llama3-8b"}}, "kinds": "kinds.csv",
        "demand": f"demand{draw.randrange(2)}.csv", "throughput": f"rates{draw.randrange(2)}.csv", "score": "cost",
    }  # fmt: skip


def demand(draw: random.Random) -> str:
    return csv([{"hour": hour, "model": model, "rate": draw.randint(5, 90)}
                for hour in range(3) for model in ("chat", "large")])  # fmt: skip


def rates(draw: random.Random) -> str:
    return csv([{"model": model, "kind": kind, "plan": f"tp{tp}", "devices": tp, "rate": draw.randint(3, 20) * tp}
                for model in ("chat", "large") for kind in ("a", "b", "c") for tp in (1, 2)])  # fmt: skip


def kinds(draw: random.Random) -> str:
    return csv([{"kind": "a", "device": "a100", "price": 1.8, "node": 8, "available": 40},
                {"kind": "b", "device": "h100", "price": 2.9, "node": 8, "available": ""},
                {"kind": "c", "device": "t4", "price": 0.35, "node": 4, "available": 9}])  # fmt: skip


def searched(draw: random.Random) -> dict[str, Any]:
    return {
        "search": "commands", "run": f"predict gpt2 --gpus {draw.choice([4, 8])} --system dgx-h100 --json {{flags}}",
        "axes": {"tp": [1, 2], "pp": [1, 2], "micro_batch": [1, 2]}, "when": "tp * pp <= 4",
        "score": {"step": "step_time_ns", "memory": "memory_peak_bytes"},
    }  # fmt: skip


def shares(draw: random.Random) -> dict[str, Any]:
    return {"search": "shares", "model": "llama3-8b", "layers": 1, "unit": draw.choice([512, 1024]),
            "plan": {"gpus": 16, "cp": 16, "seq": 65536, "global_batch": 1, "zero": 3, "cp_map": "zigzag"},
            "system": "examples/search/h100x8-a100x8.yaml"}  # fmt: skip


def placement(draw: random.Random) -> dict[str, Any]:
    return {"search": "placement", "model": "gpt2", "layers": 1, "network": draw.choice(["flow", "links"]),
            "plan": {"gpus": 8, "tp": draw.choice([2, 4]), "global_batch": 8}, "system": "tpu-4x2.yaml"}  # fmt: skip


def patterns(draw: random.Random) -> dict[str, Any]:
    names = draw.sample(["single", "cascade", "router", "ensemble", "tool", "verify"], 2)
    prices = {"gpt2": {"input": 0.05, "output": 0.08}, "llama3.2-1b": {"input": 0.2, "output": 0.4}}
    return {"search": "workflows", "patterns": names, "models": prices, "system": "dgx-h100",
            "score": draw.choice([["latency", "cost"], ["p99"]]), "sessions": draw.randint(5, 12)}  # fmt: skip


TPU: Final = {
    "name": "tpu-4x2", "device": "tpu-v5e",
    "levels": [{"name": "ici", "kind": "mesh", "shape": [4, 2], "bandwidth": "100GB/s", "latency": "1us"}],
    "collectives": {"protocols": {"simple": {"launch": "5us"}}, "message": "300ns", "p2p_launch": "5us"},
}  # fmt: skip
SPOT: Final = "time_s,devices,price\n0,16,0.8\n1800,8,1.1\n3600,16,0.9\n6000,8,1.4\n"
FILES: Final[dict[str, tuple[int, Callable[[random.Random], Any]]]] = {
    "requests{}.csv": (6, requests), "adapters{}.csv": (2, adapters), "blocks.jsonl": (1, blocks),
    "images{}.csv": (3, images), "pools{}.yaml": (3, pools), "flow{}.yaml": (8, flow), "choices{}.yaml": (4, choices),
    "devices{}.yaml": (3, devices),
    "faults{}.yaml": (3, faults), "events.csv": (1, events), "cluster{}.yaml": (3, cluster), "jobs{}.csv": (6, jobs),
    "pool{}.yaml": (6, pool), "rl{}.yaml": (6, rl), "mixed{}.yaml": (3, mixed), "edge{}.yaml": (4, edge),
    "backbone{}.yaml": (4, backbone), "airan{}.yaml": (4, airan), "moe{}.yaml": (4, moe), "clients{}.csv": (4, clients),
    "mix{}.yaml": (4, mix), "demand{}.csv": (2, demand), "rates{}.csv": (2, rates), "kinds.csv": (1, kinds),
    "commands{}.yaml": (2, searched), "shares{}.yaml": (2, shares), "placement{}.yaml": (2, placement),
    "patterns{}.yaml": (3, patterns), "tpu-4x2.yaml": (1, lambda draw: TPU), "spot.csv": (1, lambda draw: SPOT),
    "mine.py": (1, lambda draw: MINE),
}  # fmt: skip
"""Name, with a place for its number -> how many there are, and what draws one. JSON is YAML too."""


def write_files(folder: Path) -> None:
    """All files, and the examples."""
    shutil.copytree(EXAMPLES, folder / "examples")
    for name, (count, draw_one) in FILES.items():
        for number in range(count):
            made = draw_one(random.Random(f"{name} {number}"))
            text = made if isinstance(made, str) else json.dumps(made, indent=1)
            (folder / name.format(number)).write_text(text, "utf-8")
