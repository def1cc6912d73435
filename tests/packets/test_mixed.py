"""A part of a job by packets, the rest as flows."""

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.extend import topology as fabrics
from etude.machine import open_system
from etude.machine.topology import Wire
from etude.make.generate import MicroOptions, micro
from etude.model.job import Job
from etude.run.simulate import Simulated, simulate
from etude.run.simulate.networks import Operation
from etude.run.simulate.networks.operation import NetworkOptions
from etude.run.simulate.networks.registry import Registry
from etude.run.simulate.networks.standalone import run_registered

WIRE = Wire(bytes_per_s=1e9, latency_ns=500)
TREE = fabrics.fat_tree(8, WIRE, levels=2, oversubscription=3)
SYSTEM = open_system("dgx-h100").resized(len(TREE)).replace(topology=TREE)


def job(what: str = "all_to_all", size_bytes: int = 1 << 19) -> Job:
    return micro(what, MicroOptions(ranks=len(TREE), sizes=(size_bytes,), repeat=2))


def ends(found: Simulated) -> list[list[int]]:
    return [block.tolist() for block in found.timing.end_ns]


@pytest.mark.parametrize("what", ["all_to_all", "all_reduce", "shift:5"])
def test_all_by_packets_and_none_are_the_networks_themselves(what: str) -> None:
    """To the ns: with all transfers chosen those of packets, with none those of flows."""
    found = {
        name: ends(simulate(job(what), SYSTEM, network="packets", packets=packets))
        for name, packets in {"all": ("all",), "none": ("broadcast",), "whole": ()}.items()
    }
    assert found["all"] == found["whole"]
    assert found["none"] == ends(simulate(job(what), SYSTEM, network="flow"))
    assert found["all"] != found["none"]


def packets_of(found: Simulated) -> tuple[int, int]:
    """(transfers by packets, all of them), as the note says."""
    note = next(note for note in found.notes if note.endswith("went by packets"))
    some, _, rest = note.partition(" of ")
    return int(some.replace(",", "")), int(rest.partition(" ")[0].replace(",", ""))


def test_links_windows_and_collectives_choose_transfers() -> None:
    """Of an all-to-all over leaf.1 goes what its ranks send elsewhere, as much that comes, and what stays inside."""
    asked = {"collective": {"all_to_all": "direct"}, "network": "packets"}
    by = {text: packets_of(simulate(job(), SYSTEM, packets=(text,), **asked)) for text in ("leaf.1", "all_to_all")}
    many = len(TREE)
    each = many // len({name for name in map(TREE.vertex_name, range(len(TREE.kind))) if name.startswith("leaf.")})
    once = many * (many - 1)
    chunks = by["all_to_all"][1] // (2 * once)
    assert by["all_to_all"] == (2 * once * chunks, 2 * once * chunks)
    assert by["leaf.1"][0] == 2 * chunks * (2 * each * (many - each) + each * (each - 1))
    flow = simulate(job(), SYSTEM, **(asked | {"network": "flow"}))
    first = simulate(job(), SYSTEM, **asked, packets=(f"0ns-{flow.makespan_ns // 4}ns",))
    assert packets_of(first)[0] == once * chunks  # the first of two
    assert ends(first) != ends(flow)


def test_auto_takes_packets_only_where_flows_exceed_a_link() -> None:
    """A shift by one stays on a leaf but at its border: one transfer over each link, so that nothing is exceeded. In an
    all-to-all over uplinks of a third of the rate they are."""
    plain = fabrics.fat_tree(8, WIRE, levels=2)
    system = open_system("dgx-h100").resized(len(plain)).replace(topology=plain)
    shift = micro("shift:1", MicroOptions(ranks=len(plain), sizes=(1 << 19,)))
    calm = simulate(shift, system, network="packets", packets=("auto",))
    assert packets_of(calm)[0] == 0
    assert ends(calm) == ends(simulate(shift, system, network="flow"))
    asked = {"collective": {"all_to_all": "direct"}, "network": "packets"}
    full = simulate(job(), SYSTEM, packets=("auto",), **asked)
    some, whole = packets_of(full)
    assert 0.5 * whole < some <= whole
    assert any(note.startswith("flows exceed ") for note in full.notes)


def test_flows_and_packets_on_one_link_share_it() -> None:
    """Two messages into one rank, one by packets, one a flow, of the same size: each takes twice the time of one."""
    size = 2_000 * 4096
    registry = Registry(fabrics.switch(3, WIRE), NetworkOptions(model="packets", mixed=True))
    registry.register([Operation.message(0, 2, size), Operation.message(1, 2, size)])
    state, flows = registry.state()
    state.detail.of_operation[0] = 1
    done = run_registered(state, flows, np.zeros(4, np.int64)).places["done_ns"].reshape(2, 2).max(axis=1)
    assert done == pytest.approx([2 * size, 2 * size], rel=0.01)
    assert state.clock[0]["packet_transfers"] == state.clock[0]["flow_transfers"] == 1


def test_what_cannot_be_mixed_is_refused() -> None:
    for more, words in (
        ({"network": "flow"}, "only where there are packets"),
        ({"network": "packets", "routing": "spray"}, "one by one"),
        ({"network": "packets", "fabric": "ultra-ethernet"}, "one by one"),
        ({"network": "packets", "link_stats": True}, "all packets or none"),
    ):
        with pytest.raises(UsageError, match=words):
            simulate(job(), SYSTEM, packets=("auto",), **more)
    with pytest.raises(UsageError, match="ends before it begins"):
        simulate(job(), SYSTEM, network="packets", packets=("8ms-5ms",))
    with pytest.raises(UsageError, match=r"rack9"):
        simulate(job(), SYSTEM, network="packets", packets=("rack9",))
