"""Each finding on a case worked by hand; folded and unfolded jobs; the reference files."""

import importlib.util
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from etude.base.errors import TraceError
from etude.model.build import TraceBuilder, job_of
from etude.model.check.findings import FEW, SEVERITY
from etude.model.check.whole import Finding, check
from etude.model.fold import fold
from etude.model.graph import topological_order
from etude.model.job import Job, Note, assemble
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.timing import measured
from etude.model.trace import Trace, assert_same
from etude.store.chakra import read_job
from jobs import graph, graphs, job_with, jobs

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def kinds(findings: Sequence[Finding]) -> list[str]:
    return [f.kind for f in findings]


def only(job: Job, *, complete: bool = False) -> Finding:
    findings = check(job, complete=complete)
    assert len(findings) == 1, [str(f) for f in findings]
    return findings[0]


def builder(*add: Callable[[TraceBuilder], object]) -> TraceBuilder:
    b = TraceBuilder()
    for one in add:
        one(b)
    return b


def comp(duration_ns: int = 10, **columns: Any) -> Callable[[TraceBuilder], object]:
    return lambda b: b.add(Kind.COMP, duration_ns=duration_ns, **columns)


def coll(
    kind: Collective = Collective.ALL_REDUCE, size: int = 8, group: str | None = None
) -> Callable[[TraceBuilder], object]:
    return lambda b: b.add(Kind.COLL, collective=kind, in_bytes=size, group=group)


def send(dst: int, size: int = 8, tag: int = -1) -> Callable[[TraceBuilder], object]:
    return lambda b: b.add(Kind.SEND, dst=dst, in_bytes=size, tag=tag)


def recv(src: int, size: int = 8, tag: int = -1) -> Callable[[TraceBuilder], object]:
    return lambda b: b.add(Kind.RECV, src=src, in_bytes=size, tag=tag)


# -- graph -------------------------------------------------------------------------------------------------------------


def test_a_sound_job_has_no_findings():
    job = job_of("sound", [builder(comp(), coll(), send(1)), builder(comp(), coll(), recv(0))])
    assert check(job) == []
    assert check(job, complete=True) == []


def test_dangling_dependencies_are_errors_data_and_control_apart():
    f = check(job_with(graph([[], [~0], [~1]], [[], [0], [0, ~1]], missing=2)))
    assert kinds(f) == ["dangling_data", "dangling_ctrl"]
    assert str(f[0]) == "error: rank 0: node 1 waits for node 900, which is not in the trace (and 1 more: node 2)"
    assert "node 2 waits (control) for node 901" in f[1].what
    assert (f[0].severity, f[0].node, f[0].row, f[0].count) == ("error", 1, 1, 2)


def test_what_is_behind_a_missing_node_never_starts():
    f = check(job_with(graph([[~0], [0], [1], []], missing=1)))
    assert kinds(f) == ["dangling_data", "never_starts"]
    assert f[1].what == "node 1 can never start: it depends on a missing node (and 1 more: node 2)"


def test_a_cycle_is_named_and_what_is_behind_it_too():
    f = check(job_with(graph([[2], [0], [1], [2], []])))
    assert kinds(f) == ["cycle", "never_starts"]
    assert f[0].what == "nodes wait for one another in a cycle: 0 waits for 2 waits for 1 waits for 0"
    assert f[1].what == "node 3 can never start: it depends on a cycle"


def test_a_cycle_may_need_both_kinds_of_dependencies():
    assert kinds(check(job_with(graph([[1], []], [[], [0]])))) == ["cycle"]


def test_self_and_duplicate_dependencies():
    f = check(job_with(graph([[], [1], [0, 0]])))
    assert kinds(f) == ["self_dependency", "duplicate_dependency"]
    assert "node 1 waits for itself" in f[0].what
    assert str(f[1]) == "warning: rank 0: node 2 waits for node 0 more than once"


def test_the_same_dependency_as_data_and_control_is_no_duplicate():
    assert check(job_with(graph([[], [0]], [[], [0]]))) == []


def test_duplicate_ids():
    b = builder(comp(source_id=5), comp(source_id=7), comp(source_id=5))
    f = only(job_of("ids", [b]))
    assert (f.kind, f.node, f.row) == ("duplicate_id", 5, 2)
    assert f.what == "id 5 belongs to more than one node"


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_errors_exactly_where_a_graph_cannot_run(trace: Trace):
    found = check(job_with(trace))
    stuck = len(topological_order(trace, block_missing=True)) < len(trace)
    assert any(f.severity == "error" for f in found) == stuck


# -- nodes and values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("add", "kind", "words"),
    [
        (lambda b: b.add(Kind.INVALID), "invalid_node", "INVALID_NODE"),
        (lambda b: b.add(Kind.OTHER), "unknown_kind", "type that Chakra's schema does not have"),
        (lambda b: b.add(Kind.NONE), "unknown_kind", "type that Chakra's schema does not have"),
        (coll(Collective.NONE), "unknown_collective", "`comm_type` was not recorded"),
        (coll(Collective.OTHER), "unknown_collective", "`comm_type` that Chakra's schema does not have"),
        (lambda b: b.add(Kind.SEND, in_bytes=8), "no_peer", "to whom (`comm_dst`) was not recorded"),
        (lambda b: b.add(Kind.RECV, in_bytes=8), "no_peer", "from whom (`comm_src`) was not recorded"),
        (comp(-5), "negative_value", "negative duration_ns: -5 ns"),
        (coll(size=-1), "negative_value", "negative in_bytes: -1 B"),
        (comp(10, flops=-2), "negative_value", "negative flops: -2 operations"),
        (comp(UNKNOWN), "no_cost", "neither its duration nor both `num_ops` and `tensor_size`"),
        (comp(UNKNOWN, flops=5), "no_cost", "neither its duration"),
        (coll(size=UNKNOWN), "no_size", "how much (`comm_size`) was not recorded"),
        (lambda b: b.add(Kind.MEM_LOAD), "no_cost", "moves memory"),
    ],
)
def test_nodes(add: Callable[[TraceBuilder], object], kind: str, words: str):
    f = only(job_of("node", [builder(comp(), add)]))
    assert (f.kind, f.severity, f.node) == (kind, SEVERITY[kind], 1)
    assert words in f.what


def test_what_needs_no_duration():
    flops = comp(UNKNOWN, flops=0, tensor_bytes=4)
    barrier = coll(Collective.BARRIER, UNKNOWN)
    b = builder(flops, barrier, coll(size=0), lambda b: b.add(Kind.METADATA))
    assert check(job_of("fine", [b])) == []


def test_many_of_a_kind_are_counted():
    f = only(job_of("many", [builder(*[comp(UNKNOWN)] * 1279)]))
    assert f.what.endswith("(and 1,278 more: nodes 1, 2, 3, ...)")
    assert f.count == 1279


def test_a_node_that_ends_before_it_starts():
    job = job_of("timed", [builder(comp()), builder(comp())])
    timing = measured([np.array([5]), np.array([5])], [np.array([3]), np.array([-1])])
    f = only(job.replace(timing=timing))
    assert (f.kind, f.rank, f.what) == ("negative_time", 1, "node 0 ends before it starts")


def test_a_timing_of_another_length():
    job = job_of("timed", [builder(comp())])
    assert only(job.replace(timing=measured([np.array([5, 6])], [np.array([3, 3])]))).kind == "timing_length"


# -- collectives -------------------------------------------------------------------------------------------------------


def test_a_member_that_does_not_join():
    job = job_of("missing", [builder(coll()), builder(comp()), builder(coll())])
    f = only(job)
    assert (f.kind, f.rank, f.node) == ("collective_missing", 1, None)
    assert f.what == (
        "does not join the 1 collective that rank 0 issues on the world (ranks 0-2); the first is all_reduce of 8 B"
    )


def test_a_member_with_fewer():
    job = job_of("fewer", [builder(coll(), coll(size=9)), builder(coll())])
    f = only(job)
    assert (f.kind, f.rank, f.node) == ("collective_missing", 1, 0)
    assert "issues 1 collective on the world (ranks 0-1), but rank 0 issues 2" in f.what
    assert "the 2nd is missing here and all_reduce of 9 B on rank 0" in f.what


def test_another_order():
    job = job_of("order", [builder(coll(), coll(Collective.ALL_GATHER)), builder(coll(Collective.ALL_GATHER), coll())])
    f = only(job)
    assert (f.kind, f.rank, f.node) == ("collective_order", 1, 0)
    assert "in a different order than rank 0: the 1st is all_gather of 8 B here and all_reduce of 8 B there" in f.what


def test_another_type_and_other_bytes_blame_the_minority():
    three = [builder(coll()), builder(coll()), builder(coll(Collective.ALL_GATHER))]
    f = only(job_of("type", three[::-1]))
    assert (f.kind, f.rank) == ("collective_type", 0)
    f = only(job_of("bytes", [builder(coll()), builder(coll()), builder(coll(size=12))]))
    assert (f.kind, f.rank) == ("collective_bytes", 2)
    assert (
        f.what == "the 1st collective of the world (ranks 0-2) is all_reduce of 12 B, but all_reduce of 8 B on rank 0"
    )


@pytest.mark.parametrize("kind", [Collective.ALL_TO_ALL, Collective.SCATTER, Collective.BARRIER])
def test_where_bytes_may_differ(kind: Collective):
    assert check(job_of("uneven", [builder(coll(kind, 8)), builder(coll(kind, 9))])) == []


@pytest.mark.parametrize(
    "kind",
    [Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.ALL_GATHER, Collective.REDUCE_SCATTER],
)
def test_where_bytes_must_agree(kind: Collective):
    assert kinds(check(job_of("even", [builder(coll(kind, 8)), builder(coll(kind, 9))]))) == ["collective_bytes"]


def test_bytes_that_were_not_recorded_do_not_disagree():
    assert kinds(check(job_of("vague", [builder(coll(size=UNKNOWN)), builder(coll())]))) == ["no_size"]


def test_groups_are_compared_apart():
    add = [builder(coll(size=8 if r < 2 else 9, group=f"g{r // 2}"), coll()) for r in range(4)]
    assert check(job_of("apart", add, {"g0": [0, 1], "g1": [3, 2]})) == []


def test_a_group_of_one_is_fine():
    assert check(job_of("alone", [builder(coll(group="me"))], {"me": [0]})) == []


def test_a_rank_that_is_no_member():
    job = job_of("foreign", [builder(coll(group="g")) for _ in range(4)], {"g": [0, 1]})
    f = only(job)
    assert (f.kind, f.rank, f.ranks, f.where) == ("not_a_member", 2, "2-3", "ranks 2-3")
    assert f.what == "node 0 uses group `g` (ranks 0-1), which rank 2 is not a member of"


def test_members_that_cannot_be():
    job = job_of("members", [builder(coll(group="g"))], {"g": [0, 0]})
    f = only(job)
    assert (f.kind, f.rank, f.what) == ("member_twice", None, "group `g` (ranks 0) has member 0 more than once")
    job = job_of("members", [builder(coll(group="g"))], {"g": [0, 9]}).replace(world_size=1)
    assert only(job).what == "group `g` (ranks 0, 9) has member 9, outside the world of 1"


def test_unknown_members_are_a_warning():
    f = only(job_of("unknown", [builder(coll(group="g")), builder(coll(size=9, group="g"))]))
    assert (f.kind, f.severity, f.ranks) == ("members_unknown", "warning", "0-1")
    assert "the members of `g` are not known" in f.what


def test_the_same_name_for_other_members_is_hinted_at():
    parts = [builder(coll(group="g")).part(r, {"g": [0, 1] if r == 0 else [1, 2]}) for r in range(3)]
    f = check(assemble("names", parts))
    assert kinds(f) == ["collective_missing"]
    assert "uses a group of that name with other members: group `g` (ranks 1-2)" in f[0].hint


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_send_without_a_receive_and_the_reverse():
    f = only(job_of("send", [builder(send(1, tag=7)), builder(comp())]))
    assert (f.kind, f.rank) == ("send_unmatched", 0)
    assert f.what == "node 0 sends 8 B to rank 1 with tag 7, which never receives it"
    f = only(job_of("recv", [builder(comp()), builder(recv(0))]))
    assert (f.kind, f.rank) == ("recv_unmatched", 1)
    assert f.what == "node 0 waits for 8 B from rank 0 without a tag, which never sends it"


def test_the_second_of_two_sends_is_left_over():
    f = only(job_of("two", [builder(send(1), send(1)), builder(recv(0))]))
    assert (f.kind, f.node, f.count) == ("send_unmatched", 1, 1)


def test_tags_that_differ_are_hinted_at():
    f = check(job_of("tags", [builder(send(1, tag=7)), builder(recv(0, tag=8))]))
    assert kinds(f) == ["send_unmatched", "recv_unmatched"]
    assert f[0].hint == "rank 1 waits for a message from this rank with tag 8: do the tags agree?"
    assert f[1].hint == "rank 0 sends a message to this rank with tag 7: do the tags agree?"


def test_sizes_of_a_pair():
    f = only(job_of("sizes", [builder(send(1, 8)), builder(comp(), recv(0, 9))]))
    assert (f.kind, f.rank, f.node) == ("message_bytes", 0, 0)
    assert f.what == "node 0 sends 8 B to rank 1, whose node 1 receives 9 B"


def test_peers_outside_the_world():
    f = check(job_of("peers", [builder(send(5), recv(-3))]).replace(world_size=1))
    assert [x.what for x in f] == [
        "node 0 sends to rank 5, outside the world of 1",
        "node 1 receives from rank -3, outside the world of 1",
    ]


def test_the_other_end_may_be_named_if_it_is_this_rank():
    def named(b: TraceBuilder, me: int) -> TraceBuilder:
        b.add(Kind.SEND, src=me, dst=1, in_bytes=8)
        return b

    assert check(job_of("self", [named(TraceBuilder(), 0), builder(recv(0))])) == []
    f = only(job_of("other", [named(TraceBuilder(), 1), builder(recv(0))]))
    assert (f.kind, f.severity) == ("peer_contradicts", "warning")
    assert f.what == "node 0 sends here, but `comm_src` says rank 1"


def test_many_peers_give_a_few_findings():
    f = check(job_of("all", [builder(*[send(r) for r in range(1, 9)]), *(builder(comp()) for _ in range(8))]))
    assert kinds(f) == ["send_unmatched"] * FEW
    assert f[-1].what.endswith(f"; and {8 - FEW} more findings like it")


# -- jobs --------------------------------------------------------------------------------------------------------------


def test_ranks_that_are_absent_are_not_judged_unless_the_job_is_complete():
    parts = [builder(coll(), coll(group="g"), send(2), recv(2)).part(r, {"g": [0, 1, 2]}) for r in range(2)]
    job = assemble("part", parts)
    f = only(job)
    assert str(f) == "warning: rank 2: 1 of the world's 3 ranks missing"
    assert only(job, complete=True).severity == "error"


def test_empty_traces_and_notes_and_ranks_beyond_the_world():
    job = job_of("empty", [builder(comp()), builder()])
    assert only(job).kind == "empty_trace"
    job = job_of("noted", [builder(comp()), builder(comp())])
    f = only(job.replace(notes=(Note(1, "odd"), Note(0, "odd"))))
    assert (f.severity, f.ranks, f.what) == ("warning", "0-1", "odd")
    assert only(job.replace(world_size=1)).kind == "rank_outside"
    assert check(job_of("nobody", [])) == []


def test_ranks_beyond_the_world_do_not_count_in_it():
    job = job_of("beyond", [builder(comp()), builder(coll()), builder(coll(size=9))]).replace(world_size=1)
    assert kinds(check(job)) == ["rank_outside", "not_a_member"]


def test_errors_come_first_and_every_kind_has_a_severity():
    f = check(job_of("both", [builder(comp(UNKNOWN)), builder(comp(-1))]))
    assert [(x.severity, x.rank) for x in f] == [("error", 1), ("warning", 0)]


def test_ranks_of_one_program_share_a_finding_with_the_ids_of_the_first():
    add = [builder(comp(UNKNOWN, source_id=10 * r), comp(source_id=10 * r + 1)) for r in range(1, 5)]
    for job in (job_of("same", add), fold(job_of("same", add))):
        f = only(job)
        assert (f.rank, f.ranks, f.node) == (0, "0-3", 10)


def test_a_value_of_one_rank():
    job = fold(job_of("own", [builder(coll()) for _ in range(4)]))
    f = only(job.replace(values={2: {"in_bytes": np.array([9], np.int64)}}))
    assert (f.kind, f.rank) == ("collective_bytes", 2)


@settings(deadline=None, max_examples=60)
@given(jobs(), st.booleans())
def test_folded_and_unfolded_jobs_have_the_same_findings(job: Job, complete: bool):
    found = check(job, complete=complete)
    assert check(fold(job), complete=complete) == found
    assert [f.severity for f in found] == sorted(f.severity for f in found)
    assert all(f.kind in SEVERITY for f in found)
    of_kind = [(f.rank, f.kind) for f in found]
    assert all(len(list(same)) <= FEW for _, same in groupby(sorted(of_kind, key=str)))


# -- large jobs --------------------------------------------------------------------------------------------------------


def big_jobs():
    spec = importlib.util.spec_from_file_location("big_jobs", BENCHMARKS / "big_jobs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["big_jobs"] = module
    spec.loader.exec_module(module)
    return module


def test_large_jobs_are_sound_and_a_fault_in_them_is_found():
    make = big_jobs()
    job = make.folded_job(1024, 8, 1000)
    assert check(job) == []
    unfolded = make.unfolded_job(64, 400, 4)
    assert len(unfolded.traces) == 64
    assert check(unfolded) == []
    peers = job.peer_of.copy()
    peers[0] = 129  # rank 0 sends to 129 instead of 128
    assert set(kinds(check(job.replace(peer_of=peers)))) == {"send_unmatched", "recv_unmatched"}
    size = job.traces[3].in_bytes.copy()
    size[-1] += 1
    own = job.replace(values={400: {"in_bytes": size}})
    f = only(own)
    assert (f.kind, f.rank) == ("collective_bytes", 400)


# -- reference files ---------------------------------------------------------------------------------------------------

SEMANTICS = {  # case: (group file, kinds of findings, words)
    "coll_missing_rank": ("", ["collective_missing"], "does not join"),
    "coll_order_mismatch": ("", ["collective_order"], "different order"),
    "p2p_recv_no_send": ("", ["recv_unmatched"], "never sends it"),
    "p2p_send_no_recv": ("", ["send_unmatched"], "never receives it"),
    "p2p_size_mismatch": ("", ["message_bytes"], "1,048,577 B"),
    "p2p_tag_mismatch": ("", ["send_unmatched", "recv_unmatched"], "with tag 7"),
    "dep_cycle": ("", ["cycle"], "1 waits for 2 waits for 1"),
    "dep_cycle_partial": ("", ["cycle"], "in a cycle"),
    "dep_missing_parent": ("", ["dangling_data"], "node 99, which is not in the trace"),
    "invalid_node_chain": ("", ["invalid_node"], "INVALID_NODE"),
    "group_foreign_rank": ("g4_of_8", ["not_a_member"], "is not a member of"),
    "empty_trace": ("", ["empty_trace"], "no nodes"),
    "roof_missing_attr": ("", ["no_cost"], "tensor_size"),
    "comp_replay": ("", ["no_cost"], "neither its duration"),
    "group_singleton": ("singletons4", [], ""),
    "two_groups_overlap": ("g_overlap", [], ""),
    "group_id0": ("docs_example_id0", [], ""),
    "coll_barrier": ("", [], ""),
    "p2p_exchange_send_first": ("", [], ""),
}


@pytest.mark.parametrize("case", SEMANTICS)
def test_semantics_cases(shared: Path, case: str):
    groups, expected, words = SEMANTICS[case]
    folder = shared / "oracle/astra/et/semantics" / case
    file = shared / f"oracle/astra/configs/comm_group/{groups}.json" if groups else None
    found = check(read_job(folder, groups=file))
    assert kinds(found) == expected
    assert not expected or words in found[0].what


def sets(shared: Path) -> list[Path]:
    """Folders and names of every set of `.et` files, and single files."""
    found: dict[tuple[Path, str], list[Path]] = {}
    for file in sorted(shared.rglob("*.et")):
        stem, _, rank = file.name.removesuffix(".et").rpartition(".")
        found.setdefault((file.parent, stem if rank.isdigit() else file.name), []).append(file)
    return [folder / name for folder, name in found]


def copied(trace: Trace) -> Trace:
    arrays = {f.name: getattr(trace, f.name) for f in fields(trace)}
    return trace.replace(**{name: a.copy() for name, a in arrays.items() if isinstance(a, np.ndarray)})


def test_every_reference_file_is_checked_and_left_alone(shared: Path):
    faulty = {case for case, (_, expected, _) in SEMANTICS.items() if expected} | {"chakra_official"}
    faulty |= {"group_id0"}  # without its group file, group `0` is the world, and half of it does not join
    for path in sets(shared):
        job = read_job(path)
        before = [copied(trace) for trace in job.traces]
        found = check(job)
        for trace, old in zip(job.traces, before, strict=True):
            assert_same(trace, old)
        assert check(fold(job)) == found, path
        if not faulty & set(path.parts):
            assert [f for f in found if f.severity == "error"] == [], path


def test_official_pytorch_files_dangle(shared: Path):
    found = check(read_job(shared / "oracle/chakra_official/h200_nccl/fsdp"))
    assert kinds(found)[:2] == ["dangling_ctrl", "never_starts"]
    assert {f.ranks for f in found[:2]} == {"0-3"}


def test_generated_training_traces_are_sound(shared: Path, tmp_path: Path):
    for archive in sorted((shared / "oracle/astra/llm/traces").glob("*.tar.xz")):
        if archive.stat().st_size > 400_000:
            continue
        folder = tmp_path / archive.name.removesuffix(".tar.xz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        place = next(folder.rglob("*.0.et")).parent
        assert check(read_job(place), complete=True) == [], archive.name


def test_a_broken_trace_is_refused_not_read():
    with pytest.raises(TraceError, match="outside"):
        check(job_with(graph([[4]])))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(strategies.et_files(), min_size=1, max_size=3))
def test_any_file_that_can_be_read_can_be_checked(files: list[bytes]):
    with TemporaryDirectory() as folder:
        for rank, content in enumerate(files):
            (Path(folder) / f"w.{rank}.et").write_bytes(content)
        try:
            job = read_job(folder)
        except TraceError:
            return
    found = check(job)
    assert all(str(f) for f in found)
    assert check(fold(job)) == found
