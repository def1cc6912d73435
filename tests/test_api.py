"""Functions of `etude`: what they refuse."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.errors import UsageError

CLIENTS = Path(__file__).resolve().parent.parent / "examples" / "clients.csv"
UNKNOWN: dict[str, Callable[[], Any]] = {
    # 70 billion parameters do not fit either: the name that means nothing comes first
    "predict": lambda: etude.predict("llama3-70b", "dgx-h100", gpus=8, nonsense=1),
    "predict, a plan": lambda: etude.predict("llama3-70b", "dgx-h100", etude.Plan(gpus=8), nonsense=1),
    "generate": lambda: etude.generate("gpt2", nonsense=1),
    "generate, a plan": lambda: etude.generate("gpt2", etude.Plan(), nonsense=1),
    "micro": lambda: etude.micro("all_reduce", ranks=2, nonsense=1),
    "serve": lambda: etude.serve("gpt2", "dgx-h100", rate_per_s=1, nonsense=1),
    "fleet": lambda: etude.fleet("gpt2", "dgx-h100", gpus=8, nonsense=1),
    "fleet, a plan": lambda: etude.fleet("gpt2", "dgx-h100", etude.Plan(gpus=8), nonsense=1),
    "federate": lambda: etude.federate("gpt2", CLIENTS, nonsense=1),
    "synthesise": lambda: etude.synthesise(None, nonsense=1),
    "replay": lambda: etude.replay(etude.micro("all_reduce", ranks=2), nonsense=1),
    "search": lambda: etude.search("space.yaml", nonsense=1),
    "plan": lambda: etude.plan("gpt2", "dgx-h100", nonsense=1),
    "collect": lambda: etude.collect(["true"], "run/", nonsense=1),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_name_that_means_nothing_is_refused_before_all_else(name: str):
    with pytest.raises(UsageError, match="nonsense") as problem:
        UNKNOWN[name]()
    assert "known: " in problem.value.hint


def test_what_was_hidden_is_not_printed():
    copy, hidden = etude.anonymise(etude.generate("gpt2", gpus=1, seq=64).job, keep_shapes=True)
    assert copy.name == "anonymous"
    assert "aten" in str(hidden.tokens)
    assert repr(hidden).startswith("Hidden(")
    assert "aten" not in repr(hidden)
