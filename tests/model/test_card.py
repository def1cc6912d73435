from pathlib import Path

import pytest

from etude.base.errors import UsageError
from etude.model.card import Card, HardwareCard, ModelCard, PlanCard, SoftwareCard, Workload
from etude.store import cards

FULL = Card(
    name="run",
    model=ModelCard(name="gpt", params=124_000_000),
    plan=PlanCard(workload=Workload.TRAINING, ranks=8, tp=4, dp=2, more={"optimizer": "adam"}),
    hardware=HardwareCard(device="NVIDIA H200", memory_bytes=141_000_000_000),
    software=SoftwareCard(backend="nccl", versions={"torch": "2.11.0"}),
)


@pytest.mark.parametrize("card", [FULL, Card()])
def test_a_card_comes_back_as_it_was(card: Card, tmp_path: Path) -> None:
    cards.write(card, tmp_path / "card.yaml")
    assert cards.find(tmp_path) == card
    assert "nothing" not in card.to_dict()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("card: 1\nmodle: {}\n", "unknown key `modle`"),
        ("card: 1\nplan: {tensor: 4}\n", "card.yaml: plan: unknown key `tensor`"),
        ("card: 2\n", "version 2 is not known"),
        ("plan: {ranks: 8, tp: 3}\n", "tp x cp x dp x pp is 3, ranks are 8"),
        ("plan: {workload: dreaming}\n", "unknown value `dreaming`"),
        ("hardware: {memory: -1}\n", "hardware: memory"),
        ("- a\n", "expected keys and values"),
        ("a: [\n", "is not YAML"),
    ],
)
def test_what_is_wrong_with_a_card_is_said_with_its_place(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "card.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        cards.find(tmp_path)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("job", "card"),
    [("run.0.et.gz", "run.0.card.yaml"), ("trace.kineto.json.gz", "trace.card.yaml"), ("ddp_4p", "ddp_4p.card.yaml")],
)
def test_where_a_card_lies(job: str, card: str, tmp_path: Path) -> None:
    assert cards.place(tmp_path / job) == tmp_path / card
    assert cards.find(tmp_path / job) is None
