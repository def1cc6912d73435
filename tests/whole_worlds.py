"""Random scenarios of everything that a world has, and what does not add up in what comes of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from etude.machine import open_system
from etude.world.build import RunningWorld, run_scenario
from etude.world.makers import is_kind, kinds
from etude.world.outcome import outcome_of
from etude.world.scenario import Scenario, WorkloadKinds, scenario_of

PRICES = ((0, 3.0), (100, 1.0), (450, 7.0))
"""Dollars for an hour of a device from a moment on, s."""
FLOW = """name: flow
models: {m: gpt2}
sessions: 12
rate: 0.1
vary: 0.4
tasks:
  plan: {model: m, system: 200, message: 50, output: 60}
  test: {tool: shell, time: 2s, after: plan, output: 30}
  edit: {model: m, after: test, follows: plan, output: 40}
loops:
  - {of: [test, edit], stop: 0.4, most: 4}
"""


def _train(random: Any, name: str) -> dict[str, Any]:
    recover = str(random.choice(["restart", "spare", "shrink", "redistribute"]))
    job = {"train": "gpt2", "gpus": 16, "tp": int(random.choice([1, 2])), "recover": recover, "global_batch": 32}
    job |= {"checkpoint": str(random.choice(["remote:60s", "remote:30s:async"]))}
    if recover == "spare":
        job["spares"] = 1
    elif recover != "restart" and random.integers(2):
        job["lend_to"] = "chat"
    return job


def _serve(random: Any, name: str) -> dict[str, Any]:
    """`chat` has a rule for its replicas; the others are of a fixed number, with caches, stores, adapters, and prompts
    and answers apart."""
    job: dict[str, Any] = {"serve": "gpt2", "slo": "ttft=1s"}
    if name == "chat":
        most, every = int(random.integers(4, 20)), int(random.integers(2, 30))
        rule = {"replicas": f"1..{most}", "scale": f"queue:1..3,every={every}s"}
        return job | rule | {"rate": float(random.integers(1, 12)), "count": int(random.integers(20, 900))}
    if random.integers(3) == 0:
        job["disaggregate"] = str(random.choice(["1:1", "2:1", "1:3"]))
    else:
        job["replicas"] = int(random.integers(1, 4))
    if random.integers(2):
        caches = (
            "prefix",
            "prefix host=1GB",
            "blocks host=1GB@20GB/s fix=0.1",
            "prefix remote=1GB@1GB/s shared",
            "prefix host=1GB sharded link=50GB/s",
        )
        return job | {"requests": "shared.jsonl", "cache": str(random.choice(caches))}
    if random.integers(4) == 0 and "replicas" in job:
        return job | {"rate": 2, "count": 100, "barrier": True}
    return job | {"requests": "adapters.csv", "max_loras": 2}


def _workflow(random: Any, name: str) -> dict[str, Any]:
    job: dict[str, Any] = {"workflow": "flow.yaml", "cache": str(random.choice(["none", "prefix", "prefix host=1GB"]))}
    return job | ({"disaggregate": "1:1"} if random.integers(2) else {"replicas": int(random.integers(1, 3))})


def _images(random: Any, name: str) -> dict[str, Any]:
    degree = str(random.choice(["fixed:1", "fixed:2", "elastic"]))
    return {"images": "flux.1-dev", "requests": "mix:512x512@8", "rate": 1, "count": 30, "gpus": 8, "degree": degree}


def _rl(random: Any, name: str) -> dict[str, Any]:
    rollout = {"samples": int(random.integers(8, 60)), "tokens": 64, "spread": 0.5, "at_once": 16, "context": 300}
    return {"rl": "gpt2", "nodes": 1, "rollout": rollout, "train": {"time": "3s"}, "steps": 20} | (
        {"lend_to": "chat"} if random.integers(2) else {}
    )


def _jobs(random: Any, name: str) -> dict[str, Any]:
    return {
        "jobs": "jobs.csv",
        "nodes": int(random.integers(1, 3)),
        "policy": str(random.choice(["fifo", "las", "srtf"])),
    }


def _federate(random: Any, name: str) -> dict[str, Any]:
    job = {"federate": "gpt2", "clients": 4, "link": "100Mb/s"}
    if random.integers(2):
        return job | {"lora": 4, "server_devices": int(random.integers(1, 4)), "rounds": 100}
    return job | {"step": "1s", "rounds": 5, "server_devices": int(random.integers(2))}


KINDS = {"train": _train, "serve": _serve, "flow": _workflow, "images": _images, "rl": _rl, "jobs": _jobs,
         "federate": _federate}  # fmt: skip


def write_files(folder: Path) -> None:
    """What the scenarios name."""
    (folder / "flow.yaml").write_text(FLOW)
    (folder / "jobs.csv").write_text(
        "name,arrival_s,gpus,duration_s\n"
        + "".join(f"j{k},{20 * k},{4 + k % 5},{30 + 17 * k % 90}\n" for k in range(20))
    )
    random = np.random.default_rng(1)
    shared = [
        {"arrival": at, "segments": [[f"rules{k % 5}", 200], [f"own{k}", 30 + k % 90]], "output": 20 + k % 50}
        for k, at in enumerate(np.cumsum(random.exponential(0.5, 400)).tolist())
    ]
    (folder / "shared.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in shared))
    rows = [f"{0.4 * k},{50 + k % 200},{10 + k % 60},{k % 7}\n" for k in range(400)]
    (folder / "adapters.csv").write_text("arrival,prompt,output,adapter\n" + "".join(rows))
    (folder / "prices.csv").write_text("time_s,price\n" + "".join(f"{at},{price}\n" for at, price in PRICES))
    (folder / "links.csv").write_text("time_s,infiniband,nvlink\n0,1,1\n60,0.2,0.5\n200,0.6,1\n")


def whole_scenario(seed: int, folder: Path) -> Scenario:
    """A stream with a rule for its replicas, and up to four workloads of any kind, with faults, prices, a cap, and
    links that change."""
    random = np.random.default_rng([seed, 35])
    chosen = random.choice(list(KINDS), int(random.integers(1, 5)))
    workloads = {"chat": _serve(random, "chat")}
    for k, kind in enumerate(chosen):
        workloads[f"{kind}{k}"] = KINDS[kind](random, f"{kind}{k}")
    failing = random.random() < 0.8
    for one in workloads.values():
        if "workflow" in one:
            one["workflow"] = str(folder / "flow.yaml")
        if not failing and "lend_to" not in one:  # nothing that it would recover from
            one.pop("recover", None), one.pop("spares", None)
    machine: dict[str, Any] = {"system": "dgx-h100", "nodes": int(random.integers(18, 24)), "regions": ["sweden"]}
    if random.random() < 0.3:
        machine |= {"nodes": 30, "regions": ["sweden:12", "poland:18"]}
        for name, one in workloads.items():
            if "disaggregate" in one or "shared" in one.get("cache", "") or one.get("server_devices"):
                one["region"] = "poland"
            elif name == "chat" and random.integers(2):
                one |= {"region": "sweden", "round_trip": "50ms"}
    events: dict[str, Any] = {}
    if failing:
        mtbf = int(random.integers(5, 60))
        events["faults"] = f"node:mtbf={mtbf}min,repair=1min;slow:effect=slow,mtbf=9h,factor=1.5,duration=1min"
    if random.random() < 0.5:
        events["prices"] = "prices.csv"
    if random.random() < 0.4 and "train" in chosen:
        events["links"] = "links.csv"
    policies: dict[str, Any] = {"place": str(random.choice(["pack", "spread"]))}
    if any("lend_to" in one for one in workloads.values()):
        policies["share"] = str(random.choice(["lend", "never"]))
    if random.random() < 0.4 and not any(name.startswith(("jobs", "rl", "images", "federate")) for name in workloads):
        machine["power"] = f"{int(random.integers(12, 60))}kW"
    given = {
        "machine": machine, "horizon": f"{int(random.integers(60, 900))}s", "workloads": workloads, "events": events,
        "policies": policies, "seed": seed,
    }  # fmt: skip
    return scenario_of(given, str(folder / "world.yaml"), WorkloadKinds(is_kind, kinds))


def whole_world(scenario: Scenario) -> tuple[RunningWorld, dict[str, Any]]:
    """What ran, and its record."""
    world = run_scenario(scenario)
    return world, outcome_of(world).record


def wrong_sums(world: RunningWorld, record: dict[str, Any]) -> list[str]:
    """What does not add up: device time to the nanosecond, energy to the millijoule, money to a billionth."""
    found, account, scenario = [], record["account"], world.scenario
    system = open_system(scenario.machine.system)
    count, horizon = scenario.machine.nodes * system.levels[0].size, scenario.horizon_ns
    device = account["device_ns"]
    parts = {who: sum(its.values()) for who, its in device["parts"].items()}
    if device["total"] != count * horizon or sum(parts.values()) != device["total"]:
        found.append(f"device time: {parts} of {count * horizon}")
    if regions := device.get("regions"):
        for who, whole in parts.items():
            if sum(its.get(who, 0) for its in regions.values()) != whole:
                found.append(f"{who} in {regions} is not {whole}")
        for kind in ("energy_mj", "cost", "carbon_g"):
            one = account[kind]
            if one and abs(sum(one["regions"].values()) - one["total"]) > (
                1e-9 * one["total"] if kind != "energy_mj" else 0
            ):
                found.append(f"{kind}: {one['regions']} of {one['total']}")
    for who, its in device["parts"].items():
        if any(type(ns) is not int or ns < 0 for ns in its.values()):
            found.append(f"{who}: {its}")
        if parts[who] != world.machine.devices.device_ns(who, horizon):
            found.append(f"{who} used {parts[who]} ns of {world.machine.devices.device_ns(who, horizon)}")
    if energy := account["energy_mj"]:
        each = [mj for its in energy["parts"].values() for mj in its.values()]
        if any(type(mj) is not int or mj < 0 for mj in each) or sum(each) != energy["total"]:
            found.append(f"energy: {energy}")
        idle = sum(its["idle"] for its in energy["parts"].values())
        up_ns = count * horizon - parts["down"]
        if abs(idle - up_ns * system.device.idle_power_w / 1e6) > len(energy["parts"]):
            found.append(f"idle devices draw {idle} mJ")
    if cost := account["cost"]:
        if scenario.events.prices:
            ends = [*(at for at, _ in PRICES[1:]), max(horizon / 1e9, PRICES[-1][0])]
            hours = [max(min(end, horizon / 1e9) - at, 0) / 3600 for (at, _), end in zip(PRICES, ends, strict=True)]
            whole = count * sum(hour * price for hour, (_, price) in zip(hours, PRICES, strict=True))
        else:
            whole = count * horizon / 3.6e12 * system.device.price
        if abs(sum(cost["parts"].values()) - whole) > 1e-9 * whole or abs(cost["total"] - whole) > 1e-9 * whole:
            found.append(f"holders pay {cost}, and devices cost {whole}")
    for name, its in record["workloads"].items():
        if "finished" in its and its["finished"] + its.get("unfinished", 0) > its["requests"]:
            found.append(f"{name}: {its['finished']} of {its['requests']} requests")
        if "sessions" in its and its["sessions_done"] > its["sessions"]:
            found.append(f"{name}: {its['sessions_done']} of {its['sessions']} sessions")
    return found
