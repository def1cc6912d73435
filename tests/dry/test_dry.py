"""`etude collect --dry`: the job of a program that never ran."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.model.schema import Collective, Kind
from etude.model.trace import first_difference
from etude.surface.cli import main

pytest.importorskip("torch")
PROGRAMS = Path(__file__).parent / "programs"


def dry(out: Path, program: str, *words: str, options: tuple[str, ...] = ()) -> int:
    command = [sys.executable, str(PROGRAMS / program), *words]
    return main(["collect", "--dry", "-o", str(out), *options, "--", *command])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dry") / "job"
    assert dry(out, "dry_train.py", "cast", options=("--device", "h100")) == 0
    return out


def test_products_of_a_step_have_their_flops(trained: Path) -> None:
    trace = etude.open(trained).traces[0]
    names = np.array([trace.text("name", i) for i in range(len(trace))])
    products = sorted(trace.flops[np.isin(names, ("aten::addmm", "aten::mm"))].tolist())
    first, second = 2 * 16 * 64 * 128, 2 * 16 * 128 * 32
    # Forward and the gradients of both weights; of inputs the second layer's alone.
    assert products == sorted([first, second, first, second, second])
    assert "aten::_to_copy" in names  # autocast
    assert set(trace.stream[trace.cpu == 0].tolist()) == {0}
    assert {trace.text("phase", i) for i in range(len(trace))} == {"forward", "backward", "optimizer"}
    assert {"0", "2"} <= {trace.text("module", i) for i in range(len(trace))}


def test_memory_is_in_the_manifest(trained: Path) -> None:
    manifest = json.loads((trained / "manifest.json").read_text())
    weights = 4 * (64 * 128 + 128 + 128 * 32 + 32)
    assert manifest["dry"] is True
    memory = manifest["memory"]
    # The allocator rounds up to 512 bytes: 128 floats fill one, 32 do not.
    assert memory["by_class"]["weights"] == weights + 512 - 32 * 4
    assert memory["by_class"]["optimizer"] == 2 * (weights + 512 - 32 * 4)
    assert memory["by_class"]["workspaces"] == 2 * 32 * 2**20
    assert memory["peak_reserved_bytes"] >= memory["peak_allocated_bytes"]


def test_info_has_the_memory_in_words(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(trained), "--json"]) == 0
    memory = json.loads(json.loads(capsys.readouterr().out)["written_by"]["memory"])
    assert main(["info", str(trained)]) == 0
    told = capsys.readouterr().out
    line = next(one for one in told.splitlines() if one.startswith("dry run"))
    allocated = memory["peak_allocated_bytes"] / 1e6  # both are between 10 and 100 MB
    assert f"yes; peak memory {allocated:.1f} MB allocated, " in line and line.endswith(" MB reserved")
    assert "{" not in told and "written by" in told


def test_the_job_is_clean_and_can_be_simulated(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(trained), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert main(["simulate", str(trained), "--system", "h200-server", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan_ns"] > 0


def test_ranks_of_uneven_shards_are_found_by_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job of the few has what that of all 16 ranks has, each of which was run."""
    assert dry(tmp_path / "few", "dry_padded.py", options=("--world", "16", "--json")) == 0
    run = json.loads(capsys.readouterr().out)["ranks_run"]
    # 3 rows each up to rank 11, 1 on rank 12, then none; of the second weight one each up to rank 6.
    assert run == [0, 7, 12, 13]
    everyone = ",".join(map(str, range(16)))
    assert dry(tmp_path / "all", "dry_padded.py", options=("--world", "16", "--ranks", everyone)) == 0
    few, everything = etude.open(tmp_path / "few"), etude.open(tmp_path / "all")
    assert len(few.traces) == len(everything.traces) == 4
    for rank in range(16):
        assert first_difference(few.trace(rank), everything.trace(rank)) is None
        assert few.group_slots(rank).tolist() == everything.group_slots(rank).tolist()


def test_the_last_rank_of_a_later_stage_has_no_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 0's own line of ranks divides its 8 rows; that of stage 1 has 6 rows for four ranks: 2, 2, 2 and none."""
    assert dry(tmp_path / "job", "dry_stages.py", options=("--world", "8", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["ranks_run"] == [0, 3, 4, 7]
    job = etude.open(tmp_path / "job")
    last, others = job.trace(7), [job.trace(rank) for rank in (4, 5, 6)]
    assert all(one is others[0] for one in others) and last is not others[0]
    assert job.trace(0) is job.trace(3)


def test_a_mesh_is_folded_and_every_rank_has_its_groups(tmp_path: Path) -> None:
    assert dry(tmp_path / "job", "dry_mesh.py", options=("--device", "h100", "--world", "64")) == 0
    job = etude.open(tmp_path / "job")
    assert len(job) == 64 and len(job.traces) == 1
    trace = job.traces[0]
    calls = np.flatnonzero(trace.kind == Kind.COLL)
    kinds = [Collective(int(trace.collective[i])).name for i in calls]
    shard = 256 * 512 * 4 // 2 // 32  # a weight in two halves, each in 32 parts
    assert kinds == ["ALL_GATHER", "ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER"] or kinds == [
        "ALL_GATHER", "ALL_REDUCE", "REDUCE_SCATTER"
    ]  # fmt: skip
    gathered = [int(trace.in_bytes[i]) for i in calls if trace.collective[i] == Collective.ALL_GATHER]
    scattered = [int(trace.in_bytes[i]) for i in calls if trace.collective[i] == Collective.REDUCE_SCATTER]
    assert gathered[0] == 2 * shard and scattered == [2 * shard * 32]
    reduced = next(i for i in calls if trace.collective[i] == Collective.ALL_REDUCE)
    assert int(trace.in_bytes[reduced]) == 4 * 256 * 4
    members = job.groups.ranks(int(job.group_slots(37)[trace.group[reduced]]))
    assert members is not None and members.tolist() == [36, 37]
    members = job.groups.ranks(int(job.group_slots(37)[trace.group[calls[0]]]))
    assert members is not None and members.tolist() == list(range(1, 64, 2))


def test_data_parallel_ranks_are_folded_where_all_are_one_group(tmp_path: Path) -> None:
    assert dry(tmp_path / "job", "dry_ddp.py", options=("--world", "32")) == 0
    job = etude.open(tmp_path / "job")
    assert len(job) == 32 and len(job.traces) == 1
    trace = job.traces[0]
    calls = np.flatnonzero(trace.kind == Kind.COLL)
    assert [Collective(int(trace.collective[i])).name for i in calls] == ["ALL_REDUCE"]
    assert [int(trace.in_bytes[i]) for i in calls] == [4 * (16 * 8 + 8)]
    members = job.groups.ranks(int(job.group_slots(9)[trace.group[calls[0]]]))
    assert members is not None and members.tolist() == list(range(32))


def test_the_host_waits_for_a_communication_of_its_own_tensors(tmp_path: Path) -> None:
    assert dry(tmp_path / "job", "dry_waits.py", options=("--world", "2")) == 0
    trace = etude.open(tmp_path / "job").traces[0]
    call = int(np.flatnonzero(trace.kind == Kind.COLL)[0])
    after = {
        name: trace.data[trace.data_start[i] : trace.data_start[i + 1]].tolist()
        for i in range(len(trace))
        if (name := trace.text("name", i)) in ("aten::sin", "aten::cos")
    }
    assert call not in after["aten::sin"] and call in after["aten::cos"]
    assert call - 1 in trace.data[trace.data_start[call] : trace.data_start[call + 1]]  # what the host did before


def test_sharding_without_a_mesh_is_on_the_device(tmp_path: Path) -> None:
    assert dry(tmp_path / "job", "dry_sharded.py", options=("--device", "h100", "--world", "4")) == 0
    trace = etude.open(tmp_path / "job").traces[0]
    calls = np.flatnonzero(trace.kind == Kind.COLL)
    found = [(Collective(int(trace.collective[i])).name, int(trace.in_bytes[i])) for i in calls]
    weights = 5 * 64 * 64 * 4
    # The norms of five weights are reduced in one call.
    assert found == [("ALL_GATHER", weights // 4), ("REDUCE_SCATTER", weights), ("ALL_REDUCE", 5 * 4)]


def test_stages_of_a_pipeline_are_all_run(tmp_path: Path) -> None:
    assert dry(tmp_path / "job", "dry_pipeline.py", options=("--world", "2")) == 0
    job = etude.open(tmp_path / "job")
    sizes = 4 * 32 * 4
    for rank, (sends, receives) in enumerate([(2, 2), (2, 2)]):
        trace = job.trace(rank)
        assert [int(b) for b in trace.in_bytes[trace.kind == Kind.SEND]] == [sizes] * sends
        assert [int(b) for b in trace.in_bytes[trace.kind == Kind.RECV]] == [sizes] * receives
        peers = job.peer_slots(rank)
        assert {int(peers[slot]) for slot in trace.dst[trace.kind == Kind.SEND]} == {1 - rank}
    assert main(["check", str(tmp_path / "job")]) == 0


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("decide", "dry_train.py:30: rank 0 decides by the value of a tensor"),
        ("data", "FileNotFoundError"),
        ("spawn", "starts processes of its own"),
        ("gpu", "with --device h100 it finds one"),
        ("weights", "no model was called and no optimizer stepped"),
        ("exit", "the program ended itself: this needs a GPU"),
        ("mesh", "multiply to the number of ranks"),
        ("scatter", "reduce_scatter over 1 ranks has 4 elements, and 1 on each rank"),
    ],
)
def test_what_cannot_be_run_is_said(what: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(tmp_path / "job", "dry_train.py", what) == 2
    told = capsys.readouterr().err
    assert said in told and "Traceback" not in told
    assert not (tmp_path / "job").exists()


def test_a_world_that_the_mesh_does_not_divide_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(tmp_path / "job", "dry_mesh.py", options=("--device", "h100", "--world", "3")) == 2
    told = capsys.readouterr().err
    assert "dry_mesh.py:" in told and "multiply to the number of ranks" in told and "Traceback" not in told
    assert not (tmp_path / "job").exists()


def test_a_stated_answer_lets_a_program_decide(tmp_path: Path) -> None:
    assert dry(tmp_path / "job", "dry_train.py", "decide", options=("--answer", "loss=0.5")) == 0
    assert len(etude.open(tmp_path / "job")) == 1


def test_an_answer_that_nothing_asks_for_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(tmp_path / "job", "dry_train.py", "decide", options=("--answer", "lss=0.5", "--answer", "loss=0.5")) == 2
    assert "--answer: no rank asked for lss" in capsys.readouterr().err
    assert not (tmp_path / "job").exists()


def test_other_commands_and_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--dry", "-o", str(tmp_path / "job"), "--", "true"]) == 2
    assert "does not start a Python program" in capsys.readouterr().err
    assert main(["collect", "-o", str(tmp_path / "job"), "--world", "4", "--", "true"]) == 2
    assert "--dry" in capsys.readouterr().err
    assert main(["collect", "--dry", "--stacks", "-o", str(tmp_path / "job"), "--", "true"]) == 2
    assert "is not read with --dry" in capsys.readouterr().err
    assert main(["collect", "--dry", "--answer", "loss", "-o", str(tmp_path / "job"), "--", "true"]) == 2
    assert "is not a name with a number" in capsys.readouterr().err


def test_casts_of_c_plus_plus_stay_on_the_device(tmp_path: Path) -> None:
    """Softmax of 16-bit numbers in 32 bits is one kernel by `nn.functional`, and a cast and a kernel otherwise; values
    that are narrower than keys take the memory-efficient attention; whole numbers are counted; a mask of truths is
    made one of numbers once, and is read as it is; SiLU has one kernel backward."""
    assert dry(tmp_path / "job", "dry_kernels.py", options=("--device", "h100", "--whole")) == 0
    trace = etude.open(tmp_path / "job").traces[0]
    assert set(trace.cpu.tolist()) == {0}
    names = [trace.text("name", i).removeprefix("aten::") for i in range(len(trace))]
    made = ("zeros", "ones", "fill_", "zero_")
    assert [name for name in names if name not in made] == [
        "_softmax", "_to_copy", "_softmax", "_scaled_dot_product_efficient_attention", "_to_copy", "histc",
        "scalar_tensor", "scalar_tensor", "where", "_scaled_dot_product_cudnn_attention", "silu", "silu_backward",
        "mul", "_softmax",
    ]  # fmt: skip
