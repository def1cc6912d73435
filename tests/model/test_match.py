"""Matching against its slow twin on drawn jobs, folded and unfolded, and cases worked by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import naive
from etude.base.errors import TraceError
from etude.model.build import TraceBuilder, job_of
from etude.model.fold import fold
from etude.model.job import Job
from etude.model.match import WORLD, Matching, match
from etude.model.schema import Collective, Kind
from jobs import jobs


def collectives(job: Job, m: Matching) -> dict[int, dict[int, list[int]]]:
    found: dict[int, dict[int, list[int]]] = {}
    for group, at, side in zip(m.uses.group.tolist(), m.uses.at.tolist(), m.uses.side.tolist(), strict=True):
        mine = found.setdefault(group, {})
        assert int(job.ranks[at]) not in mine
        mine[int(job.ranks[at])] = m.sides.rows[m.sides.span(side)].tolist()
    return found


def messages(job: Job, m: Matching) -> tuple[set[Any], set[Any], set[Any]]:
    pairs: set[Any] = set()
    lone_sends: set[Any] = set()
    lone_recvs: set[Any] = set()
    links, p, rows = m.links, m.pairings, m.sides.rows.tolist()
    for i in range(len(links.src)):
        src, dst, number = int(links.src[i]), int(links.dst[i]), int(links.pairing[i])
        if number < 0:
            for side, rank, lone in ((links.send_side[i], src, lone_sends), (links.recv_side[i], dst, lone_recvs)):
                lone |= {(rank, r) for r in (m.sides.rows[m.sides.span(side)].tolist() if side >= 0 else ())}
            continue
        for k in range(p.start[number], p.start[number + 1]):
            pairs.add(((src, rows[p.send_at[k]]), (dst, rows[p.recv_at[k]])))
        lone_sends |= {(src, rows[k]) for k in p.lone_send[p.lone_send_start[number] : p.lone_send_start[number + 1]]}
        lone_recvs |= {(dst, rows[k]) for k in p.lone_recv[p.lone_recv_start[number] : p.lone_recv_start[number + 1]]}
    return pairs, lone_sends, lone_recvs


@settings(deadline=None, max_examples=60)
@given(jobs())
def test_matching_agrees_with_naive_folded_or_not(job: Job):
    for one in (job, fold(job)):
        found = match(one)
        assert collectives(one, found) == naive.collectives(one)
        assert messages(one, found) == naive.messages(one)


@settings(deadline=None, max_examples=50)
@given(jobs())
def test_positions_of_members_and_ranks(job: Job):
    m = match(job)
    for group, at, place in zip(m.uses.group.tolist(), m.uses.at.tolist(), m.uses.group_rank.tolist(), strict=True):
        rank = int(job.ranks[at])
        members = job.groups.ranks(group) if group != WORLD else np.arange(job.world_size)
        listed = [] if members is None else members.tolist()
        assert place == (listed.index(rank) if rank in listed else -1)
    present = job.ranks.tolist()
    for rank, at in zip(m.links.src.tolist(), m.links.src_at.tolist(), strict=True):
        assert at == (present.index(rank) if rank in present else -1)


def exchange(rank: int, tags: tuple[int, int]) -> TraceBuilder:
    b = TraceBuilder()
    for tag in tags:
        if rank == 0:
            b.add(Kind.SEND, dst=1, tag=tag, in_bytes=8)
        else:
            b.add(Kind.RECV, src=0, tag=tag, in_bytes=8)
    return b


def test_tags_pair_out_of_order_and_no_tag_pairs_in_order():
    job = job_of("crossed", [exchange(0, (1, 2)), exchange(1, (2, 1))])
    assert messages(job, match(job))[0] == {((0, 0), (1, 1)), ((0, 1), (1, 0))}
    job = job_of("untagged", [exchange(0, (-1, -1)), exchange(1, (-1, -1))])
    assert messages(job, match(job))[0] == {((0, 0), (1, 0)), ((0, 1), (1, 1))}


def test_a_tag_base_moves_tags_but_not_their_absence():
    job = job_of("based", [exchange(0, (5, -1)), exchange(1, (0, -1))])
    job = job.replace(tag_base=np.array([0, 5]))
    assert messages(job, match(job))[0] == {((0, 0), (1, 0)), ((0, 1), (1, 1))}


def test_folded_links_share_a_pairing():
    builders = []
    for rank in range(64):
        b = TraceBuilder()
        b.add(Kind.SEND, dst=(rank + 1) % 64, in_bytes=8)
        b.add(Kind.RECV, src=(rank - 1) % 64, in_bytes=8)
        builders.append(b)
    job = fold(job_of("ring", builders))
    m = match(job)
    assert len(job.traces) == 1
    assert len(m.links.src) == 64
    assert len(m.pairings.start) - 1 == 1
    assert len(m.sides) == 2


def test_two_slots_of_one_group_are_one_sequence():
    b = TraceBuilder()
    for group in ("tp", "dp", "tp"):
        b.add(Kind.COLL, collective=Collective.ALL_REDUCE, in_bytes=8, group=group)
    job = job_of("merged", [b], {"tp": [0], "dp": [0]})
    job = job.replace(group_of=np.zeros(2, np.int32))
    assert collectives(job, match(job)) == {0: {0: [0, 1, 2]}}


def test_values_of_a_rank_make_a_class_of_its_own():
    job = fold(job_of("valued", [exchange(0, (1, 2)), exchange(1, (1, 2))]))
    own = job.replace(values={1: {"in_bytes": np.array([8, 9], np.int64)}})
    m = match(own)
    assert len(m.classes.trace) == len(own.traces) + 1
    recv = m.sides.size_bytes[m.sides.span(int(m.links.recv_side[0]))]
    assert recv.tolist() == [8, 9]


def test_a_slot_outside_the_trace_is_refused():
    b = TraceBuilder()
    b.add(Kind.SEND, dst=1, in_bytes=8)
    job = job_of("bad", [b])
    bad = job.traces[0].replace(dst=np.array([3], np.int32))
    with pytest.raises(TraceError, match="dst slot is outside"):
        match(job.replace(traces=(bad,)))
