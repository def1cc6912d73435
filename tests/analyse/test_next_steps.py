"""What to do next about each kind of finding, and the command that shows more of it."""

import shlex
from dataclasses import replace

import pytest

from etude.analyse.findings import KINDS, Verdict
from etude.analyse.next_steps import command, next_step
from etude.surface.cli.registry import verb_named


def finding(kind: str, **more: object) -> Verdict:
    one = Verdict(kind=kind, level="", ranks=(3,), steps=None, cost_ns=0, run_ns=100, confidence=0.9)
    return replace(one, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_an_action_and_a_command_that_there_is(kind: str) -> None:
    assert next_step(finding(kind)).endswith((".", ")."))
    etude, verb, run, *flags = shlex.split(command(finding(kind)))
    assert (etude, run) == ("etude", "RUN")
    known = verb_named(verb)
    assert {flag.removeprefix("--") for flag in flags} <= set(known.asks.__dataclass_fields__)


def test_an_action_names_who_and_when() -> None:
    assert "rank 3" in next_step(finding("hang"))
    assert "these ranks" in next_step(finding("loader", ranks=(1, 2)))
    assert "every 8 steps" in next_step(finding("periodic", every=8))
    assert "step 17" in next_step(finding("common_change", steps=(17, 30)))
    assert next_step(finding("slow_rank", level="power")) != next_step(finding("slow_rank", level="kernel"))
