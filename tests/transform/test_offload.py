"""offload: loads and stores worked out by hand; double-buffered layers by their closed form."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.analyse.memory import levels
from etude.base.errors import ClusterError, UsageError
from etude.cost.tiers import streamed_ns
from etude.machine import open_system
from etude.machine.system import System
from etude.machine.tier import Tier
from etude.make.generate import Plan, generate
from etude.make.generate.model import Model
from etude.make.generate.serving import Serving, serve
from etude.make.transform import with_durations
from etude.make.transform.edits import apply_edits
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.memory import memory_peaks
from etude.model.run import Run
from etude.model.schema import Kind
from etude.steps import predict
from etude.steps.what_if import what_if
from etude.store import chakra
from toy_systems import one_level, two_levels

ONE = one_level("switch", 2)
SMALL = {"name": "small", "layers": 2, "hidden": 64, "heads": 8, "ffn": 128, "vocab": 256, "seq": 64}


def layers(*times_ns: int) -> Job:
    b, before = TraceBuilder(), []
    for number, time in enumerate(times_ns):
        before = [b.add(Kind.COMP, f"layer{number}", data=before, duration_ns=time)]
    return job_of("layers", [b], {})


def small(**plan: int) -> Job:
    return generate(Model.from_dict(SMALL), Plan.from_dict({"gpus": 1, "global_batch": 1, **plan})).job


def takes(job: Job, edit: str) -> int:
    return etude.simulate(etude.edit(job, edit), ONE).makespan_ns


def moved(job: Job, kind: Kind) -> int:
    trace = job.trace(0)
    return int(trace.tensor_bytes[trace.kind == kind].sum())


@pytest.mark.parametrize(
    ("size", "more", "wanted"),
    [
        (150, "", 5 * 150 + 100),  # loads hide the layers, but for the last
        (60, "", 5 * 100 + 60),  # layers hide the loads, but for the first
        (150, "prefetch=0", 5 * (150 + 100)),  # one buffer: nothing is hidden
        (100, "part=0.5 latency=10ns", 5 * 100 + 60),
        (150, "part=0", 5 * 100),
    ],
)
def test_double_buffered_layers(size: int, more: str, wanted: int):
    assert takes(layers(*[100] * 5), f"offload what=weights size={size}B rate=1GB/s {more}") == wanted


@pytest.mark.parametrize("prefetch", [0, 1, 2, 3])
def test_layers_that_differ_take_what_streaming_says(prefetch: int):
    times = np.random.default_rng(prefetch).integers(20, 300, 12)
    found = takes(layers(*times.tolist()), f"offload what=weights size=120B rate=1GB/s prefetch={prefetch}")
    assert found == streamed_ns(times.astype(float), np.full(12, 120.0), prefetch + 1)


def test_weights_are_those_of_the_products_in_both_passes():
    """A layer has 64 x 192, 64 x 64, 64 x 128 and 128 x 64 weights of 2 bytes, the head 64 x 256."""
    once = 2 * (2 * (64 * 192 + 64 * 64 + 2 * 64 * 128) + 64 * 256)
    changed = etude.edit(small(), "offload what=weights rate=55GB/s")
    assert moved(changed, Kind.MEM_LOAD) == 2 * once
    assert moved(changed, Kind.MEM_STORE) == 0
    half = etude.edit(small(), "offload what=weights module=layers.0.* rate=55GB/s part=0.5")
    assert moved(half, Kind.MEM_LOAD) == 2 * (64 * 192 + 64 * 64 + 2 * 64 * 128)


def test_activations_go_and_come_back_before_their_backward_pass():
    changed = etude.edit(small(), "offload what=activations module=*.ffn.activation rate=1GB/s")
    assert moved(changed, Kind.MEM_STORE) == moved(changed, Kind.MEM_LOAD) == 2 * 64 * 128 * 2
    run = etude.simulate(with_durations(changed, open_system("dgx-h100").device), ONE)
    trace, start, end = changed.trace(0), run.timing.start_ns[0], run.timing.end_ns[0]
    stores, loads = (np.flatnonzero(trace.kind == kind) for kind in (Kind.MEM_STORE, Kind.MEM_LOAD))
    assert (start[np.sort(loads)[::-1]] >= end[stores]).all()  # the last layer comes back first


def test_the_rate_is_that_of_the_tier():
    machine = open_system("h200-server")
    changed = etude.edit(small(), "offload what=weights module=head.logits", system=machine).trace(0)
    load = changed.duration_ns[changed.kind == Kind.MEM_LOAD]
    assert load.tolist() == [5000 + 592, 5000 + 592]  # 32,768 B at 55.4 GB/s, behind 5 us


def test_state_of_the_optimizer_is_written_back():
    changed = etude.edit(small(), "offload what=optimizer size=1MB rate=1GB/s")
    assert moved(changed, Kind.MEM_LOAD) == moved(changed, Kind.MEM_STORE) == 1_000_000


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ("what=weights", "the read rate of `host` is not known"),
        ("what=gold rate=1GB/s", "unknown value `gold`"),
        ("what=kv rate=1GB/s", "has no cache of keys and values"),
        ("what=weights rate=1GB/s policy=lru", "policy=lru needs a room"),
        ("what=weights rate=1GB/s room=1GB", "room needs a policy"),
        ("what=weights rate=1GB/s part=2", "part=2 of the bytes"),
        ("what=weights rate=1GB/s policy=lru room=30kB", "an item of 32.8 kB does not fit a room of 30 kB"),
    ],
)
def test_what_the_job_does_not_say_is_refused(edit: str, told: str):
    with pytest.raises(UsageError, match=told):
        etude.edit(small(), f"offload {edit}")


def test_what_a_system_does_not_have_is_refused():
    with pytest.raises(UsageError, match="has no tier `host`"):
        etude.edit(small(), "offload what=weights", system=open_system("dgx-a100"))
    big = f"offload what=weights module=head.logits size={126 * 2**30}B"
    with pytest.raises(UsageError, match="`host` has 134,217,728,000 B for each rank"):
        etude.edit(small(), big, system=open_system("h200-server"))


def test_a_room_is_no_larger_than_the_device():
    with pytest.raises(UsageError, match="a room of 200 GB in a device of 141 GB"):
        etude.edit(small(), "offload what=weights policy=lru room=200GB", system=open_system("h200-server"))


def test_gathers_load_the_shard_of_their_rank():
    """A block's weights of 2 bytes on two ranks: 64 x (192 + 64 + 2 x 128) + 2 norms of 64 a layer, 64 x 256 + 64 of
    the head; the embedding has no product, and is gathered without a load."""
    sharded = small(gpus=2, global_batch=2, zero=3)
    changed = apply_edits(sharded, ["offload what=weights rate=55GB/s"])
    trace = changed.job.trace(0)
    loads = trace.tensor_bytes[trace.kind == Kind.MEM_LOAD].tolist()
    layer, head = 64 * (192 + 64 + 256) + 2 * 64, 64 * 256 + 64
    assert loads == [layer, layer, head, head, layer, layer]
    codes, words = trace.coded("name")
    rows = np.flatnonzero(trace.kind == Kind.MEM_LOAD)
    assert {words[codes[row + 1]] for row in rows} == {"nccl:_all_gather_base"}
    half = apply_edits(sharded, ["offload what=weights module=layers.0.ffn.* rate=55GB/s"]).job
    assert moved(half, Kind.MEM_LOAD) == 2 * layer
    assert "none of the selected nodes needs experts" in apply_edits(small(), ["offload what=experts"]).notes[0]


def naive_loads(items: list[int], sizes: list[int], room: int) -> int:
    """Bytes loaded with the longest unused leaving first."""
    held: list[int] = []
    loaded = 0
    for item in items:
        if item in held:
            held.remove(item)
        else:
            loaded += sizes[item]
            while sum(sizes[one] for one in held) + sizes[item] > room:
                held.pop(0)
        held.append(item)
    return loaded


@pytest.mark.parametrize("room", [40_000, 70_000, 110_000, 160_000, 200_000])
def test_what_stays_under_a_policy_is_not_loaded_again(room: int):
    """Forward 0..8 (four products of two layers, the head), backward in reverse."""
    layer = [64 * 192 * 2, 64 * 64 * 2, 64 * 128 * 2, 64 * 128 * 2]
    sizes = [*layer, *layer, 64 * 256 * 2]
    items = [*range(9), *reversed(range(9))]
    words = f"offload what=weights rate=55GB/s room={room}B policy="
    loaded = {
        policy: moved(etude.edit(small(), words + policy), Kind.MEM_LOAD) for policy in ("lru", "belady", "pinned")
    }
    assert loaded["lru"] == naive_loads(items, sizes, room)
    assert sum(sizes) <= loaded["belady"] <= 2 * sum(sizes)
    if room == 200_000:
        assert set(loaded.values()) == {sum(sizes)}  # all fits: each once


def test_a_load_begins_when_the_node_whose_place_it_takes_is_over():
    """Room for two of 50 B: c takes the place of a, which ends at 150, and a that of b, which ends at 250."""
    b, before = TraceBuilder(), []
    for module in "abca":
        before = [b.add(Kind.COMP, module, data=before, duration_ns=100, module=module)]
    words = "offload what=weights size=50B rate=1GB/s prefetch=8 policy=lru room=100B"
    changed = etude.edit(job_of("layers", [b], {}), words)
    run = etude.simulate(changed, ONE)
    starts = run.timing.start_ns[0][changed.trace(0).kind == Kind.MEM_LOAD]
    assert starts.tolist() == [0, 50, 150, 250]
    assert run.makespan_ns == 450


def test_results_that_fit_stay_and_others_go_and_come_back():
    """Results of two activations of 16,384 bytes; the last is needed first, so with room for one the first goes."""
    words = "offload what=activations module=*.ffn.activation rate=1GB/s policy=belady"
    assert moved(etude.edit(small(), f"{words} room=40kB"), Kind.MEM_LOAD) == 0
    one = etude.edit(small(), f"{words} room=20kB")
    assert moved(one, Kind.MEM_LOAD) == moved(one, Kind.MEM_STORE) == 64 * 128 * 2


def test_the_optimizer_has_twelve_bytes_for_each_parameter():
    changed = apply_edits(small(), ["offload what=optimizer rate=1GB/s"])
    params = 2 * (64 * 512 + 128) + 2 * 64 * 256 + 64
    assert moved(changed.job, Kind.MEM_LOAD) == moved(changed.job, Kind.MEM_STORE) == 12 * params
    assert "12 bytes for each parameter" in changed.notes[0]


def test_a_cache_is_read_but_for_new_tokens_and_written_through():
    """2 requests of 16 tokens, 3 decoded: a layer reads nothing, then 32, 34 and 36 tokens and writes 32, 2, 2 and 2;
    of each 64 keys and 64 values of 2 bytes."""
    served = serve(Model.from_dict(SMALL), Plan(), Serving.from_dict({"prefill": 16, "decode": 3, "batch": 2}))
    changed = etude.edit(served.job, "offload what=kv rate=1GB/s")
    assert moved(changed, Kind.MEM_LOAD) == 2 * (32 + 34 + 36) * 256
    assert moved(changed, Kind.MEM_STORE) == 2 * (32 + 2 + 2 + 2) * 256
    fits = etude.edit(served.job, "offload what=kv rate=1GB/s policy=lru room=1MB")
    assert moved(fits, Kind.MEM_LOAD) == 2 * 0 and moved(fits, Kind.MEM_STORE) == 2 * 38 * 256


@pytest.mark.parametrize(("part", "prefetch"), [(1.0, 1), (0.5, 1), (1.0, 2)])
def test_memory_falls_by_what_lies_elsewhere_less_the_window(part: float, prefetch: int):
    """Four equal products: (1 - resident) (all of them - (prefetch + 1) of them)."""
    found = predict(Model.from_dict(SMALL), Plan.from_dict({"gpus": 1, "global_batch": 1}), open_system("h200-server"))
    words = f"offload what=weights module=*.ffn.* part={part} prefetch={prefetch}"
    pair = what_if(found, [words])
    product = 64 * 128 * 2
    freed = round(part * (4 * product - (prefetch + 1) * product))
    assert pair.baseline.generated.memory[0].weights - pair.edited.generated.memory[0].weights == freed
    assert pair.baseline.generated.memory_peak_bytes - pair.edited.generated.memory_peak_bytes == freed
    assert pair.summary()["edits"][0]["freed_bytes"] == freed


def test_what_still_does_not_fit_is_refused_with_the_numbers():
    machine = open_system("h200-server")
    tight = machine.replace(device=replace(machine.device, memory_bytes=1_000_000))
    found = predict(Model.from_dict(SMALL), Plan.from_dict({"gpus": 1, "global_batch": 1}), tight, check=False)
    with pytest.raises(UsageError, match=r"does not fit: pipeline rank 0 needs .* of 1 MB"):
        what_if(found, ["offload what=weights"], check=True)
    what_if(found, ["offload what=weights", "offload what=optimizer", "offload what=activations"], check=False)


# -- layers ------------------------------------------------------------------------------------------------------------


def stack(count: int = 6, time_ns: int = 100) -> Job:
    """Layers of two products, which take this time together."""
    b, before = TraceBuilder(), []
    for number in range(count):
        for name in ("up", "down"):
            before = [
                b.add(Kind.COMP, name, data=before, duration_ns=time_ns // 2, module=f"layers.{number}.mlp.{name}")
            ]
    return job_of("layers", [b], {})


def over_time(run: Run) -> list[tuple[int, int]]:
    """(ns, bytes in memory from then on), once for each time."""
    return list({row["time_ns"]: (row["time_ns"], row["held_bytes"]) for row in levels(run).to_pylist()}.values())


def peak(job: Job) -> int:
    run = etude.simulate(job, ONE)
    (found,) = set(memory_peaks(run).held_bytes.tolist())
    assert found == max(levels(run)["held_bytes"].to_pylist())
    return found


@pytest.mark.parametrize("resident", [0, 0.25, 0.5, 0.75, 1])
@pytest.mark.parametrize("compute", [100, 200])
def test_a_layer_takes_the_longer_of_its_compute_and_its_load(resident: float, compute: int):
    """160 B of a layer at 1 byte/ns come while the one before computes, in two buffers: n layers take n of the longer
    and one of the shorter; in memory is what stays, and two layers of the rest."""
    job, layer, n = stack(time_ns=compute), 160, 6
    words = f"offload what=weights size={layer // 2}B rate=1GB/s by=layer part={1 - resident}"
    changed = etude.edit(job, words)
    load = round((1 - resident) * layer)
    assert etude.simulate(changed, ONE).makespan_ns == n * max(compute, load) + min(compute, load)
    assert int((changed.trace(0).kind == Kind.MEM_LOAD).sum()) == n * (resident < 1)
    assert peak(changed) == layer * n - load * (n - 2)


def test_a_load_of_a_layer_waits_for_the_last_product_whose_buffer_it_takes():
    """Loads of 40 ns: those of layers 0 and 1 at once, that of layer k + 2 behind `down` of layer k."""
    changed = etude.edit(stack(4), "offload what=weights size=20B rate=1GB/s by=layer")
    run, trace = etude.simulate(changed, ONE), changed.trace(0)
    assert run.timing.start_ns[0][trace.kind == Kind.MEM_LOAD].tolist() == [0, 40, 140, 240]
    by_node = etude.edit(stack(4), "offload what=weights size=20B rate=1GB/s")
    assert int((by_node.trace(0).kind == Kind.MEM_LOAD).sum()) == 8


def test_what_a_layer_needs_twice_comes_once():
    """Of a generated step: a layer has four products, and its weights come for the forward and the backward pass; the
    head, needed at the end of one and the beginning of the other, comes once."""
    changed = etude.edit(small(), "offload what=weights rate=55GB/s by=layer").trace(0)
    layer, head = 2 * 64 * (192 + 64 + 2 * 128), 2 * 64 * 256
    assert changed.tensor_bytes[changed.kind == Kind.MEM_LOAD].tolist() == [layer, layer, head, layer, layer]


@pytest.mark.parametrize("what", ["activations", "kv", "features"])
def test_layers_are_of_weights_and_state(what: str):
    with pytest.raises(UsageError, match=f"by=layer with what={what}"):
        etude.edit(small(), f"offload what={what} rate=1GB/s by=layer")


# -- what is in memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("", 2 * 60),  # the layer at work and the one that comes
        ("prefetch=0", 60),
        ("prefetch=3", 4 * 60),
        ("part=0.5", 5 * 30 + 2 * 30),
        ("part=0", 5 * 60),
        ("policy=lru room=130B", 2 * 60),
        ("policy=lru room=250B", 4 * 60),  # none is needed again, and they lie there until others come
        ("policy=pinned room=190B", 3 * 60 + 2 * 60),  # the others pass through, beside the room
    ],
)
def test_a_load_is_in_memory_from_its_start_to_the_end_of_who_needs_it(more: str, wanted: int):
    assert peak(etude.edit(layers(*[100] * 5), f"offload what=weights size=60B rate=1GB/s {more}")) == wanted


def test_what_is_in_memory_over_time():
    """Two layers of 100 ns, loads of 60: [0, 60, 160] and [60, 120, 260]."""
    job = etude.edit(layers(100, 100), "offload what=weights size=60B rate=1GB/s")
    found = [(at, held) for at, held in over_time(etude.simulate(job, ONE)) if at != 120]
    assert found == [(0, 60), (60, 120), (160, 60), (260, 0)]


def test_state_is_there_until_it_is_stored():
    changed = with_durations(
        etude.edit(small(), "offload what=optimizer size=1MB rate=1GB/s"), open_system("dgx-h100").device
    )
    run = etude.simulate(changed, ONE)
    trace, (start, end) = changed.trace(0), run.timing.block(0)
    store, load = (int(np.flatnonzero(trace.kind == kind)[0]) for kind in (Kind.MEM_STORE, Kind.MEM_LOAD))
    assert end[store] - start[load] > 2_000_000  # there and back
    found = [row for row in over_time(run) if row[0] not in (end[load], start[store])]
    assert found == [(start[load], 1_000_000), (end[store], 0)]


def test_results_are_there_until_they_are_stored_and_when_they_come_back():
    """Of a step whose only selected result has 16,384 B, and comes back as soon as it is stored."""
    words = "offload what=activations module=layers.0.ffn.activation rate=1GB/s"
    changed = with_durations(etude.edit(small(), words), open_system("dgx-h100").device)
    run = etude.simulate(changed, ONE)
    trace, (start, end) = changed.trace(0), run.timing.block(0)
    store, load = (int(np.flatnonzero(trace.kind == kind)[0]) for kind in (Kind.MEM_STORE, Kind.MEM_LOAD))
    (maker,) = trace.data[trace.data_start[store] : trace.data_start[store + 1]].tolist()
    (user,) = np.flatnonzero([load in trace.data[a:b] for a, b in pairwise(trace.data_start.tolist())])
    assert start[load] == end[store]
    assert [row for row in over_time(run) if row[0] not in (end[load], start[store])] == [
        (start[maker], 16384), (end[store], 16384), (end[user], 0),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", ["lru", "lfu", "belady", "min_pending"])
def test_no_more_is_in_memory_than_the_room(policy: str):
    for room in (70_000, 110_000):
        job = etude.edit(small(), f"offload what=weights rate=1GB/s prefetch=20 policy={policy} room={room}B")
        timed = with_durations(job, open_system("dgx-h100").device)
        assert room // 2 < peak(timed) <= room


def test_the_memory_of_the_run_is_what_is_counted_as_freed():
    """Of all weights, what `predict` says is freed, and what a run of the edited job holds, are the whole."""
    for more in ("", "part=0.5", "prefetch=3", "by=layer", "by=layer part=0.25"):
        applied = apply_edits(small(), [f"offload what=weights rate=1000GB/s {more}"])  # all buffers are in use
        timed = with_durations(applied.job, open_system("dgx-h100").device)
        whole = 2 * (2 * 64 * (192 + 64 + 2 * 128) + 64 * 256)
        assert peak(timed) == whole - applied.steps[0].freed[0].size_bytes, more


def test_memory_is_the_same_after_a_file(tmp_path: Path):
    job = etude.edit(
        stack(), "offload what=weights size=50B rate=1GB/s part=0.5", "offload what=features size=8B rate=1GB/s"
    )
    chakra.write_job(job, tmp_path)
    assert peak(etude.open(tmp_path)) == peak(job) == 12 * 25 + 2 * 25 + 2 * 8


# -- ranks of one host -------------------------------------------------------------------------------------------------


def hosts(ranks: int = 4, **tier: object) -> tuple[Job, System]:
    """Ranks of five layers of 100 ns, two on a host, which has room for 1000 B and one way of 1 byte/ns."""
    builders = [TraceBuilder() for _ in range(ranks)]
    for b in builders:
        before: list[int] = []
        for number in range(5):
            before = [b.add(Kind.COMP, f"layer{number}", data=before, duration_ns=100)]
    given = {"name": "host", "capacity_bytes": 1000, "read_bytes_per_s": 1e9, "write_bytes_per_s": 1e9} | tier
    return job_of("layers", builders, {}), two_levels(2, 2).replace(tiers=(Tier(**given),))


def ends(edit: str, ranks: int = 4, **tier: object) -> list[int]:
    job, system = hosts(ranks, **tier)
    ran = etude.simulate(etude.edit(job, edit, system=system), system)
    return [int(ran.timing.block(rank)[1].max()) for rank in range(ranks)]


def test_ranks_of_a_host_share_its_rates():
    each = "offload what=weights size=75B"
    assert ends(each, links=0) == ends(each, per="rank") == [5 * 100 + 75] * 4
    assert ends(each) == [5 * 150 + 100] * 4  # half of the rate each
    assert ends(each, links=2) == [5 * 100 + 75] * 4
    assert ends("offload what=weights size=75B", ranks=3) == [850, 850, 575]  # one is alone on its host
    assert ends(f"{each} ranks=0", ranks=2) == [575, 500]  # nobody else loads
    assert ends(each, per="all", links=2, capacity_bytes=0) == [5 * 150 + 100] * 4


def test_ranks_of_a_host_must_fit_it_together():
    with pytest.raises(UsageError, match=r"2 ranks \(0 to 1\) take 1,010 B, but `host` has 1,000 B for each node"):
        ends("offload what=weights size=101B")
    assert ends("offload what=weights size=101B", per="rank")  # 505 B
    assert ends("offload what=weights size=101B ranks=0,2")
    job, system = hosts()
    both = "offload what=weights size=60B", "offload what=features size=60B"
    with pytest.raises(UsageError, match=r"weights and features of 2 ranks \(0 to 1\) take 1,200 B"):
        etude.edit(job, *both, system=system)
    # Of 2 TB of a node, eight ranks have 250 GB each.
    eight, node = small(gpus=8, global_batch=8), open_system("dgx-h100").for_ranks(8)
    assert etude.edit(eight, "offload what=weights module=head.logits size=250GB", system=node)
    with pytest.raises(UsageError, match=r"8 ranks \(0 to 7\) take 2,008,000,000,000 B"):
        etude.edit(eight, "offload what=weights module=head.logits size=251GB", system=node)
    with pytest.raises(ClusterError, match="no level `rack`"):
        ends("offload what=weights size=1B", per="rack")
