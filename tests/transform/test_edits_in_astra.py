"""Every edit end to end in ASTRA mode: edited, written as ASTRA-sim needs it, read back and run; or refused, with the
reason."""

from functools import cache
from pathlib import Path

import pytest

import etude
from astra_build import network, system
from etude.base.errors import CycleError, EtudeError, UsageError
from etude.machine import open_system
from etude.make.generate import Plan, generate
from etude.make.generate.model import Model
from etude.make.transform import with_durations
from etude.make.transform.dialects.astra import for_astra
from etude.make.transform.edits import edit_table
from etude.model.job import Job
from etude.run.astra import run
from etude.run.astra.config import AstraOptions, RemoteMemoryConfig
from etude.store import chakra

SMALL = {"name": "small", "layers": 2, "hidden": 64, "heads": 8, "ffn": 128, "vocab": 256, "seq": 64}
EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 32}
DATA = {"gpus": 4, "pp": 2, "zero": 1, "global_batch": 4}
TENSOR = {"gpus": 4, "pp": 2, "tp": 2, "global_batch": 2}
MIXTURE = {"gpus": 4, "ep": 4, "global_batch": 4}

FAR = RemoteMemoryConfig(kind="PER_NPU_MEMORY_EXPANSION", bytes_per_ns=1)
"""What nodes of memory load from and store to: without it ASTRA-sim refuses them."""
FASTER, SLOWER, RUNS = -1, 1, 0
CASES = [
    (DATA, "speed by=2", FASTER),
    (DATA, "dtype to=fp8", FASTER),
    (MIXTURE, "drop around=all_to_all", FASTER),
    (DATA, "compress ratio=2", FASTER),
    (DATA, "compress ratio=2 encode=4GB/s decode=2GB/s", SLOWER),
    (TENSOR, "compress ratio=1.5 encode=1GB/s where=inside chunk=4kB", SLOWER),
    (DATA, "fuse", FASTER),
    (DATA, "merge s=2", RUNS),
    (TENSOR, "split into=2", SLOWER),
    (MIXTURE, "chunk size=16kB", SLOWER),
    (MIXTURE, "rounds op=aten::mm k=1 message=16B", SLOWER),
    (TENSOR, "rounds op=aten::mm k=1 message=16B over=tp", SLOWER),
    (DATA, "relax", RUNS),
    (TENSOR, "relax agree=tp in_flight=keep", SLOWER),
    (TENSOR, "recompute", SLOWER),
    (MIXTURE, "overlap stream=30", RUNS),
    (MIXTURE, "one_sided control=8B", SLOWER),
    (TENSOR, "offload what=weights rate=1GB/s", SLOWER),
    (DATA, "data sample=1MB read=1GB/s decode=1GB/s", SLOWER),
    (TENSOR, "progress on=host cost=10us", SLOWER),
    (DATA, "scale axis=dp to=4", SLOWER),
]
REFUSED = [
    (TENSOR, "merge s=2", CycleError, "nodes would wait for one another"),
    (DATA, "rounds op=aten::mm k=1 message=16B", UsageError, "ranks would no longer agree"),
    (DATA, "relax agree=tp", UsageError, "agree: no group `tp`"),
    (TENSOR, "scale axis=dp to=4", UsageError, "axis: no group `dp`"),
]


@cache
def made(**plan: int) -> Job:
    model = Model.from_dict(SMALL | (EXPERTS if "ep" in plan else {}))
    return timed(generate(model, Plan.from_dict(plan)).job)


def timed(job: Job) -> Job:
    """With the times that a device takes where none are said: ASTRA mode replays them."""
    return with_durations(job, open_system("dgx-h100").device)


def finish_ns(job: Job, folder: Path) -> int:
    folder.mkdir()
    chakra.write_job(for_astra(timed(job)), folder)
    wires = network(("Ring", job.world_size, 50, 500))
    return int(run(etude.open(folder), wires, system("ring"), AstraOptions(remote_memory=FAR)).finish_ns.max())


def test_every_edit_of_the_catalogue_is_run_here():
    assert {text.split()[0] for _, text, _ in CASES} == {row["edit"] for row in edit_table()}


@pytest.mark.parametrize(("plan", "text", "way"), CASES)
def test_an_edited_job_runs_in_astra_mode(plan: dict[str, int], text: str, way: int, tmp_path: Path):
    job = made(**plan)
    before, after = finish_ns(job, tmp_path / "before"), finish_ns(etude.edit(job, text), tmp_path / "after")
    assert after > 0
    assert way == RUNS or (after > before) == (way == SLOWER)


@pytest.mark.parametrize(("plan", "text", "error", "reason"), REFUSED)
def test_what_cannot_be_is_refused_with_the_reason(
    plan: dict[str, int], text: str, error: type[EtudeError], reason: str
):
    with pytest.raises(error, match=reason):
        etude.edit(made(**plan), text)
