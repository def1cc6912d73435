"""Fleets held against closed forms and published runs.

    python benchmarks/validate_fleet.py [--seeds 1000] [--shared ../shared]

Inputs of the Llama 3 run were fixed before its result was seen: interruptions by cause, GPUs and days from the paper
(arXiv 2407.21783); storage of 2 TB/s that all nodes share (the same paper's sustained rate); steps as predicted;
detection of 1 min, 10 min for watchdog timeouts, restarts of 5 min: the defaults of `etude fleet`, assumptions. Nodes
are always replaced.
"""

import argparse
import math
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fault_in_step import fault_in_step

from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.machine.system import Device, Level, LevelKind, System
from etude.make.generate import Plan, generate
from etude.make.generate.model import open_model
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.world.fleet import Recovery, parse_checkpoints, predicted_costs, simulate_fleet
from etude.world.fleet.costs import Config, Costs
from etude.world.fleet.events import draw
from etude.world.fleet.faults import open_faults
from etude.world.fleet.federated import Swarm, federate
from etude.world.fleet.federated.clients import alike
from etude.world.fleet.sharing import read_cluster, read_jobs, share, shared_record

DAY = 86_400 * 10**9


def llama3_costs() -> Costs:
    plan = Plan(gpus=16384, tp=8, pp=16, zero=1, recompute="selective:norm,activation")
    return predicted_costs(open_model("llama3-405b"), plan, open_system("dgx-h100"), stack=open_stack("default"))


def row(what: str, *values: Any) -> None:
    print(f"{what:58s}", *values)


def llama3(costs: Costs) -> None:
    print("\nLlama 3 405B, 54 days, 16,384 H100 (published: more than 90% effective training time)")
    print(f"step {costs.healthy.step_ns / 1e9:.3f} s, state {costs.state_bytes / 1e12:.2f} TB")
    for text in ("local:5min,remote:1h", "local:5min,peer:5min,remote:1h", "remote:auto:rate=10GB/s:total=2TB/s"):
        parts: list[dict[str, float]] = []
        before = time.process_time()
        for seed in range(5):
            ran = simulate_fleet(costs, days=54, faults="llama3", tiers=parse_checkpoints(text), seed=seed)
            found, felt = ran.record(), ran.ran.hit
            with_nodes = int((felt & (ran.events.nodes > 0)).sum()) / max(int(felt.sum()), 1)
            lost = {name: s / found["duration_s"] for name, s in found["lost_s"].items()}
            count = found["interruptions"]
            parts.append({"useful": found["useful_fraction"], **lost, "interruptions": count, "nodes": with_nodes,
                          "each": found["lost_s"]["redo"] / count / 60})  # fmt: skip
            every = f" (every {found['interval']['best_s']:.0f} s)" if "interval" in found else ""
        mean = {name: float(np.mean([p[name] for p in parts])) for name in parts[0]}
        shares = [name for name in mean if name not in ("interruptions", "nodes", "each") and mean[name] > 5e-5]
        told = ", ".join(f"{name} {mean[name]:.2%}" for name in shares)
        row(text + every, told)
        told = f"{mean['nodes']:.1%} with a node, {mean['each']:.1f} min done again each"
        row(
            "",
            f"{mean['interruptions']:.0f} interruptions, {told}; {(time.process_time() - before) / 5:.1f} CPU s a run",
        )


def counts(seeds: int) -> None:
    mix = open_faults("llama3")
    found = [len(draw(mix, nodes=2048, gpus_per_node=8, horizon_ns=54 * DAY, seed=s)) for s in range(seeds)]
    error = math.sqrt(419 / seeds)
    off = (np.mean(found) - 419) / error
    row(
        f"\nevents of 54 days, mean over {seeds:,} seeds",
        f"{np.mean(found):.2f} (419 expected, {off:+.1f} standard errors)",
    )
    row("variance over mean (1 expected)", f"{np.var(found) / np.mean(found):.3f}")


def young() -> None:
    print("\nbest interval over Young's, M = 3.09 h, 200 days, four seeds, grid of factors of 1.41")
    for save_s in (5, 30, 120):
        costs = Costs(Config(8192, 10**9, 1000), 8, 8, 1024.0 * save_s, 0.0, 1.0)
        tiers = parse_checkpoints("remote:auto:rate=1B/s")
        it = simulate_fleet(costs, days=200, faults="crash:scope=process,mtbf=3.09h", tiers=tiers).searched
        assert it is not None
        row(f"  saves of {save_s} s", f"{it.best_s / it.young_s:.2f} ({it.best_s:.0f} s, Daly {it.daly_s:.0f} s)")


def availability() -> None:
    costs = Costs(Config(8, 10**10, 100), 8, 8, 8.0, 0.0, 1.0)
    faults = "node:mtbf=100h,repair=25h,repair_spread=exponential"
    found = simulate_fleet(costs, days=365, faults=faults, recovery=Recovery(spares="99")).record()
    row("\nnodes up, 100 of them, up 100 h and down 25 h (0.8)", f"{found['node_availability']:.4f}")


def month(costs: Costs) -> None:
    """1,000 faults in 30 days on 16,384 GPUs, after step costs."""
    tiers = parse_checkpoints("local:5min,remote:1h")
    for recover in ("restart", "spare", "redistribute"):
        costs.at("redistribute", costs.nodes - 1)
        before = time.process_time()
        found = simulate_fleet(
            costs, days=30, faults="node:mtbf=1474h,repair=1h", tiers=tiers, recover=recover
        ).record()
        took = time.process_time() - before
        told = f"{took:.1f} CPU s, {found['useful_fraction']:.1%} useful"
        row(f"30 days, {found['interruptions']:,} interruptions, {recover}", told)


def erlang() -> None:
    """M/M/c, first come first served."""
    for servers, load in ((1, 0.7), (4, 0.8), (16, 0.9)):
        rng, count = np.random.default_rng(0), 60_000
        arrival = np.cumsum(rng.exponential(1 / (load * servers), count))
        with tempfile.TemporaryDirectory() as folder:
            lines = [f"{a:.6f},1,{d:.6f}" for a, d in zip(arrival, rng.exponential(1, count), strict=True)]
            Path(folder, "j.csv").write_text("arrival_s,gpus,duration_s\n" + "\n".join(lines))
            Path(folder, "c.yaml").write_text(f"gpus: {servers}\nnode_gpus: {servers}\n")
            found = share(read_cluster(f"{folder}/c.yaml"), read_jobs(f"{folder}/j.csv"), "fifo")
        offered = servers * load
        last = offered**servers / math.factorial(servers) / (1 - load)
        delayed = last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)
        wait = delayed / (servers * (1 - load))
        row(f"M/M/{servers}, load {load}: mean wait, Erlang's", f"{found.waited_ns.mean() / 1e9:.3f}, {wait:.3f}")


def alibaba(shared: Path) -> None:
    nodes, pods = shared / "clusters/alibaba_2023_nodes.csv", shared / "clusters/alibaba_2023_pods.csv"
    if not pods.is_file():
        print(f"no {pods}: the pods are left out", file=sys.stderr)
        return
    cluster, jobs = read_cluster(nodes), read_jobs(pods)
    print(f"\n{len(jobs):,} pods on {len(cluster):,} nodes with {cluster.devices:,} GPUs")
    for policy in ("fifo", "backfill", "fair", "las", "srtf"):
        before = time.process_time()
        found = shared_record(share(cluster, jobs, policy))
        took = time.process_time() - before
        wait, recorded = found["wait_s"]["mean"], found["recorded_wait_s"]["mean"]
        told = f"{took:.1f} CPU s, mean wait {wait:.1f} s (recorded {recorded:.1f} s)"
        row(f"  {policy}", f"{told}, {found['utilisation']:.2%} in use")


def rounds() -> None:
    """1,000 clients, 500 rounds: some of them, or all that are there."""
    rng, n = np.random.default_rng(0), 1000
    links, step = rng.uniform(1e6, 2e7, (2, n)), rng.uniform(0.1, 2.0, n)
    who = alike(tuple(map(str, range(n))), step, links[0], links[1], available=np.full(n, 0.8))
    federate(who, model_bytes=1e8, rounds=1, count=2, server_bytes_per_s=1e9)
    for count, limit, sample in (
        (100, 0.0, "uniform"),
        (100, 2e8, "uniform"),
        (100, 2e8, "awpsp"),
        (n, 2e8, "uniform"),
    ):
        before = time.process_time()
        found = federate(
            who, model_bytes=1e8, rounds=500, count=count, steps=10, server_bytes_per_s=limit, sample=sample
        )
        told = f"{time.process_time() - before:.1f} CPU s, {found.round_s.mean():.1f} s a round"
        row(f"500 rounds, {count:,} of {n:,} clients, {sample}, server {limit / 1e9:g} GB/s", told)


def swarms() -> None:
    """Updates of 140 GB in 100 chunks, links of 7 to 10 Gb/s."""
    for n in (25, 50, 100, 200):
        link = np.random.default_rng(0).uniform(7, 10, n) * 1e9 / 8
        who = alike(tuple(map(str, range(n))), np.zeros(n), link, link)
        told = []
        for part in (None, 0.0, 0.05, 0.1):
            rules = Swarm(chunk_bytes=1.4e9) if part is None else Swarm(
                chunk_bytes=1.4e9, warmup=0.1, lag_ns=part * (n - 1) * 140e9 / link.min() * 1e9
            )  # fmt: skip
            before = time.process_time()
            found = federate(who, model_bytes=140e9, rounds=1, count=n, swarm=rules).summary()
            took = time.process_time() - before
            name = "plain" if part is None else f"lags to {part:.0%}"
            told.append(f"{name} {found['of_bound']:.1%} ({found['warmup_share']:.1%} warm-up)")
        row(f"swarm of {n}: part of the max-flow bound", f"{'; '.join(told)}; {took:.1f} CPU s")


def pools() -> None:
    """500 jobs on own and spot nodes by each policy, 32 tenants, and rollouts beside 3,000 requests."""
    from etude.world.fleet.rl import beside, read_borrow, read_rl, rl_record
    from etude.world.fleet.sharing import read_pool

    rng = np.random.default_rng(0)
    lines = ["arrival_s,gpus,min_gpus,max_gpus,duration_s,harvest,weight,save_s,rates"]
    for k, arrival in enumerate(np.cumsum(rng.exponential(60, 500))):
        gpus = int(2 ** rng.integers(0, 6))
        least, most = max(gpus // 4, 1), gpus * 2
        duration = rng.lognormal(7, 1)
        lines.append(
            f"{arrival:.1f},{gpus},{least},{most},{duration:.1f},{k % 2},1,600,h100:1;a100:{rng.uniform(0.3, 0.7):.2f}"
        )
    spot = "{count: 8, gpus: 8, kind: a100, price: 0.4, mtbf: 4h, back: 30min}"
    nodes = f"[{{count: 8, gpus: 8, kind: h100, price: 2.5}}, {spot}]"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "j.csv").write_text("\n".join(lines) + "\n")
        Path(folder, "p.yaml").write_text(f"nodes: {nodes}\njobs: j.csv\nswitch: 30s\nstart: 30s\nmigrate: 30s\n")
        pool = read_pool(Path(folder, "p.yaml"))
        assert pool.jobs is not None
        print(f"\n{len(pool.jobs):,} jobs on {pool.cluster.devices} devices, half of them on spot nodes")
        for policy in ("backfill", "las", "elastic", "harvest", "fair", "gavel"):
            before = time.process_time()
            found = shared_record(share(pool.cluster, pool.jobs, policy, times=pool.times))
            took, parts = time.process_time() - before, found["device_s"]
            off = abs(sum(parts[k] for k in ("useful", "redone", "set_up", "idle")) / parts["there"] - 1)
            jct_h, cost = found["jct_s"]["mean"] / 3600, found["cost"]
            told = f"{took:.1f} CPU s, {jct_h:.2f} h from arrival to end, {cost:,.0f} dollars"
            row(f"  {policy}", f"{told}, device seconds off by {off:.0e}")
    here = Path(__file__).resolve().parent.parent / "examples"
    for name, change in (("rl.yaml", {"tenants": 32}), ("rose.yaml", {})):
        pool = read_pool(here / name)
        assert pool.rl is not None
        spec, borrow = read_rl(pool.rl | change, name), read_borrow(pool.borrow, pool.streams, name)
        beside(pool.cluster, spec, pool.streams, borrow, name)  # compiled and predicted
        before = time.process_time()
        found = rl_record(beside(pool.cluster, spec, pool.streams, borrow, name)[0])
        took, parts = time.process_time() - before, found["device_s"]
        off = abs(sum(parts[k] for k in ("useful", "redone", "set_up", "idle")) / parts["there"] - 1)
        told = f"{took:.1f} CPU s for {found['samples']:,} samples, {found['tokens']:,.0f} tokens"
        row(f"{name} {change or ''}", f"{told}, device seconds off by {off:.0e}")


def fabric() -> None:
    """Jobs beside each other: two equal all-reduces, then two training steps, on links that they share or do not."""
    from etude.run.simulate import Options
    from etude.run.simulate.options import Network
    from etude.run.simulate.together import simulate_jobs

    def narrow(times: float) -> System:
        found = open_system("dgx-h100").for_ranks(16)
        return found.replace(levels=(found.levels[0], replace(found.levels[1], rails=False, oversubscription=times)))

    def sums(ranks: int) -> Job:
        builders = [TraceBuilder() for _ in range(ranks)]
        for b in builders:
            b.add(Kind.COLL, "sum", collective=Collective.ALL_REDUCE, in_bytes=1 << 30, group="g")
        return job_of("sum", builders, {"g": list(range(ranks))})

    def slower(job: Job, on: System, network: str, *places: list[list[int]]) -> str:
        found = [
            simulate_jobs([job, job], on, Options(network=Network(network)), places=put).job_table() for put in places
        ]
        return "; ".join(" and ".join(f"{x:.2f}x" for x in table["slowdown"].to_pylist()) for table in found)

    made = generate(open_model("llama3-8b"), Plan(gpus=8, tp=1, zero=1, global_batch=8, seq=2048))
    across = [[*range(4), *range(8, 12)], [*range(4, 8), *range(12, 16)]]
    apart = [[*range(8)], [*range(8, 16)]]
    levels = [
        Level(name=n, kind=LevelKind.SWITCH, size=2, bandwidth_bytes_per_s=1e9, oversubscription=o)
        for n, o in (("in", 1.0), ("out", 2.0))
    ]
    plain = System(name="plain", device=Device(name="d"), levels=tuple(levels))
    print("\nslow-down of two equal jobs: over the same links between two nodes; each inside its node")
    for network in ("links", "flow"):
        told = slower(sums(2), plain, network, [[0, 2], [1, 3]], [[0, 1], [2, 3]])
        row(f"  all-reduce of 1 GiB, links without latency, {network}", told)
    for what, job in (("all-reduce of 1 GiB", sums(8)), ("step of llama3-8b, ZeRO 1", made.job)):
        for network in ("links", "flow"):
            for times in (1.0, 2.0):
                told = slower(job, narrow(times), network, across, apart)
                row(f"  {what}, 16 H100, {network}, {times:g}:1", told)


def middle() -> None:
    """One step with one fault, node by node through the engine, and by the long loop."""
    model, system = replace(open_model("llama3-8b"), layers=4), open_system("dgx-h100")
    times = Recovery(detect_ns=5e6, restart_ns=7e6, regroup_ns=3e6)
    plans = {"tp 8 dp 4": Plan(gpus=32, tp=8, zero=0, micro_batch=1, global_batch=32, seq=1024),
             "tp 8 pp 2 dp 4": Plan(gpus=64, tp=8, pp=2, zero=0, micro_batch=1, global_batch=32, seq=1024)}  # fmt: skip
    print("\none step with one replica lost in the middle: end of the step node by node, and the loop's less that")
    apart: list[int] = []
    for name, plan in plans.items():
        costs = predicted_costs(model, plan, system, energy=False)
        step_ns, nodes = costs.healthy.step_ns, costs.replica_gpus // costs.gpus_per_node
        for recover in ("restart", "shrink", "redistribute"):
            told = []
            for part in (0.05, 0.3, 0.6, 0.9):
                at_ns = round(part * step_ns)
                found = fault_in_step(model, plan, system, at_ns=at_ns, replicas=1, recover=recover, recovery=times)
                with tempfile.TemporaryDirectory() as folder:
                    file = Path(folder, "fault.csv")
                    fault = f"{at_ns / 1e9:.9f},x,stop,node,{costs.nodes - nodes},{nodes},9e6"
                    file.write_text(f"time_s,name,effect,scope,node,nodes,duration_s\n{fault}\n")
                    ran = simulate_fleet(
                        costs, days=found.end_ns * 2 / DAY, faults=str(file), recover=recover, recovery=times
                    ).ran
                ended = next(r for r in ran.account.rows if r.steps)
                end_ns = ended.end_ns - (ended.steps - 1) * ((ended.end_ns - ended.start_ns) // ended.steps)
                kept = f" ({found.kept} kept)" if recover == "redistribute" else ""
                told.append(f"{found.end_ns / step_ns:.2f}{kept}, {end_ns - found.end_ns:+d} ns")
                apart.append(abs(end_ns - found.end_ns))
            row(f"  {name}, {recover}, at 5, 30, 60, 90% of the step", "; ".join(told))
    row("  the two ends are apart by at most", f"{max(apart)} ns in {len(apart)} cases")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--part", choices=["fabric", "middle", "pools"], help="This part alone.")
    ask.add_argument("--seeds", type=int, default=1000)
    ask.add_argument("--shared", type=Path, default=Path("../shared"))
    given = ask.parse_args()
    if given.part:
        {"fabric": fabric, "middle": middle, "pools": pools}[given.part]()
        return
    counts(given.seeds)
    availability()
    young()
    print()
    erlang()
    rounds()
    swarms()
    pools()
    fabric()
    middle()
    alibaba(given.shared)
    costs = llama3_costs()
    llama3(costs)
    print()
    month(costs)


if __name__ == "__main__":
    main()
