"""Every string that PyTorch wrote of a run, looked for in everything that is given away: copies, models, made jobs."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from etude.make.synth.learned import COLUMNS
from etude.model.build import TraceBuilder, job_of
from etude.model.schema import Collective, Kind
from etude.model.timing import measured
from etude.store import chakra
from etude.surface.cli import main

PIECE = re.compile(rb"[A-Za-z_][A-Za-z0-9_.:/@#-]{3,}")
COPIES = {
    "et": ["anonymise", "IN", "-o", "OUT", "--to", "et"],
    "json": ["anonymise", "IN", "-o", "OUT", "--to", "json", "--round", "8"],
    "parquet": ["anonymise", "IN", "-o", "OUT"],
    "model": ["learn", "IN", "-o", "OUT"],
    "coarse": ["learn", "IN", "-o", "OUT", "--at-least", "5"],
    "made": ["generate", "learned", "MODEL", "-o", "OUT", "--ranks", "4", "--to", "et"],
    "folded": ["generate", "learned", "MODEL", "-o", "OUT"],
}


def written(folder: Path, source: Path) -> dict[str, bytes]:
    """Bytes of all that is made of a job, and what Parquet holds packed."""
    found = {}
    folder.mkdir()
    for name, args in COPIES.items():
        places = {"IN": str(source), "OUT": str(folder / name), "MODEL": str(folder / "model")}
        assert main([places.get(arg, arg) for arg in args] + ["--json"]) == 0, name
        files = sorted((folder / name).iterdir()) if (folder / name).is_dir() else [folder / name]
        blob = b""
        for path in files:
            blob += b"\n" + path.name.encode() + b"\n" + path.read_bytes()
            if path.suffix == ".parquet":
                blob += repr(pq.read_metadata(path).metadata).encode() + repr(pq.read_table(path).to_pydict()).encode()
        found[name] = blob
    return found


def strings(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key.encode()
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value.encode()


def words_of(files: list[Path]) -> set[bytes]:
    """Strings of the files and the words in them."""
    whole = {s for path in files for s in strings(json.loads(gzip.decompress(path.read_bytes())))}
    found = whole | {piece for s in whole for piece in PIECE.findall(s)}
    return {word for word in found if len(word) > 3 and re.search(rb"[A-Za-z]", word)}


def nothing_of_note(folder: Path) -> Path:
    """A job with all that the formats can say and nothing to hide: its words are those of the formats."""
    builders = []
    for _ in range(2):
        b = TraceBuilder()
        a = b.add(Kind.COMP, "x", duration_ns=9, cpu=1, thread=4, module="y", phase="z", step=0)
        k = b.add(Kind.COMP, "k", duration_ns=9, cpu=0, stream=7, data=[a], parent=a, flops=8, tensor_bytes=9)
        b.add(Kind.COLL, "c", data=[k], collective=Collective.ALL_REDUCE, in_bytes=64, out_bytes=64, group="g")
        builders.append(b)
    job = job_of("n", builders, {"g": [0, 1]})
    folder.mkdir()
    starts = [t.duration_ns * 0 for t in job.traces]
    chakra.write_job(job.replace(timing=measured(starts, [t.duration_ns for t in job.traces])), folder)
    return folder


def test_no_string_of_a_recorded_run_is_in_what_is_given_away(tmp_path: Path, shared: Path):
    run = shared / "traces" / "torch_cpu" / "moe_2p"
    assert main(["link", str(run), "-o", str(tmp_path / "secret_run"), "-j", "1"]) == 0
    words = words_of(sorted(run.parent.glob("moe_2p.rank*.json.gz")))
    assert {b"aten::mm", b"record_param_comms"} & words
    format_words = b"".join(written(tmp_path / "n", nothing_of_note(tmp_path / "plain")).values())
    format_words += b"autograd all_to_all all_gather"  # a reason of edges, and what collectives do, are kept
    for name, blob in written(tmp_path / "out", tmp_path / "secret_run").items():
        assert b"secret_run" not in blob and b"moe_2p" not in blob, name
        left = sorted(word for word in words if word in blob and word not in format_words)
        assert left == [], name
    assert (tmp_path / "out" / "model").stat().st_size < 120_000
    model = json.loads((tmp_path / "out" / "coarse").read_text())
    assert set(model["classes"][0]["sketches"]) <= set(COLUMNS)
