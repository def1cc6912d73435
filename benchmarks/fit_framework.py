"""What PyTorch's operators take by name, from recordings of eager programs on a GPU, and how well it tells the others.

    python benchmarks/record_foreign.py -o recorded/          on a machine with a GPU, `--only` all programs
    python benchmarks/record_dry.py -o dry/ --steps 3
    python benchmarks/fit_framework.py recorded/ dry/ -o src/etude/cost/framework/pytorch.csv
    python benchmarks/fit_framework.py recorded/ dry/ --add -o src/etude/cost/framework/pytorch.csv
    python benchmarks/fit_framework.py recorded/ dry/         the steps of all programs by the table as it is shipped

A row is fitted to programs of `SEEN`, `HELD_OUT` and `LATER` of `foreign_programs.py`: the host's times are the medians
of programs, the device's `fixed + factor x formula` has the least relative error over their shapes, which count by
their time, far ones less. Programs of `LATEST`, `LAST`, `FRESH` and the folder `programs` are predicted by it (`predict
--program` without a recording). With `--add` the host's times stay, those of the device are fitted again to what is
recorded, with programs of `operator_programs.py`; names that only these have get of the host the median of all, but
where it does not wait for the device. Neither the recordings nor the dry runs are in the repository.
"""

from __future__ import annotations

import argparse
import csv
import functools
import inspect
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from foreign_programs import HELD_OUT, LATER, PROGRAMS, SEEN
from operator_programs import OPERATORS
from scipy.optimize import nnls
from validate_dry_steps import error, program_of

import etude
from etude.cost.framework import FrameworkOperator, open_framework
from etude.cost.framework.operators import ANY, WEIGHTS_OF, form_of, on_lists
from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.make.transform.recorded_operators import RecordedOperators, distinct_operators, formula_ns
from etude.steps.program import predict_program

FITTED = {program.__name__ for program in (*SEEN, *HELD_OUT, *LATER)}
HOST_BOUND = 0.9
"""Share of the time that a device is busy, below which the host does not wait for it."""
FEWEST = 3
"""Shapes of an operator from which on it has a line of its own on the device."""
HOST_NS = 18_000
TURNS = 8
NEAR = 0.05
"""Relative error below which shapes count the same."""
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


class Seen:
    """Of one name: the host's times by program, and (formula, device time, calls) by shape."""

    def __init__(self) -> None:
        self.ahead: list[float] = []
        self.inside: list[float] = []
        self.shapes: list[tuple[float, float, float]] = []


def look(folder: Path, dry: Path, found: dict[str, Seen], *, host: bool = True) -> None:
    """Adds what a recording shows, by the work that a dry run of it knows."""
    program = program_of(folder.name, 1, dry)
    if program is None:
        return
    (trace,), device = program.job.traces, open_system("dgx-h200").device
    keys, which = distinct_operators(trace, np.arange(len(trace)))
    formulas = formula_ns(trace, np.unique(which, return_index=True)[1], device)
    table = RecordedOperators.of(etude.open(folder), {key.name for key in keys}, device)
    tensors: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for key, formula in zip(keys, formulas.tolist(), strict=True):
        time = table.time_of(key)
        if time is None:
            continue
        tensors[key.name][0] += max(len(key.types), 1) * time.calls
        tensors[key.name][1] += time.calls
        if time.device_ns > 0 and formula > 0:
            found[form_of(key.name, key.shapes)].shapes.append((formula, time.device_ns, time.calls))
    for (before, name), (ahead, inside, times) in table.host.items():
        if host and not before:
            count, calls = tensors[name]
            each = times * (count / calls if on_lists(name) and calls else 1.0)
            found[name].ahead.append(table.host_factor * ahead / each)
            found[name].inside.append(table.host_factor * inside / each)


def line(shapes: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """(Fixed time, factor on the formula.)"""
    formula, took, calls = np.array(shapes).T
    counts = np.ones(len(took))
    share = calls * took  # what is short and often called says little of what is long
    for _ in range(TURNS):
        weight = np.sqrt(np.sqrt(share) * counts) / took
        (fixed, factor), _ = nnls(np.stack([weight, weight * formula], axis=1), weight * took)
        counts = 1 / np.maximum(np.abs((fixed + factor * formula) / took - 1), NEAR)
    return float(fixed), float(factor)


def fitted(recorded: Path, dry: Path) -> dict[str, FrameworkOperator]:
    found: dict[str, Seen] = defaultdict(Seen)
    for folder in sorted(path for path in recorded.iterdir() if path.name in FITTED):
        look(folder, dry, found)
    rest = line([shape for name, seen in found.items() if is_simple(name) for shape in seen.shapes])
    for name in [name for name in found if " " in name]:
        host = found[name.split()[0]]
        found[name].ahead, found[name].inside = host.ahead, host.inside
    known = {name: seen for name, seen in sorted(found.items()) if seen.ahead}
    one = [seen for name, seen in known.items() if not on_lists(name)]
    each = (statistics.median(statistics.median(times(seen)) for seen in one)
            for times in (lambda seen: seen.ahead, lambda seen: seen.inside))  # fmt: skip
    table = {ANY: FrameworkOperator(*each, *rest, 0)}
    for name, seen in known.items():
        device = line(seen.shapes) if len(seen.shapes) >= FEWEST else rest
        host = statistics.median(seen.ahead), statistics.median(seen.inside)
        table[name] = FrameworkOperator(*host, *device, len(seen.ahead))
    return table


def renewed(table: Mapping[str, FrameworkOperator], recorded: Path, dry: Path) -> dict[str, FrameworkOperator]:
    """The table with what the device takes fitted to these recordings; a row stays as it is where there are too few
    shapes. Names that are new have the median of all for the host, but where the host did not wait for the device."""
    models: dict[str, Seen] = defaultdict(Seen)
    plain: dict[str, Seen] = defaultdict(Seen)
    for folder in sorted(path for path in recorded.iterdir() if path.name in FITTED):
        look(folder, dry, models, host=False)
    for folder in (recorded / program.__name__ for program in OPERATORS):
        busy = json.loads((folder / "reference.json").read_text())["busy_alone"]
        look(folder, dry, plain, host=busy < HOST_BOUND)
    shapes = {name: models[name].shapes + plain[name].shapes for name in sorted({*models, *plain})}
    shapes = {name: seen for name, seen in shapes.items() if seen}
    fixed, factor = line([one for name, seen in shapes.items() if is_simple(name) for one in seen])
    rest = table[ANY]._replace(fixed_ns=fixed, factor=factor)
    few = table[ANY].fixed_ns, table[ANY].factor
    like_any = {name: row._replace(fixed_ns=fixed, factor=factor) for name, row in table.items() if row[2:4] == few}
    rows = dict(table) | like_any
    for name, seen in shapes.items():
        inside = [] if on_lists(name) else plain[name].inside
        host = statistics.median(inside) if inside else rest.inside_ns
        row = rows.get(name) or rows.get(name.split()[0]) or rest._replace(inside_ns=host)
        on_device = line(seen) if len(seen) >= FEWEST else (row.fixed_ns, row.factor)
        rows[name] = row._replace(fixed_ns=on_device[0], factor=on_device[1])
    return rows


def is_simple(name: str) -> bool:
    return name.split()[0] not in (*PRODUCTS, *WEIGHTS_OF)


def write(table: dict[str, FrameworkOperator], out: Path) -> None:
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["name", *FrameworkOperator._fields])
        for name, row in table.items():
            *times, factor, programs = row
            writer.writerow([name, *(round(time) for time in times), f"{factor:.3f}", programs])


def of_transformers(program: Callable[..., object]) -> bool:
    """Its model is one of that library."""
    script = isinstance(program, functools.partial)
    text = Path(program.args[0]).read_text() if script else inspect.getsource(program)
    return any(word in text for word in ("transformers", "_causal(", "_masked("))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("dry", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--add", action="store_true", help="device times of these, and names that are new")
    given = parser.parse_args()
    if given.out is not None:
        rows = open_framework().rows
        table = renewed(rows, given.recorded, given.dry) if given.add else fitted(given.recorded, given.dry)
        write(table, given.out)
        print(f"{len(table)} rows")
        return
    system, eager, errors = open_system("dgx-h200"), open_stack("eager"), defaultdict(list)
    for folder in sorted(path for path in given.recorded.iterdir() if path.is_dir()):
        program = program_of(folder.name, 1, given.dry)
        if program is None:
            print(f"{folder.name:24} stops where values decide, or has no optimizer")
            continue
        reference = json.loads((folder / "reference.json").read_text())
        step_ns = predict_program(program, system).step_ns
        plain_ns = predict_program(program, system, stack=eager, host_ns=HOST_NS).step_ns
        wrong, kind = error(step_ns, reference), "fitted" if folder.name in FITTED else "other"
        errors[kind].append(wrong)
        errors["by formulas and 18 us"].append(error(plain_ns, reference))
        if kind == "other" and of_transformers(PROGRAMS[folder.name]):
            errors["other, transformers"].append(wrong)
        sides = f"{reference['before_ns'] / 1e6:8.2f}{reference['after_ns'] / 1e6:8.2f} ms"
        busy, shown = f"busy {reference['busy_alone']:4.0%}", f"{step_ns / 1e6:7.2f} {wrong:+7.1%}"
        print(f"{folder.name:24} {kind:7}{sides}; {busy}; predicted {shown}", flush=True)
    for kind, found in errors.items():
        median, tail = np.percentile(np.abs(found), (50, 90))
        span = f"from {min(found):+.1%} to {max(found):+.1%}"
        print(f"{kind:22} {len(found)} programs: median {median:.1%}, p90 {tail:.1%}, {span}")


if __name__ == "__main__":
    main()
