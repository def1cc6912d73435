"""The host's time for an op of a generated step that stands for a model of transformers in eager PyTorch.

    python benchmarks/record_dry.py -o dry/ --steps 3 --batch 1 --only llama gpt2 qwen3 mistral olmo2 falcon bloom ...
    python benchmarks/fit_transformers.py dry/

A generated step has fewer and larger ops than the program. For each program that was run without numbers, `host` is
such that the generated step takes as long as `predict --program` says by its table of operators of an H200 and its
host; the stack `transformers` has the median of the programs in FITTED, whose operators that table was made from. The
others are held out: their generated steps are compared with what the table says, and with what was measured: the
table's errors are in `held_out_errors.csv`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from held_out_errors import read_rows
from scipy.optimize import brentq
from validate_dry_steps import program_of

from etude.cost.stacks import Stack, open_stack
from etude.machine import System, open_system
from etude.make.generate import Plan
from etude.make.generate.model import Model, open_model
from etude.steps.measured.recipes import RunFacts, completed
from etude.steps.program import predict_program
from etude.steps.step import step_time

SHAPE = {"hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 32000}
MODELS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "llama": (1, 512, {**SHAPE, "intermediate_size": 4096, "num_hidden_layers": 16, "num_key_value_heads": 4}),
    "gpt2": (8, 512, {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}),
    "mistral": (1, 1024, {**SHAPE, "intermediate_size": 3584, "num_hidden_layers": 8, "num_key_value_heads": 4}),
    "olmo2": (1, 384, {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 14,
                       "num_attention_heads": 12, "vocab_size": 50304}),
    "falcon": (2, 512, {**SHAPE, "num_hidden_layers": 8}),
    "bloom": (4, 256, {"hidden_size": 768, "n_layer": 10, "n_head": 12, "vocab_size": 32000}),
    "gpt_bigcode": (2, 512, {"n_embd": 768, "n_layer": 10, "n_head": 12, "n_positions": 1024, "vocab_size": 49152}),
    "gptj": (2, 256, {"n_embd": 768, "n_layer": 8, "n_head": 12, "rotary_dim": 32, "vocab_size": 50400}),
}  # fmt: skip
"""Batch, sequence and published config of programs of `foreign_programs.py`."""
NAMES = {"gptj": "gpt_j"}
FITTED = ("llama", "gpt2")
MOST_NS = 1e6


@dataclass(frozen=True, slots=True)
class Case:
    model: Model
    plan: Plan
    system: System
    stack: Stack

    def step_ns(self, host_ns: float) -> float:
        plan = self.plan.replace(host_ns=host_ns, clip=False)  # these programs do not cut gradients
        return step_time(self.model, plan, self.system, self.stack) * 1e9


def case_of(kind: str, system: System, stack: Stack) -> Case:
    batch, seq, config = MODELS[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kind}.json"
        path.write_text(json.dumps({"model_type": kind, **config}))
        model = open_model(str(path))
    given = {"micro_batch": batch, "global_batch": batch, "seq": seq, "recompute": "none"}
    return Case(model, completed(RunFacts(model=model, given=given, system=system), stack)[0], system, stack)


def table_errors() -> Mapping[str, float]:
    """ln(predicted / measured) of `predict --program`, of each program at its own batch: the first of its rows."""
    found: dict[str, float] = {}
    for row in read_rows()["programs"]:
        if row.case.figure == "program step":
            found.setdefault(row.model, row.error)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dry", type=Path)
    folder = parser.parse_args().dry
    system, stack, errors = open_system("dgx-h200"), open_stack("transformers"), table_errors()
    hosts, off = {}, {"table": [], "measured": []}
    host_ns = next(rule.plan["host"] for rule in stack.recipe if "host" in rule.plan)
    for kind in MODELS:
        name = NAMES.get(kind, kind)
        program = program_of(name, 1, folder)
        if program is None:
            print(f"{name:12} was not run")
            continue
        table_ns, case = predict_program(program, system).step_ns, case_of(kind, system, stack)
        hosts[name] = brentq(partial(_beyond, case, table_ns), 0.0, MOST_NS, rtol=1e-3)
        made_ns = case.step_ns(float(str(host_ns).removesuffix("us")) * 1e3)
        text = f"{name:12} table {table_ns / 1e6:6.2f} ms: host {hosts[name] / 1e3:5.1f} us"
        text += f"; generated {made_ns / 1e6:6.2f} ms, {made_ns / table_ns - 1:+6.1%} of the table"
        if name not in FITTED:
            off["table"].append(made_ns / table_ns - 1)
            if name in errors:
                measured_ns = table_ns / np.exp(errors[name])
                off["measured"].append(made_ns / measured_ns - 1)
                text += f", {off['measured'][-1]:+6.1%} of {measured_ns / 1e6:.2f} ms measured"
        print(text, flush=True)
    fit = [hosts[name] for name in FITTED if name in hosts]
    print(f"host {np.median(fit) / 1e3:.0f} us by {len(fit)} programs; the stack has {host_ns}")
    for what, its in off.items():
        print(f"held out, of the {what}: {len(its)} programs, median {np.median(np.abs(its)):.1%}, "
              f"from {min(its):+.1%} to {max(its):+.1%}")  # fmt: skip
    return 0


def _beyond(case: Case, goal_ns: float, host_ns: float) -> float:
    return case.step_ns(host_ns) - goal_ns


if __name__ == "__main__":
    sys.exit(main())
