"""A sample of ASTRA-sim's recorded runs, equal to the nanosecond; benchmarks/parity_astra.py runs them all."""

import tarfile

import parity_astra as parity
import pytest

import astra_oracle as rows
from astra_protobuf import load
from etude.base.errors import EtudeError
from etude.run.astra.columns import read_nodes
from etude.run.astra.config import read_groups
from etude.run.astra.ranks import on_network

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
    equal, total, wrong, _ = parity.check(cases[5::43], by_message=True)
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


def test_columns_agree_with_protobuf(root, llm):
    cases = [*llm, *(c for c in rows.semantics_cases(root) if all(f.exists() for f in c.files))]
    seen = set()
    for case in cases:
        if case.files in seen or (case.groups and "id0" in case.groups.name):
            continue
        seen.add(case.files)
        groups = read_groups(case.groups) if case.groups else {}
        job = on_network(rows.read_job(case.files), len(case.files), rows.options(case).is_one_for_all)
        found, expected = read_nodes(job, groups), load(case.files, groups)
        for name, column in expected.items():
            assert getattr(found.columns, name).tolist() == column, (case.name, name)
        assert found.group_ids == tuple(groups)
    assert len(seen) > 60
