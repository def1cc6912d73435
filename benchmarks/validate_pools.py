"""Pools and shared devices held against closed forms and naive twins, and how long they take.

    python benchmarks/validate_pools.py [--part queues|shares|speed]

queues: M/M/c against Erlang, Little's law, M/D/1 of services, nodes that come and go.
shares: fair shares and Gavel's against naive twins: filling drop by drop, and a grid over all allocations.
speed: CPU seconds of fair and gavel over many jobs, of 32 tenants, of rollouts on lent devices, of services.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from etude.world.fleet.rl import beside, read_borrow, read_rl, rl_record
from etude.world.fleet.services import read_services, serve_services
from etude.world.fleet.services.loop import drawn, run_turns
from etude.world.fleet.services.spec import Service, Services
from etude.world.fleet.sharing import read_pool, share, shared_record, shared_tables

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def row(what: str, *values: Any) -> None:
    print(f"{what:70s}", *values, flush=True)


def pool_of(nodes: str, lines: list[str]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "j.csv").write_text("\n".join(lines) + "\n")
        Path(folder, "p.yaml").write_text(f"nodes: {nodes}\njobs: j.csv\n")
        return read_pool(Path(folder, "p.yaml"))


# -- queues ------------------------------------------------------------------------------------------------------------


def erlang(servers: int, load: float) -> float:
    """Mean wait in M/M/c with services of mean 1."""
    offered = servers * load
    last = offered**servers / math.factorial(servers) / (1 - load)
    delayed = last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)
    return delayed / (servers * (1 - load))


def queue(servers: int, load: float, count: int, seed: int) -> Any:
    rng = np.random.default_rng((seed, servers))
    arrival = np.cumsum(rng.exponential(1 / (load * servers), count))
    lines = [f"{a:.6f},1,{d:.6f}" for a, d in zip(arrival, rng.exponential(1, count), strict=True)]
    pool = pool_of(f"[{{gpus: {servers}}}]", ["arrival_s,gpus,duration_s", *lines])
    return share(pool.cluster, pool.jobs, "fifo")


def queues() -> None:
    for servers, load in ((1, 0.7), (4, 0.8), (16, 0.9)):
        found = [queue(servers, load, 10_000, seed) for seed in range(5)]
        waits = np.array([one.waited_ns.mean() / 1e9 for one in found])
        error = waits.std(ddof=1) / math.sqrt(len(waits))
        told = f"{waits.mean():.3f}, {erlang(servers, load):.3f} ({(waits.mean() - erlang(servers, load)) / error:+.1f}"
        row(f"M/M/{servers}, load {load}: mean wait and Erlang's, 5 seeds", f"{told} standard errors)")
    states, jobs = shared_tables(found[0])["states"], shared_tables(found[0])["jobs"]
    time_s, there = states["time_s"].to_numpy(), states["running"].to_numpy() + states["waiting"].to_numpy()
    inside = float((np.diff(time_s) * there[:-1]).sum())
    spent = float((jobs["end_s"].to_numpy() - jobs["arrival_s"].to_numpy()).sum())
    row("Little: jobs in the queue over time, over the sum of their times", f"1 {inside / spent - 1:+.0e}")
    spec = Services(system="dgx-a100", services=[], load=0.0, batch=1, count=20_000, policy="fifo")
    service = [Service(model="constant", rate=70.0)]
    waits = []
    for seed in range(5):
        of, arrival = drawn([70.0], spec.count, seed)
        turns = run_turns(spec, service, [np.array([[10_000_000]])], of, arrival)
        waits.append(float((turns.start_ns - turns.arrival_ns).mean()) / 1e6)
    wanted, error = 0.7 * 10 / (2 * 0.3), np.std(waits, ddof=1) / math.sqrt(5)
    told = f"{np.mean(waits):.3f}, {wanted:.3f} ms ({(np.mean(waits) - wanted) / error:+.1f} standard errors)"
    row("M/D/1 of a service, 10 ms at load 0.7: mean wait and closed form", told)
    found = []
    for seed in range(5):
        pool = pool_of("[{count: 50, gpus: 8, mtbf: 2h, back: 30min}, {gpus: 1, kind: x}]",
                       ["arrival_s,gpus,duration_s,kind", "0,1,400000,x"])  # fmt: skip
        ran = share(pool.cluster, pool.jobs, "fifo", seed=seed)
        found.append((ran.there_ns / 4e14 - 1) / 400)
    error = np.std(found, ddof=1) / math.sqrt(5)
    told = f"{np.mean(found):.4f}, 0.8000 ({(np.mean(found) - 0.8) / error:+.1f} standard errors)"
    row("two states, up 2 h and away 30 min: part there and closed form", told)


# -- shares ------------------------------------------------------------------------------------------------------------


def drop_by_drop(asks: np.ndarray, weights: np.ndarray, devices: float, drops: int = 2_000) -> np.ndarray:
    """Max-min by weight: whoever has least for its weight and wants more gets the next drop."""
    got, drop = np.zeros(len(asks)), devices / drops
    for _ in range(drops):
        open_to = got < asks - 1e-12
        if not open_to.any():
            break
        k = int(np.where(open_to, got / weights, np.inf).argmin())
        got[k] = min(got[k] + drop, asks[k])
    return got


def shares() -> None:
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(40):
        n = int(rng.integers(2, 7))
        asks, weights = rng.integers(1, 17, n), rng.integers(1, 6, n)
        fair = drop_by_drop(asks.astype(float), weights.astype(float), 16.0)
        # work that all finish at one instant if their shares are as they should be
        lines = [f"0,{a},{100 * f / a:.9f},{w}" for a, f, w in zip(asks, fair, weights, strict=True)]
        pool = pool_of("[{count: 2, gpus: 8}]", ["arrival_s,gpus,duration_s,weight", *lines])
        ends = share(pool.cluster, pool.jobs, "fair").end_ns / 1e9
        worst = max(worst, float(abs(ends / 100 - 1).max()))
    row("fair: 40 cases of shares filled drop by drop, ends off by at most", f"{worst:.1e} (a drop is 1/2,000)")
    worst = 0.0
    for _ in range(20):
        slow = rng.uniform(0.2, 0.9, 2).round(2)
        a, b = np.meshgrid(np.linspace(0, 1, 401), np.linspace(0, 1, 401))
        equal = 0.5 + 0.5 * slow
        least = np.minimum((a + slow[0] * b) / equal[0], ((1 - a) + slow[1] * (1 - b)) / equal[1])
        lines = [f"0,8,{100 * equal[k] * float(least.max()):.9f},h100:1;a100:{slow[k]}" for k in range(2)]
        pool = pool_of("[{gpus: 4, kind: h100}, {gpus: 4, kind: a100}]", ["arrival_s,gpus,duration_s,rates", *lines])
        ends = share(pool.cluster, pool.jobs, "gavel").end_ns / 1e9
        worst = max(worst, float(abs(ends / 200 - 1).max()))
    row("gavel: 20 pairs of jobs on two kinds, a grid of 401 x 401, off by at most", f"{worst:.1e}")


# -- speed -------------------------------------------------------------------------------------------------------------


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    before = time.process_time()
    found = run()
    return time.process_time() - before, found


def speed() -> None:
    rng = np.random.default_rng(0)
    lines = ["arrival_s,gpus,duration_s,weight,rates"]
    for arrival in np.cumsum(rng.exponential(60, 100)):
        gpus, duration = int(2 ** rng.integers(0, 6)), rng.lognormal(7, 1)
        lines.append(f"{arrival:.1f},{gpus},{duration:.1f},1,h100:1;a100:{rng.uniform(0.3, 0.7):.2f}")
    pool = pool_of("[{count: 8, gpus: 8, kind: h100}, {count: 8, gpus: 8, kind: a100}]", lines)
    for policy in ("fair", "gavel"):
        took, ran = timed(lambda policy=policy: share(pool.cluster, pool.jobs, policy))  # type: ignore[misc]
        found = shared_record(ran, policy=policy)
        off = abs(sum(found["device_s"][k] for k in ("useful", "redone", "set_up", "idle")) / found["device_s"]["there"]
                  - 1)  # fmt: skip
        told = (
            f"{took:.1f} CPU s, {found['jct_s']['mean'] / 3600:.2f} h from arrival to end, device seconds off {off:.0e}"
        )
        row(f"{policy}: 100 jobs on 128 devices of two kinds", told)
    for name, change in (("rl.yaml", {"tenants": 32}), ("rose.yaml", {})):
        given = read_pool(EXAMPLES / name)
        assert given.rl is not None
        spec, borrow = read_rl(given.rl | change, name), read_borrow(given.borrow, given.streams, name)
        beside(given.cluster, spec, given.streams, borrow, name)  # compiled and predicted
        took, ran = timed(lambda: beside(given.cluster, spec, given.streams, borrow, name)[0])  # noqa: B023
        found = rl_record(ran)
        off = abs(sum(found["device_s"][k] for k in ("useful", "redone", "set_up", "idle")) / found["device_s"]["there"]
                  - 1)  # fmt: skip
        told = f"{took:.1f} CPU s, {found['tokens']:,.0f} tokens, device seconds off by {off:.0e}"
        row(f"{name} {change or 'with lent devices'}", told)
    spec_of, services = read_services(EXAMPLES / "edge.yaml")
    serve_services(spec_of, services)
    took, turns = timed(lambda: serve_services(spec_of, services))
    row("edge.yaml: 2,000 requests, three services, stability", f"{took:.1f} CPU s, {turns.batches:,} batches")


def main() -> None:
    parts = {"queues": queues, "shares": shares, "speed": speed}
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--part", choices=list(parts), help="This part alone.")
    given = ask.parse_args()
    for name, run in parts.items():
        if given.part in (None, name):
            run()


if __name__ == "__main__":
    main()
