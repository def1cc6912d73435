"""Operators of programs that were run without numbers, against recordings of the same programs on a GPU.

    python benchmarks/validate_dry_operators.py recorded/ dry/

`recorded/` is what `record_foreign.py` wrote, `dry/` what `record_dry.py` wrote (neither is in the repository). Of the
recording, operators that a dry run has too and that are not inside of another of these, in the order in which they
began; of both, names and the shapes of tensors that are not scalars. Prints whether every step is the same, operator by
operator, and which differ if not.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path

from etude.capture.dry.recorded_rank import DryRank, read_dry_rank

STEPS = 3
Operator = tuple[str, str]


def shapes(given: list) -> str:
    """Shapes of tensors of at least one dimension, whatever list they are in."""
    found: list[list[int]] = []

    def walk(value: list) -> None:
        if value and all(isinstance(size, int) for size in value):
            found.append(value)
            return
        for item in value:
            if isinstance(item, list):
                walk(item)

    walk(given)
    return json.dumps(found)


def dry_step(rank: DryRank) -> list[Operator]:
    columns, words = rank.columns, rank.words
    rows = [i for i, works in enumerate(columns.works) if works and columns.step[i] == 1]
    return [(words[columns.name[i]], shapes(json.loads(words[columns.in_shapes[i]]))) for i in rows]


def recorded(folder: Path, names: set[str]) -> list[Operator]:
    nodes = json.loads(gzip.decompress(next(folder.glob("*.et.json.gz")).read_bytes()))["nodes"]
    by_id = {node["id"]: node for node in nodes}
    inside: dict[int, bool] = {}

    def is_inside(node: dict) -> bool:
        """Whether it is called by one of the operators."""
        found = inside.get(node["id"])
        if found is None:
            caller = by_id.get(node["ctrl_deps"])
            found = caller is not None and caller is not node and (caller["name"] in names or is_inside(caller))
            inside[node["id"]] = found
        return found

    ordered = sorted((node for node in nodes if node["name"] in names), key=lambda node: node["id"])
    return [(node["name"], shapes(node["inputs"]["shapes"])) for node in ordered if not is_inside(node)]


def main(recordings: Path, dry: Path) -> None:
    same = tried = 0
    for folder in sorted(path for path in recordings.iterdir() if path.is_dir()):
        file = dry / f"{folder.name}.rank.json.gz"
        rank = read_dry_rank(file) if file.exists() else None
        if rank is None or rank.problem is not None or "compiled" in folder.name:
            continue
        step = dry_step(rank)
        found = recorded(folder, {name for name, _ in step})
        tried += 1
        if found == step * STEPS:
            same += 1
            print(f"{folder.name:24} {len(step):>6,} operators a step: the same in {STEPS} steps")
            continue
        more, fewer = Counter(found) - Counter(step * STEPS), Counter(step * STEPS) - Counter(found)
        print(f"{folder.name:24} {len(step):>6,} operators a step, {len(found):,} recorded in {STEPS}; "
              f"{more.total()} more, {fewer.total()} fewer{'' if more or fewer else ', in another order'}")  # fmt: skip
        for sign, differs in (("+", more), ("-", fewer)):
            for (name, shape), count in differs.most_common(4):
                print(f"    {sign}{count} {name} {shape[:100]}")
    print(f"{same} of {tried} programs have the same operators, shapes and order")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
