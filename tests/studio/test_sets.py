"""Ranks by what they are in a job."""

import pytest

import etude
from etude.tell.studio.sets import sets_of


def made(**plan: object) -> dict[str, list[int]]:
    return sets_of(etude.generate("gpt2", seq=64, global_batch=8, **plan).job)  # type: ignore[arg-type]


def test_stages_groups_and_positions() -> None:
    found = made(gpus=8, tp=2, pp=2)
    assert found["stage 0"] == [0, 1, 2, 3] and found["stage 1"] == [4, 5, 6, 7]
    assert found["tp.1"] == [4, 5] and found["tp[1]"] == [1, 3, 5, 7]
    assert "world.0" not in found


def test_a_longer_pipeline() -> None:
    found = made(gpus=8, pp=4)
    assert [found[f"stage {k}"] for k in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("plan", [{"gpus": 4}, {"gpus": 8, "cp": 2}, {"gpus": 8, "cp": 2, "pp": 2}])
def test_what_is_no_chain_has_no_stages(plan: dict[str, int]) -> None:
    assert not [name for name in made(**plan) if name.startswith("stage")]
