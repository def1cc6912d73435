"""A program is saved and loaded as it is, and numbers that name nothing are refused."""

import subprocess
import sys

import numpy as np
import pytest

from etude.base.errors import EtudeError, FormatError, TraceError
from etude.run.replay.builder import ProgramBuilder
from etude.run.replay.program import CommKind, Program, StandInKind, StepKind, StorageOrigin, load, save


def small() -> Program:
    b = ProgramBuilder(rank=1, world_size=2)
    weights = b.storage(64, origin=StorageOrigin.OUTSIDE)
    w = b.slot(weights, "float32", [4, 4])
    t = b.slot(weights, "float32", [4, 4], [1, 4])
    out = b.slot(b.storage(64), "float32", [4, 4], [4, 1])
    b.mark(0)
    b.view(w, t)
    b.call("aten::mm", [{"t": 0}, {"t": 1}], [w, t], [out], schema="aten::mm(Tensor self, Tensor mat2) -> Tensor")
    row = b.comm(CommKind.ALL_REDUCE, in_bytes=64, out_bytes=64, inputs=[out], outputs=[out], is_async=True,
                 group=b.group([0, 1], "dp"))  # fmt: skip
    b.stand_in(StandInKind.GEMM, "fused", flops=128, size_bytes=96)
    b.wait(row)
    return b.build()


def test_what_is_saved_is_loaded(tmp_path):
    save(small(), tmp_path / "rank1.program")
    found = load(tmp_path / "rank1.program")
    assert found.about["rank"] == 1 and found.groups == ((0, 1),) and found.group_names == ("dp",)
    assert found.ops == ("aten::mm",) and found.forms == ('[{"t": 0}, {"t": 1}]',)
    kinds = [StepKind(k).name for k in found.steps.kind]
    assert kinds == ["MARK", "VIEW", "CALL", "COMM", "STAND_IN", "WAIT"]
    assert found.calls.inputs[0] == [0, 1] and found.calls.outputs[0] == [2]
    assert found.layouts.stride[int(found.slots.layout[1])] == [1, 4]
    assert found.comms.kind.tolist() == [CommKind.ALL_REDUCE] and found.stand_ins.flops.tolist() == [128]


def test_what_is_no_program_is_refused(tmp_path):
    (tmp_path / "x.program").write_bytes(b"PK nothing")
    with pytest.raises(FormatError):
        load(tmp_path / "x.program")
    np.savez(tmp_path / "y.npz", head=np.zeros(3, np.uint8))
    with pytest.raises(FormatError):
        load(tmp_path / "y.npz")


def test_a_slot_that_is_not_there_is_refused():
    b = ProgramBuilder()
    b.call("aten::neg", [{"t": 0}], [7], [])
    with pytest.raises(TraceError, match="calls: inputs: 7"):
        b.build()
    assert issubclass(TraceError, EtudeError)


def test_a_program_needs_numpy_and_nothing_else_of_the_house():
    code = (
        "import sys, etude.run.replay.program\n"
        "print([m for m in ('numba', 'pyarrow', 'typer', 'msgspec', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
