"""offload: loads and stores worked out by hand; double-buffered layers by their closed form."""

import numpy as np
import pytest

import etude
from etude.cost.tiers import streamed_ns
from etude.errors import UsageError
from etude.generate import Plan, generate
from etude.generate.model import Model
from etude.machine import open_system
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Kind
from etude.transform import with_durations
from etude.transform.edits import apply_edits
from toy_systems import one_level

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
        ("what=weights", "how fast `host` is read is not known"),
        ("what=optimizer rate=1GB/s", "does not say the bytes of optimizer"),
        ("what=gold rate=1GB/s", "no such choice `gold`"),
    ],
)
def test_what_the_job_does_not_say_is_refused(edit: str, told: str):
    with pytest.raises(UsageError, match=told):
        etude.edit(small(), f"offload {edit}")


def test_what_a_system_does_not_have_is_refused():
    with pytest.raises(UsageError, match="has no tier `host`"):
        etude.edit(small(), "offload what=weights", system=open_system("dgx-h100"))
    big = f"offload what=weights module=head.logits size={126 * 2**30}B"
    with pytest.raises(UsageError, match="do not fit `host`, which has 134,217,728,000 B"):
        etude.edit(small(), big, system=open_system("h200-server"))


def test_shards_of_weights_are_noted():
    sharded = small(gpus=2, global_batch=2, zero=3)
    assert "whole ones are loaded" in apply_edits(sharded, ["offload what=weights rate=55GB/s"]).notes[0]
    assert apply_edits(small(), ["offload what=weights rate=55GB/s"]).notes == ()
    assert "none of the selected nodes needs experts" in apply_edits(small(), ["offload what=experts"]).notes[0]
