"""What graphs predict of delays, worked by hand."""

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.capture.collect import Moment
from etude.decide.validate.graphs import DelayedGraph, launched_after, moments_of
from etude.decide.validate.pairs import MeasuredChange
from etude.decide.validate.places import AskedPlace, Place, PlaceKind, choose_places
from etude.decide.validate.scoring import PlaceResult
from etude.model.build import TraceBuilder, build_trace
from etude.model.job import Job, Part, assemble
from etude.model.schema import Collective, Kind, Why
from etude.model.trace import Trace

AT = Moment(1, "layers.1")
BACK = Moment(1, "layers.1", True)


def launches(stream_order: bool = True) -> Trace:
    """One step: the host launches a, comes to the moment, launches b; both run on one stream.

    host     a 0..10 | mark 10..10 | b 10..20
    stream          A 10..110 | B 110..210
    """
    names = ["launch", AT.mark, "launch", "A", "B"]
    cpu = np.array([1, 1, 1, 0, 0])
    edges = [(1, 0, Why.PROGRAM), (2, 1, Why.PROGRAM), (3, 0, Why.LAUNCH), (4, 2, Why.LAUNCH), (4, 3, Why.STREAM)]
    edges = sorted(edge for edge in edges if stream_order or edge[2] != Why.STREAM)
    start = np.searchsorted([edge[0] for edge in edges], np.arange(6))
    columns = {"kind": [int(Kind.COMP)] * 5, "name": names, "cpu": cpu, "thread": np.where(cpu == 1, 1, -1),
               "stream": [-1, -1, -1, 7, 7 if stream_order else 8], "duration_ns": [10, 0, 10, 100, 100],
               "step": [6] * 5}  # fmt: skip
    return build_trace(columns, data=(start, [edge[1] for edge in edges]), data_why=[int(edge[2]) for edge in edges])


def job_of(*traces: Trace) -> Job:
    return assemble("hand", [Part(rank, trace, [], np.zeros(0, np.int64)) for rank, trace in enumerate(traces)])


@pytest.mark.parametrize(
    ("kind", "injected_ns", "change_ns"),
    [
        (PlaceKind.MODULE, 50, 0),  # b is launched at 70, and A runs until 110
        (PlaceKind.MODULE, 90, 0),
        (PlaceKind.MODULE, 150, 60),  # b is launched at 170
        (PlaceKind.DEVICE, 50, 50),  # the stream is busy 50 longer before B
    ],
)
def test_a_spin_is_hidden_behind_the_stream_and_work_on_the_stream_is_not(kind, injected_ns, change_ns):
    graph = DelayedGraph(job_of(launches()))
    assert graph.length_ns == 210
    assert graph.change_ns(Place(kind, AT), injected_ns) == change_ns


def test_a_graph_without_the_order_of_a_stream_is_wrong_about_what_is_hidden():
    """A 10..110 and B 20..120 run together: a spin of 50 moves the end by 50, and the program hid it."""
    graph = DelayedGraph(job_of(launches(stream_order=False)))
    assert graph.length_ns == 120
    change_ns = graph.change_ns(Place(PlaceKind.MODULE, AT), 50)
    assert change_ns == 50
    assert not PlaceResult("module:layers.1", MeasuredChange(50, 0, 0, 3), change_ns).within


def test_the_first_launch_after_a_mark():
    trace = launches()
    assert launched_after(trace, np.array([0, 1, 2])).tolist() == [4, 4, -1]


def test_device_work_where_nothing_is_launched_is_refused():
    trace = launches()
    alone = trace.replace(data_why=np.zeros_like(trace.data_why))
    with pytest.raises(UsageError, match="nothing is launched on a device after it"):
        DelayedGraph(job_of(alone)).change_ns(Place(PlaceKind.DEVICE, AT), 50)


def ranks() -> Job:
    """Two ranks that meet: rank 0 is there at 100, rank 1 at 160; the sum takes 10."""
    parts = []
    for rank, compute_ns in enumerate((100, 160)):
        b = TraceBuilder()
        mark = b.add(Kind.COMP, AT.mark, cpu=1, thread=1, duration_ns=0, step=6)
        work = b.add(Kind.COMP, "work", data=[mark], cpu=1, thread=1, duration_ns=compute_ns, step=6)
        b.add(Kind.COLL, "sum", data=[work], collective=Collective.ALL_REDUCE, in_bytes=8, group="all",
              duration_ns=10, step=6)  # fmt: skip
        parts.append(b.part(rank, {"all": [0, 1]}))
    return assemble("ranks", parts)


@pytest.mark.parametrize(
    ("rank", "injected_ns", "change_ns"),
    [(0, 50, 0), (0, 100, 40), (1, 50, 50), (None, 50, 50)],
)
def test_a_rank_that_waits_hides_its_delay(rank, injected_ns, change_ns):
    graph = DelayedGraph(ranks())
    assert graph.length_ns == 170
    kind = PlaceKind.MODULE if rank is None else PlaceKind.RANK
    assert graph.change_ns(Place(kind, AT, rank), injected_ns) == change_ns


def test_without_a_device_extra_work_is_the_threads():
    assert DelayedGraph(ranks()).change_ns(Place(PlaceKind.DEVICE, AT), 50) == 50


def test_a_place_that_is_not_in_the_graph_is_refused():
    with pytest.raises(UsageError, match="is not in the graph"):
        DelayedGraph(ranks()).change_ns(Place(PlaceKind.BACKWARD, BACK), 50)


def test_moments_that_do_not_come_once_in_each_step_are_left_out():
    assert moments_of(ranks(), 1) == {0: [AT], 1: [AT]}
    assert moments_of(ranks(), 2) == {0: [], 1: []}


def test_places_of_all_kinds_are_chosen():
    first, second = Moment(0, "0"), Moment(2, "2")
    back = Moment(2, "2", True)
    one = choose_places({0: [first, second, back]})
    assert [place.where for place in one] == ["module:0", "module:2", "backward:2", "device:0", "device:2"]
    two = choose_places({0: [first], 3: [second]})
    assert [place.where for place in two] == ["module:0", "module:2", "device:0", "device:2", "rank0:0", "rank3:2"]


@pytest.mark.parametrize("text", ["module:layers.1", "backward:layers.1", "device:layers.1", "rank1:layers.1"])
def test_a_place_is_written_as_it_is_given(text: str):
    found = choose_places({0: [AT, BACK], 1: [AT, BACK]}, [AskedPlace.parse(text)])
    assert [place.where for place in found] == [text]


def test_places_that_are_not_there_are_refused():
    for text, problem in [
        ("layers.9", "module `layers.9` is not called in every step"),
        ("backward:layers.1", "has no backward pass"),
        ("rank4:layers.1", "the program has no rank 4"),
    ]:
        with pytest.raises(UsageError, match=problem):
            choose_places({0: [AT]}, [AskedPlace.parse(text)])
    with pytest.raises(UsageError, match="is not a place"):
        AskedPlace.parse("  ")


@pytest.mark.parametrize(
    ("measured_ns", "predicted_ns", "within"),
    [
        (100, 115, True),
        (100, 116, False),
        (100, 84, False),
        (0, 7, True),
        (0, 8, False),
        (60, 52, True),
        (-10, 0, False),
    ],
)
def test_within_15_percent_of_the_change_or_of_half_the_delay(measured_ns, predicted_ns, within):
    """The delay is 100: changes below 50 are held to 7.5."""
    assert PlaceResult("a", MeasuredChange(100, measured_ns, 0, 1), predicted_ns).within == within
