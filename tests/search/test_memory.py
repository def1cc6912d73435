"""What lies in a small device: by hand, by brute force, and a published table."""

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from etude.decide.search import search
from etude.decide.search.pieces import Client, PieceWork, TensorPiece, client_of
from etude.decide.search.spaces.memory import PHASES, Problem, pass_ms, placed_by
from etude.machine import open_device
from etude.surface.cli import main

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "search" / "memory.yaml"
CLIENT = Client(near_bytes_per_ms=100.0, link_bytes_per_ms=10.0, far_bytes_per_ms=5.0, device_flop_per_ms=1000.0,
                host_flop_per_ms=10.0, hop_ms=0.5)  # fmt: skip


def piece(
    name: str, count: int, size: float, *, tokens: float = 10.0, use: float = 1.0, ahead: bool = True
) -> TensorPiece:
    work = PieceWork(read_bytes=size, flops=2.0 * size * tokens)
    return TensorPiece(name=name, count=count, size_bytes=size, prompt=work,
                       token=PieceWork(read_bytes=size * use, flops=2.0 * size * use, ahead=ahead))  # fmt: skip


def problem(
    *pieces: TensorPiece, ways: tuple[str, ...] = ("copy", "cpu"), overlap: bool = True, **weights: float
) -> Problem:
    return Problem(pieces, CLIENT, ways, overlap, {"prompt": 0.0, "token": 0.0} | weights)


def test_one_tensor_by_hand():
    one = problem(piece("a", 1, 100.0), token=1.0)
    # near: 100 B at 100 B/ms, 200 FLOP at 1000: 1 ms. Copied: 10 ms on the link, 20 ms of the host's memory.
    # The host: 20 ms to read and 20 ms to multiply, side by side, and half a ms for the way.
    assert pass_ms(one, placed_by(one, 100.0), "token") == 1.0
    assert placed_by(one, 99.0).copied["token"] == (1,)
    assert pass_ms(one, placed_by(one, 99.0), "token") == 20.0
    host = problem(piece("a", 1, 100.0), ways=("cpu",), token=1.0)
    assert pass_ms(host, placed_by(host, 99.0), "token") == 20.5
    late = problem(piece("a", 1, 100.0, ahead=False), ways=("copy",), token=1.0)
    # A copy that nobody can begin ahead is waited for: 10 and 1 ms, less than the host's memory takes for it.
    assert pass_ms(late, placed_by(late, 0.0), "token") == 20.0
    prompts = problem(piece("a", 1, 100.0), ways=("cpu",), prompt=1.0)
    assert pass_ms(prompts, placed_by(prompts, 0.0), "prompt") == 2000 / 10 + 0.5


def naive(given: Problem, room: float) -> float:
    """Every tensor by name: in the device, copied or left to the host, for each phase by itself."""
    single = [p for p in given.pieces for _ in range(p.count)]
    best = float("inf")
    for here in itertools.product([True, False], repeat=len(single)):
        if sum(p.size_bytes for p, h in zip(single, here, strict=True) if h) > room:
            continue
        score = 0.0
        for phase in PHASES:
            least = float("inf")
            for ways in itertools.product(given.ways, repeat=len(single) - sum(here)):
                rest, turn, link, host = iter(ways), 0.0, 0.0, 0.0
                for p, h in zip(single, here, strict=True):
                    work = getattr(p, phase)
                    near = max(work.read_bytes / 100, work.flops / 1000)
                    way = "vram" if h else next(rest)
                    turn += near if way != "cpu" else 0.5 + max(work.read_bytes / 5, work.flops / 10)
                    if way == "copy":
                        link += work.read_bytes / 10
                        turn += 0.0 if given.overlap and work.ahead else work.read_bytes / 10
                    host += 0.0 if h else work.read_bytes / 5
                least = min(least, max(turn, link, host))
            score += given.weights[phase] * least
        best = min(best, score)
    return best


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("ways", [("copy", "cpu"), ("cpu",), ("copy",)])
def test_searches_against_brute_force(ways: tuple[str, ...], overlap: bool):
    pieces = piece("a", 2, 30.0, tokens=3), piece("b", 2, 50.0, tokens=1, use=0.2, ahead=False), piece("c", 1, 17.0)
    for weights in ({"prompt": 1.0, "token": 7.0}, {"token": 1.0}, {"prompt": 1.0}):
        given = problem(*pieces, ways=ways, overlap=overlap, **weights)
        before = float("inf")
        for room in (0.0, 20.0, 47.0, 61.0, 90.0, 130.0, 177.0):
            found = {
                method: sum(given.weights[p] * pass_ms(given, placed_by(given, room, method), p) for p in PHASES)
                for method in ("ilp", "all", "greedy")
            }
            best = naive(given, room)
            assert found["ilp"] == pytest.approx(best) == found["all"]
            assert found["greedy"] >= best - 1e-9
            assert best <= before + 1e-9
            before = best
        alone = sum(given.weights[p] * pass_ms(given, placed_by(given, 1e9), p) for p in PHASES)
        assert before == pytest.approx(alone)


def space(folder: Path, **keys: Any) -> Path:
    path = folder / "space.yaml"
    path.write_text(json.dumps({"search": "memory", "model": "llama3-8b", "vram": ["2GiB", "8GiB", "24GiB"]} | keys))
    return path


def test_no_faster_than_any_memory_reads(tmp_path: Path):
    client = client_of(open_device("rtx5090"), open_device("desktop"))
    for score in ("tokens", "request", "ttft"):
        found = search(space(tmp_path, score=score, prompt=2048))
        for row in found.rows:
            read = row["read_bytes"]
            at_best = max(read["vram"] / client.near_bytes_per_ms, read["link"] / client.link_bytes_per_ms,
                          read["host"] / client.far_bytes_per_ms)  # fmt: skip
            assert row["tokens_per_s"] <= 1e3 / at_best * (1 + 1e-9)
            assert row["resident_bytes"] <= row["vram_bytes"] - 5e8
        name = {"tokens": "token_ms", "request": "request_ms", "ttft": "ttft_ms"}[score]
        assert [row[name] for row in found.rows] == sorted((row[name] for row in found.rows), reverse=True)
    assert sum(found.more["sizes"].values()) == pytest.approx(2 * 8030261248 + 32 * 2 * 2 * 8 * 128 * 2048)


def test_a_published_table(tmp_path: Path, shared: Path):
    """The order of budgets and the knee, 4K tokens: an 8B model in bf16 and a mixture of experts at 4.5 bits."""
    rows = list(csv.DictReader((shared / "measured" / "pipeshard_table4.csv").open()))
    for name, model, bits in (("nemo-8b", "llama3-8b", 16), ("qwen-30b", "qwen3-30b-a3b", 4.5)):
        mine = [row for row in rows if row["Model"] == name and row["CtxSize"] == "4K"]
        rooms = [f"{row['VramMB']}MiB" for row in mine]
        found = search(space(tmp_path, model=model, bits=bits, vram=rooms, score="tokens")).rows
        measured, predicted = [float(row["TPS"]) for row in mine], [row["tokens_per_s"] for row in found]
        knees = [next(i for i, v in enumerate(of) if v >= 0.9 * of[-1]) for of in (measured, predicted)]
        assert knees[0] == knees[1]
        assert all(b >= a * 0.999 for a, b in itertools.pairwise(predicted))
        if name == "nemo-8b":
            assert all(0.6 < p / m < 1.8 for p, m in zip(predicted, measured, strict=True))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"score": "money"}, "unknown score"),
        ({"ways": ["fly"]}, "`ways` is"),
        ({"vram": "0.4GB"}, "less memory than the buffers"),
        ({"vram": None}, "key `vram` is missing"),
        ({"room": 1}, "unknown key `room`"),
        ({"device": "desktop"}, "does not specify its link"),
        ({"model": "deepseek-v3"}, "is not a decoder"),
        ({"bits": 99}, "99 bits per weight"),
        ({"prompt": 0}, "is not positive"),
    ],
)
def test_what_is_wrong_is_told(keys: dict[str, Any], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["search", str(space(tmp_path, **keys))]) == 2
    assert told in capsys.readouterr().err


def test_all_is_refused_for_a_large_model_and_small_rooms_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["search", str(space(tmp_path)), "--method", "all"]) == 2
    assert "--method ilp" in capsys.readouterr().err
    found = search(space(tmp_path, vram=["0.4GB", "8GB"]))
    assert (found.space, found.tried, dict(found.pruned)) == (2, 1, {"buffers": 1})


def test_the_example(capsys: pytest.CaptureFixture[str]):
    assert main(["search", str(EXAMPLE)]) == 0
    assert "tokens_per_s" in capsys.readouterr().out
