import numpy as np
import pytest

from etude.base.errors import TraceError, UsageError
from etude.model.build import job_of
from etude.model.diff import diff
from etude.model.fold import expand, fold
from etude.model.job import Groups, Job, ranges
from etude.model.trace import assert_same
from etude.store import chakra
from tiny_jobs import GROUPS, ring


def files(job: Job) -> list[bytes]:
    found = []
    for rank in job.ranks.tolist():
        decoded, id_base, tag_base = chakra.for_rank(job, rank)
        found.append(bytes(chakra.encode(decoded, id_base=id_base, tag_base=tag_base)))
    return found


def test_ranks_that_differ_in_groups_peers_and_bases_share_a_trace() -> None:
    job = job_of("ring", [ring(r, first_id=100 * r) for r in range(3)], GROUPS)
    folded = fold(job)
    assert [len(job.traces), len(folded.traces)] == [3, 2]  # rank 0 receives tag 3 and sends 0: another pattern
    assert folded.trace_of.tolist() == [0, 1, 1]
    assert folded.id_base.tolist() == [0, 100, 200]
    assert folded.tag_base.tolist() == [0, 0, 1]
    assert folded.traces[1].source_id.tolist() == [0, 1, 2, 4, 5]
    assert [folded.groups.names[g] for g in folded.group_slots(1)] == ["a", "right"]
    assert [folded.groups.names[g] for g in folded.group_slots(2)] == ["b", "left"]
    assert folded.peer_slots(2).tolist() == [3, 1]
    assert files(folded) == files(job)
    assert files(expand(folded)) == files(job)
    for a, b in zip(expand(folded).traces, job.traces, strict=True):
        assert_same(a, b)
    assert diff(job, folded) is None


def test_own_durations_are_values_and_come_back() -> None:
    job = job_of("jitter", [ring(1, duration_ns=10), ring(1, duration_ns=13), ring(1, duration_ns=10)], GROUPS)
    folded = fold(job)
    assert len(folded.traces) == 1
    assert {r: {c: v.tolist()[0] for c, v in own.items()} for r, own in folded.values.items()} == {
        1: {"duration_ns": 13}
    }
    assert files(expand(folded)) == files(folded) == files(job)
    assert fold(folded).values.keys() == {1}


def test_another_name_is_another_program() -> None:
    job = job_of("two", [ring(1), ring(1, name="gemv")], GROUPS)
    assert len(fold(job).traces) == 2


def test_folding_twice_changes_nothing() -> None:
    once = fold(job_of("ring", [ring(r) for r in range(4)], GROUPS))
    assert files(fold(once)) == files(once)
    assert len(fold(once).traces) == len(once.traces)


@pytest.mark.parametrize("folder", ["gpt_pp4_mb8", "gpt_dp2_tp2_pp2_mb2", "moe_dp2_ep4", "llama_fsdp_dp8_mp"])
def test_real_sets_fold_and_come_back_byte_for_byte(shared, folder: str) -> None:
    place = shared / "oracle" / "stg" / folder
    job = chakra.read_job(place)
    folded = fold(job)
    assert len(folded.traces) == (4 if "pp4" in folder else 2 if "pp2" in folder else 1)  # a program a pipeline stage
    originals = [(place / f"trace.{r}.et").read_bytes() for r in job.ranks.tolist()]
    assert files(folded) == originals
    assert files(expand(folded)) == originals


def test_a_large_real_set_folds_to_its_stages(shared, tmp_path) -> None:
    import tarfile

    with tarfile.open(shared / "oracle" / "astra" / "llm" / "traces" / "gpt8L_r64_dp4tp4pp4_mb4.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    place = next(p.parent for p in tmp_path.rglob("w.0.et"))
    job = chakra.read_job(place)
    folded = fold(job)
    assert (len(job.traces), len(folded.traces)) == (64, 4)
    originals = [(place / f"w.{r}.et").read_bytes() for r in job.ranks.tolist()]
    assert files(expand(folded)) == originals


def test_bindings_must_fit() -> None:
    job = fold(job_of("ring", [ring(r) for r in range(4)], GROUPS))
    with pytest.raises(TraceError, match="group bindings do not fit"):
        job.replace(group_of=job.group_of[:-1], group_start=job.group_start)
    with pytest.raises(TraceError, match="outside its 1"):
        job.replace(groups=Groups.of([("a", [0])]))
    with pytest.raises(TraceError, match="not ascending"):
        job.replace(ranks=np.array([0, 2, 1, 3], np.int32))
    with pytest.raises(UsageError, match=r"rank 9 is not in the job\nhint: present: 0-3"):
        job.trace(9)


def test_ranges() -> None:
    assert ranges(np.array([3, 0, 1, 2, 7, 9, 10])) == "0-3, 7, 9-10"
    assert ranges(np.array([])) == "none"
