"""A sample of ASTRA-sim's recorded runs, equal to the nanosecond; benchmarks/parity_astra.py runs them all."""

import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import _astra_oracle as rows
import parity_astra as parity

from astra_protobuf import load
from etude.errors import EtudeError
from etude.astra import read_groups
from etude.astra.traces import read_workload

TRACES = ("gpt8L_r8_dp2tp2pp2", "gpt8L_r16_dp2tp2pp4_mb8")


@pytest.fixture(scope="module")
def root(shared):
    return shared / "oracle" / "astra"


@pytest.fixture(scope="module")
def llm(root, tmp_path_factory):
    """A few of the training traces, unpacked."""
    folder = tmp_path_factory.mktemp("traces")
    for name in TRACES:
        with tarfile.open(root / "llm" / "traces" / f"{name}.tar.xz") as tar:
            tar.extractall(folder, filter="data")
    return [c for c in rows.llm_cases(root, folder) if c.row["trace"] in TRACES]


@pytest.mark.parametrize("table", rows.COLLECTIVE_TABLES)
def test_collectives(root, table):
    cases = [c for c in rows.collective_cases(root, table) if len(c.files) <= 64]
    equal, total, wrong, unrefused = parity.check(cases[::17])
    assert (wrong, unrefused) == ([], [])
    assert equal == total > 20


def test_collectives_message_by_message(root):
    cases = [c for t in rows.COLLECTIVE_TABLES for c in rows.collective_cases(root, t) if len(c.files) <= 16]
    equal, total, wrong, _ = parity.check(cases[5::43], ahead=False)
    assert wrong == []
    assert equal == total > 20


def test_examples_that_come_with_astra_sim(root):
    equal, total, wrong, _ = parity.check(rows.example_cases(root))
    assert wrong == []
    assert equal == total == 27


def test_semantics(root):
    """Every behaviour on record, and every hang and crash refused with a typed error."""
    equal, total, wrong, unrefused = parity.check(rows.semantics_cases(root))
    assert (wrong, unrefused) == ([], [])
    assert equal == total == 143


def test_errors_say_who_waits(root):
    case = next(c for c in rows.semantics_cases(root) if c.name == "unaware coll_missing_rank")
    with pytest.raises(EtudeError, match="which rank 1 has not joined"):
        rows.simulate(case)


def test_training_traces(root, llm):
    equal, total, wrong, _ = parity.check(llm)
    assert wrong == []
    assert equal == total == 5
    flat = {(c.row["trace"], c.backend): c for c in llm if c.row["network"].count("Switch") == 1}
    equal, total, wrong = parity.check_timelines(root, flat)
    assert wrong == []
    assert equal == total == 2 * (1424 + 10976)


def test_the_trace_reader_agrees_with_protobuf(root, llm):
    cases = [*llm, *(c for c in rows.semantics_cases(root) if all(f.exists() for f in c.files))]
    seen = set()
    for case in cases:
        if case.files in seen or (case.groups and "id0" in case.groups.name):
            continue
        seen.add(case.files)
        try:
            expected = load(case.files, read_groups(case.groups) if case.groups else None)
        except EtudeError:
            continue
        found = read_workload(case.files, read_groups(case.groups) if case.groups else None)
        for name in (
            "rank_start",
            "source_id",
            "kind",
            "is_cpu",
            "duration_us",
            "num_ops",
            "tensor_size",
            "comm_type",
            "comm_size",
            "src",
            "dst",
            "tag",
            "involved_dims",
            "dep_start",
            "dep",
        ):
            assert getattr(found, name).tolist() == getattr(expected, name).tolist(), (case.name, name)
        names = [w.group_ids[g] if g >= 0 else int(g) for w in (found, expected) for g in w.group]
        assert names[: len(found)] == names[len(found) :]
    assert len(seen) > 60
