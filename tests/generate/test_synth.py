"""Learned synthesis: repeats found and given back, jobs made that are sound, alike and say nothing."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import etude
from etude.base.errors import FormatError, UsageError
from etude.capture.ingest import causal, runs
from etude.machine import open_system
from etude.make.generate.micro_benchmarks import MicroOptions, micro
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import generate
from etude.make.synth.grammar import folded, size, unfolded
from etude.make.synth.learned import COLUMNS, Learned, read, write
from etude.make.synth.learning import hidden, learn
from etude.make.synth.making import MakeOptions, make
from etude.make.transform.durations import with_durations
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.rounding import on_grid
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.steps.similarity import likeness
from etude.steps.step import grown
from etude.store import chakra
from etude.surface.cli import main
from toy_systems import one_level

TINY = Model(name="tiny", layers=4, hidden=64, heads=4, kv_heads=2, head_size=16, ffn=128, vocab=512, gated=True)


# --- repeats


@given(st.lists(st.integers(0, 3), max_size=60))
def test_folding_is_exact(sequence: list[int]):
    found = folded(np.array(sequence, np.int64))
    assert unfolded(found) == sequence
    assert size(found) <= len(sequence)


def test_repeats_are_found_inside_one_another():
    layer = [1, 2, 2, 2, 2, 3]
    assert folded(np.array([0, *layer * 5, 9], np.int64)) == [0, [5, [1, [4, [2]], 3]], 9]
    assert len(unfolded([0, [5, [1, [4, [2]], 3]], 9], depth=2.0)) == 2 + 10 * 6


# --- jobs


def training(**plan: object) -> Job:
    return generate(TINY, Plan(**plan)).job  # type: ignore[arg-type]


PLANS = [
    {"gpus": 4},
    {"gpus": 8, "tp": 2},
    {"gpus": 8, "zero": 3},
    {"gpus": 8, "tp": 2, "pp": 2, "global_batch": 8},
    {"gpus": 4, "pp": 4, "global_batch": 8, "schedule": "zb1p"},
    {"gpus": 8, "tp": 2, "cp": 2, "seq": 32},
]


@pytest.mark.parametrize("plan", [{"seq": 64, **p} for p in PLANS], ids=str)
def test_a_job_of_the_same_size_behaves_alike(plan: dict[str, object]):
    job = training(**plan)
    made = make(learn([job]))
    assert etude.check(made) == []
    assert (len(made), made.nodes) == (len(job), job.nodes)
    found = {row["what"]: row["difference"] for row in likeness(job, made, one_level("switch", 8))}
    assert found["kinds of nodes"] == found["kinds of collectives"] == 0
    for what in ("compute FLOPs per rank", "compute bytes per rank", "collective bytes per rank"):
        assert abs(found.get(what, 0)) < 0.03, (what, found[what])
    assert abs(found["simulated step, ns"]) < 0.08


def test_times_stay_when_names_go():
    """Products take other times than their FLOPs and bytes alone say; with times learned, the step is as long."""
    job, system = training(gpus=4, seq=64), one_level("switch", 4)
    found = {
        row["what"]: row["difference"]
        for row in likeness(job, make(learn([with_durations(job, system.device)])), system)
    }
    assert abs(found["simulated step, ns"]) < 0.05


def test_more_ranks_are_more_data_parallelism():
    """Learned on 8 ranks, made for 32: like the job that the generator makes for 32."""
    real = training(gpus=32, tp=2, seq=64)
    made = make(learn([training(gpus=8, tp=2, seq=64)]), MakeOptions(ranks=32))
    assert etude.check(made) == []
    assert sorted(map(len, _groups(made))) == sorted(map(len, _groups(real)))
    assert {tuple(g) for g in _groups(made)} == {tuple(g) for g in _groups(real)}
    found = {row["what"]: row["difference"] for row in likeness(real, made, one_level("switch", 32))}
    assert abs(found["simulated step, ns"]) < 0.05
    less = make(learn([real]), MakeOptions(ranks=8))
    assert {tuple(g) for g in _groups(less)} == {tuple(g) for g in _groups(training(gpus=8, tp=2, seq=64))}


def _groups(job: Job) -> list[list[int]]:
    used = np.unique(job.group_of)
    return [job.groups.ranks(int(g)).tolist() for g in used]  # type: ignore[union-attr]


def test_sharded_weights_are_as_many_in_all():
    """FSDP on more ranks: each gives a smaller part to a gather, and gets one of a scatter."""
    small, large = (training(gpus=n, zero=3, seq=64) for n in (4, 16))
    made = make(learn([small]), MakeOptions(ranks=16))

    def gathered(job: Job) -> int:
        t = job.traces[0]
        return int(t.in_bytes[t.collective == Collective.ALL_GATHER].sum())

    assert gathered(made) == pytest.approx(gathered(large), rel=0.03)


def test_a_sharded_optimizer_has_less_to_do_on_more_ranks():
    small, large = (with_durations(training(gpus=n, zero=1, seq=64), one_level("switch", 4).device) for n in (4, 16))
    made = make(learn([small]), MakeOptions(ranks=16))

    def moved(job: Job) -> float:
        t = job.traces[0]
        return float(t.tensor_bytes[t.kind == Kind.COMP].sum())

    assert moved(small) > 1.02 * moved(large)
    assert moved(made) == pytest.approx(moved(large), rel=0.01)


def test_steps_and_depth():
    job = training(gpus=4, seq=64)
    learned = learn([job])
    twice = make(learned, MakeOptions(steps=2))
    assert twice.nodes == 2 * job.nodes
    system = one_level("switch", 4)
    once, both = (etude.simulate(j, system, compute="roofline").makespan_ns for j in (make(learned), twice))
    assert both == pytest.approx(2 * once, rel=0.1)
    deeper = make(learned, MakeOptions(depth=3.0))
    assert etude.check(deeper) == []
    assert deeper.nodes > 1.5 * job.nodes
    assert etude.simulate(deeper, system).makespan_ns > 0


@pytest.mark.parametrize("depth", [0.5, 2.0])
def test_pipelines_of_another_depth_still_meet(depth: float):
    job = training(gpus=8, tp=2, pp=4, global_batch=8, seq=64)
    made = make(learn([job]), MakeOptions(depth=depth))
    assert etude.check(made) == []
    assert etude.simulate(made, one_level("switch", 8)).makespan_ns > 0


def test_factors():
    learned = learn([training(gpus=4, seq=64)])
    one, two = make(learned), make(learned, MakeOptions(compute=2.0, traffic=3.0))
    flops = [int(j.traces[0].flops[j.traces[0].kind == Kind.COMP].sum()) for j in (one, two)]
    sent = [int(j.traces[0].in_bytes[j.traces[0].kind == Kind.COLL].sum()) for j in (one, two)]
    assert flops[1] == pytest.approx(2 * flops[0], rel=0.01)
    assert sent[1] == pytest.approx(3 * sent[0], rel=0.01)


def run(ranks: int, steps: int, slow: float = 0.0, jitter: float = 0.0, step: float = 0.0, places: int = 40) -> Job:
    """A recorded job: each rank a host thread that launches kernels and sums once a step. Ranks differ by a factor, by
    chance at each place, and steps by a factor."""
    random = np.random.default_rng(5)
    of_rank, of_step = np.exp(slow * random.standard_normal(ranks)), np.exp(step * random.standard_normal(steps))
    builders = []
    for rank in range(ranks):
        b, last, summed = TraceBuilder(), -1, -1
        for s in range(steps):
            for place in range(places):
                usual = 1000 * (1 + place % 4) * of_rank[rank] * of_step[s] * np.exp(jitter * random.standard_normal())
                last = b.add(Kind.COMP, "abcd"[place % 4], duration_ns=round(usual), cpu=1, thread=7, step=s,
                             ctrl=[last] if last >= 0 else [])  # fmt: skip
                last_kernel = b.add(Kind.COMP, "kernel", duration_ns=500, cpu=0, stream=7, data=[last], step=s)
            summed = b.add(Kind.COLL, "sum", collective=Collective.ALL_REDUCE, in_bytes=1 << 20, group="dp", step=s,
                           data=[last_kernel])  # fmt: skip
            last = b.add(Kind.COMP, "end", duration_ns=100, cpu=1, thread=7, step=s, data=[summed])
        builders.append(b)
    return job_of("run", builders, {"dp": list(range(ranks))})


def test_the_same_seed_the_same_bytes(tmp_path: Path):
    learned = learn([run(4, 3, slow=0.1, jitter=0.1, step=0.05)])
    jobs = [make(learned, MakeOptions(seed=s, ranks=8)) for s in (1, 1, 2)]
    blobs = []
    for i, job in enumerate(jobs):
        (tmp_path / str(i)).mkdir()
        chakra.write_job(job, tmp_path / str(i))
        blobs.append(b"".join(p.read_bytes() for p in sorted((tmp_path / str(i)).iterdir())))
    assert blobs[0] == blobs[1] != blobs[2]


def spread_of_ranks(job: Job) -> float:
    sums = [job.trace(r).duration_ns[job.trace(r).cpu == 1].sum() for r in job.ranks.tolist()]
    return float(np.std(sums) / np.mean(sums))


@pytest.mark.parametrize("slow", [0.0, 0.05, 0.2])
def test_ranks_differ_as_much_as_they_did(slow: float):
    job = run(8, 2, slow=slow, jitter=0.02)
    learned = learn([job])
    assert len(learned.templates[0].roles) == 1
    made = make(learned, MakeOptions(ranks=64))
    assert etude.check(made) == []
    assert spread_of_ranks(made) == pytest.approx(spread_of_ranks(job), rel=0.3, abs=0.005)
    assert spread_of_ranks(make(learned, MakeOptions(ranks=64, spread=0))) == 0
    assert np.mean([made.trace(r).duration_ns.sum() for r in range(64)]) == pytest.approx(
        np.mean([job.trace(r).duration_ns.sum() for r in range(8)]), rel=0.02
    )


def test_steps_differ_as_much_as_they_did_and_there_are_as_many_as_wanted():
    job = run(2, 12, step=0.1)
    learned = learn([job])
    assert learned.templates[0].roles[0].order[learned.templates[0].roles[0].step][0] == 12

    def spread(job: Job) -> float:
        t = job.trace(0)
        sums = np.bincount(t.step[t.cpu == 1], t.duration_ns[t.cpu == 1])
        return float(sums.std() / sums.mean())

    made = make(learned, MakeOptions(steps=40))
    assert made.nodes * 12 == job.nodes * 40
    assert spread(made) == pytest.approx(spread(job), rel=0.3)
    system = one_level("switch", 2)
    each = [etude.simulate(j, system).makespan_ns / n for j, n in ((job, 12), (made, 40))]
    assert each[1] == pytest.approx(each[0], rel=0.05)


def test_jitter_is_told_from_how_the_program_is():
    """Places that differ always are no jitter; places that differ from step to step are nothing else."""
    still, moved = (learn([run(2, 6, jitter=j)]) for j in (0.0, 0.2))
    assert max(c.own for c in still.classes) == 0
    ops = [c for c in moved.classes if c.cpu == 1 and c.own]
    assert ops and min(c.own for c in ops) > 0.5
    times = [make(moved, MakeOptions(steps=6)).trace(r).duration_ns for r in (0, 1)]
    assert not np.array_equal(times[0], times[1])


def test_a_rank_that_begins_late_does_so_again():
    builders = []
    for rank in range(2):
        b = TraceBuilder()
        first = b.add(Kind.COMP, "host", duration_ns=50_000 * rank, cpu=1, thread=1)
        b.add(Kind.COLL, "sum", collective=Collective.ALL_REDUCE, in_bytes=1 << 20, group="dp", data=[first])
        builders.append(b)
    job = job_of("late", builders, {"dp": [0, 1]})
    made = make(learn([job]))
    assert sorted(int(made.trace(r).duration_ns[0]) for r in (0, 1)) == pytest.approx([0, 50_000], rel=0.01)
    more = make(learn([job]), MakeOptions(ranks=16))
    assert 10_000 < np.std([int(more.trace(r).duration_ns[0]) for r in range(16)]) < 50_000


def test_lanes_and_times_are_learned():
    b = TraceBuilder()
    last = -1
    for i in range(20):
        host = b.add(Kind.COMP, "launch", duration_ns=10 + i % 3, cpu=1, thread=77, ctrl=[last] if i else [])
        b.add(Kind.COMP, "kernel", duration_ns=100 + i, cpu=0, stream=7, data=[host])
        last = host
    job = job_of("j", [b])
    made = make(learn([job])).traces[0]
    assert len(made.lane_kind) == 2
    assert (made.cpu == 1).sum() == 20
    assert int(made.duration_ns.sum()) == pytest.approx(int(b.build().duration_ns.sum()), rel=0.05)


def linked(collective_group: str) -> Job:
    """As linked from a profiler's files: messages name a process group, and nobody recorded who is in it."""
    builders = []
    for rank in range(2):
        b = TraceBuilder()
        work = b.add(Kind.COMP, "work", duration_ns=1000)
        if rank:
            b.add(Kind.RECV, "nccl:recv", in_bytes=4096, src=0, tag=0, group="pp", data=[work])
        else:
            b.add(Kind.SEND, "nccl:send", in_bytes=4096, dst=1, tag=0, group="pp", data=[work])
        b.add(Kind.COLL, "sum", collective=Collective.ALL_REDUCE, in_bytes=64, group=collective_group, data=[work])
        builders.append(b)
    return job_of("linked", builders, {"dp": [0, 1]})


def test_messages_need_no_group():
    job = linked("dp")
    assert not job.groups.known.all()
    made = make(learn([job]))
    assert etude.check(made) == []
    assert [int((made.trace(r).kind == Kind.COLL).sum()) for r in (0, 1)] == [1, 1]
    with pytest.raises(UsageError, match="the members of group `pp` are not known"):
        learn([linked("pp")])


def test_many_jobs_are_one_model():
    learned = learn([training(gpus=4, seq=64), training(gpus=8, tp=2, seq=64)])
    assert [t.ranks for t in learned.templates] == [4, 8]
    assert len(make(learned, MakeOptions(ranks=16))) == 16
    assert learned.template(5).ranks == 4
    assert learned.template(100).ranks == 8


# --- what it says and does not say


def test_nothing_of_the_original_is_in_the_model(tmp_path: Path, shared: Path):
    job = etude.open(shared / "oracle" / "stg" / "moe_dp2_ep4")
    learned = learn([job])
    path = tmp_path / "model.json"
    write(learned, path)
    blob = path.read_bytes()
    names = set().union(*(set(t.coded("name")[1]) for t in job.traces))
    assert not [n for n in names if len(n) > 4 and n.encode() in blob]
    exact = {int(v) for t in job.traces for c in COLUMNS for v in t.__getattribute__(c) if v != UNKNOWN and v > 1000}
    assert not [v for v in exact if str(v).encode() in blob]
    made = make(read(path))
    (tmp_path / "out").mkdir()
    chakra.write_job(made, tmp_path / "out")
    out = b"".join(p.read_bytes() for p in (tmp_path / "out").iterdir())
    assert not [n for n in names if len(n) > 4 and n.encode() in out]
    assert len(blob) < 20_000
    assert hidden([job])["names"] > 0


def test_the_grid_has_no_power_of_two():
    values = np.array([1 << k for k in range(10, 50)])
    assert not set(on_grid(values, 64).tolist()) & set(values.tolist())
    assert np.abs(on_grid(values, 64) / values - 1).max() < 0.006
    assert on_grid(np.array([0, 1, 3]), 64).tolist() == [0, 1, 3]


# --- what cannot be


def test_what_cannot_be_is_refused():
    learned = learn([training(gpus=8, tp=2, seq=64)])
    with pytest.raises(UsageError, match="not a multiple of 8"):
        make(learned, MakeOptions(ranks=12))
    with pytest.raises(UsageError, match="cannot be cut"):
        make(learned, MakeOptions(ranks=3))
    with pytest.raises(UsageError, match="no job"):
        learn([])
    alone = micro("ring", MicroOptions(ranks=4))
    assert etude.check(make(learn([alone]), MakeOptions(ranks=8))) == []


@pytest.mark.parametrize("damage", ["{", "{}", "classes", "order", "groups", "runs", "knots", "step"])
def test_a_damaged_model_is_refused(damage: str, tmp_path: Path):
    path = tmp_path / "m.json"
    write(learn([training(gpus=4, tp=2, seq=64)]), path)
    text = path.read_text()
    if damage in ("{", "{}"):
        text = damage
    else:
        raw = json.loads(text)
        if damage == "classes":
            raw["classes"] = raw["classes"][:1]
        elif damage == "order":
            raw["templates"][0]["roles"][0]["order"][0][1].append(10**6)
        elif damage == "knots":
            raw["host"] = {"rank": [[0, 1], [-1, 2]]}
        elif damage == "step":
            raw["templates"][0]["roles"][0]["step"] = 10**6
        elif damage == "groups":
            raw["templates"][0]["group_of"][0] = [[4, 99]]
        else:
            raw["templates"][0]["role_of"] = [[3, 0]]
        text = json.dumps(raw)
    path.write_text(text)
    with pytest.raises(FormatError):
        read(path)


@pytest.mark.parametrize(("version", "hint"), [(1, "learn it again"), (99, "newer")])
def test_a_model_of_another_version_is_refused(version: int, hint: str, tmp_path: Path):
    path = tmp_path / "m.json"
    write(learn([training(gpus=4, seq=64)]), path)
    path.write_text(path.read_text().replace('"version":2', f'"version":{version}'))
    with pytest.raises(FormatError, match=f"version {version}.*\n.*{hint}"):
        read(path)


@pytest.mark.parametrize("at_least", [2, 5, 50])
def test_a_number_stands_for_as_many_nodes_as_wanted(at_least: int):
    """Rare classes are merged, or rounded to half an octave: a single odd time is not in the model."""
    job = run(4, 3, slow=0.1, jitter=0.1)
    odd = 987_654_321
    values = {2: {"duration_ns": np.where(np.arange(len(job.traces[2])) == 10, odd, job.traces[2].duration_ns)}}
    learned = learn([job.replace(values=values)], at_least)
    made = make(learned, MakeOptions(ranks=8))
    assert etude.check(made) == []
    assert etude.simulate(made, one_level("switch", 8)).makespan_ns > 0
    text = msgspec.json.encode(learned).decode()
    near = [n for n in re.findall(r"\d+", text) if 0.93 < float(n) / odd < 1.07]
    assert not near
    coarse = {round(2 ** ((k + 0.5) / 2)) for k in range(100)}
    counts = np.bincount(np.concatenate([t.kind for t in job.traces]))
    for one in learned.classes:
        if one.kind == Kind.COLL and counts[Kind.COLL] < at_least:
            assert {int(s.mean) for s in one.sketches.values()} <= coarse


def test_an_empty_job_is_refused():
    with pytest.raises(UsageError, match="nothing to learn"):
        learn([job_of("empty", [TraceBuilder()])])


def test_the_model_comes_back(tmp_path: Path):
    learned = learn([training(gpus=4, seq=64)])
    write(learned, tmp_path / "m.json")
    assert read(tmp_path / "m.json") == learned
    assert isinstance(msgspec.json.decode((tmp_path / "m.json").read_bytes(), type=Learned), Learned)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "in").mkdir()
    chakra.write_job(micro("all_reduce", MicroOptions(ranks=4, repeat=8, compute_ns=1000)), tmp_path / "in")
    model, out = tmp_path / "m.json", tmp_path / "job"
    assert main(["learn", str(tmp_path / "in"), "-o", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == 64
    assert main(["generate", "learned", str(model), "--ranks", "8", "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 8
    assert main(["similarity", str(tmp_path / "in"), str(out), "--system", "dgx-h100", "--json"]) == 0
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["kinds of nodes"]["difference"] == 0
    assert abs(rows["collective bytes per rank"]["difference"]) < 0.01
    assert "simulated step, ns" in rows


# --- how far copies are


def test_a_model_says_how_far_its_copies_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Of jobs of 2 and of 4 ranks: each against a copy of its own, and the larger also against one of the smaller."""
    folders = []
    for gpus in (2, 4):
        folders.append(str(tmp_path / f"of{gpus}"))
        etude.convert(training(gpus=gpus), folders[-1])
    path = tmp_path / "model.json"
    assert main(["learn", *folders, "-o", str(path), "--times-on", "dgx-h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["copies"]
    said = [(one["ranks"], one["learned_from"], one["withheld"]) for one in found]
    assert said == [(2, [2, 4], False), (2, [4], True), (4, [2, 4], False), (4, [2], True)]
    system = grown(open_system("dgx-h100"), 4)
    two, real = (with_durations(etude.open(folder), system.device) for folder in folders)
    lengths = [etude.simulate(job, system).makespan_ns for job in (real, make(learn([two]), MakeOptions(ranks=4)))]
    assert found[3]["step"] == pytest.approx(lengths[1] / lengths[0] - 1, abs=1e-4)
    assert abs(found[3]["step"]) < 0.1
    assert main(["generate", "learned", str(path), "--ranks", "8", "-o", str(tmp_path / "job")]) == 0
    asked = capsys.readouterr().err
    assert "no job of 8 ranks was learned from; the nearest that was measured: step" in asked
    assert etude.open(tmp_path / "job").provenance["difference"] in asked


def test_a_model_that_was_not_measured_says_so(tmp_path: Path):
    learned = learn([training(gpus=2)])
    assert learned.difference_at(2) == "how far copies are from real jobs was not measured when this model was learned"
    measured = learned.with_difference(ranks=2, learned_from=(2,), withheld=False, step=0.004, system="dgx-h100")
    assert measured.difference_at(2) == "a copy of 2 ranks: step +0.4% against its own job, both simulated on dgx-h100"
    assert "how far this copy is from a real one is not known" in measured.difference_at(16)


def test_half_of_the_ranks_may_lack_a_role(shared: Path):
    """Four processes on two cores: each has a program of its own, and two of them are cut out."""
    _, ranks = runs.find_run(shared / "traces" / "torch_cpu" / "ddp_4p")
    learned = learn([causal.to_job("ddp", runs.link_run(ranks))])
    assert len(learned.templates[0].roles) > 2
    assert etude.check(make(learned, MakeOptions(ranks=2))) == []
