"""ASTRA-sim's results through the command line, from its own files."""

import csv
import json
import shlex
from pathlib import Path

import pytest

from etude.cli import main


def rows(path: Path, every: int) -> list[dict[str, str]]:
    with path.open() as f:
        return list(csv.DictReader(f))[::every]


def run(place: Path, row: dict[str, str], work: Path, capsys) -> tuple[int, dict]:
    configs = place / "configs"
    command = ["simulate", str(work), "--json", "--backend", row["backend"]]
    command += ["--astra-network", str(configs / "network" / row["network_config"])]
    command += ["--astra-system", str(configs / "system" / row["system_config"])]
    if row.get("remote_memory_config"):
        command += ["--astra-remote-memory", str(configs / "remote_memory" / row["remote_memory_config"])]
    if row.get("comm_group_config"):
        command += ["--astra-groups", str(configs / "comm_group" / row["comm_group_config"])]
    for argument in shlex.split(row.get("extra_args") or ""):
        name, _, value = argument.partition("=")
        command += [name] if value in ("", "true") else [name, value]
    code = main(command)
    return code, json.loads(capsys.readouterr().out)


def test_collectives(shared: Path, capsys) -> None:
    place = shared / "oracle" / "astra"
    seen = 0
    for row in rows(place / "collectives_1d.csv", 101):
        if row["status"] != "ok":
            continue
        code, found = run(place, row, place / "et" / row["et"], capsys)
        assert code == 0
        assert found["makespan_ns"] == int(row["cycles_max_ns"])
        assert min(r["finish_ns"] for r in found["ranks"]) == int(row["cycles_min_ns"])
        seen += 1
    assert seen > 10


def case_folder(place: Path, row: dict[str, str]) -> Path | None:
    """The inputs of a semantics row: its own folder, or that of the case it is a variant of."""
    name = row["case"]
    while name:
        if (place / "et" / "semantics" / name).is_dir():
            return place / "et" / "semantics" / name
        name = name.rpartition("_")[0]
    return None


def test_semantics(shared: Path, capsys) -> None:
    place = shared / "oracle" / "astra"
    equal = refused = 0
    for row in rows(place / "semantics.csv", 3):
        folder = case_folder(place, row)
        if folder is None or row["timed_out"] == "True":
            continue
        npus = len(list(folder.glob("w.*.et")))
        code, found = run(place, row, folder / "w", capsys)
        if row["rc"] == "0" and int(row["n_finished"]) == npus:
            assert code == 0, row["case"]
            finish = [str(r["finish_ns"]) for r in found["ranks"]]
            exposed = [str(r["astra_exposed_ns"]) for r in found["ranks"]]
            assert finish == row["cycles_per_rank_ns"].split(";"), row["case"]
            assert exposed == row["exposed_per_rank_ns"].split(";"), row["case"]
            equal += 1
        else:
            assert code == 1, row["case"]
            assert "deadlock" in found or "abort" in found
            refused += 1
    assert equal > 20
    assert refused > 3


def test_both_files_are_needed(shared: Path, capsys) -> None:
    place = shared / "oracle" / "astra"
    network = place / "configs" / "network" / "Ring_4.yml"
    assert main(["simulate", str(place / "et" / "all_reduce_1KB.et"), "--astra-network", str(network)]) == 2
    assert "--astra-system" in capsys.readouterr().err


def test_a_system_is_needed(capsys) -> None:
    assert main(["simulate", "somewhere"]) == 2
    assert "etude systems" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_timing_has_a_row_for_each_node(shared: Path, tmp_path: Path, suffix: str, capsys) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    place = shared / "oracle" / "astra"
    out = tmp_path / f"t{suffix}"
    command = ["simulate", str(place / "et" / "all_reduce_1KB.et"), "--timing", str(out)]
    command += ["--astra-network", str(place / "configs" / "network" / "Ring_4.yml")]
    command += ["--astra-system", str(place / "configs" / "system" / "1d_ring_s1.json")]
    assert main(command) == 0
    table = pyarrow.csv.read_csv(out) if suffix == ".csv" else pyarrow.parquet.read_table(out)
    assert table.schema.names == ["rank", "source_id", "start_ns", "end_ns"]
    assert table["rank"].to_pylist() == [0, 1, 2, 3]
