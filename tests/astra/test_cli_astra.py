"""ASTRA-sim's results through the command line, from its own files."""

import csv
import json
import shlex
from pathlib import Path

import pytest

from etude.surface.cli import main


def rows(path: Path, every: int) -> list[dict[str, str]]:
    with path.open() as f:
        return list(csv.DictReader(f))[::every]


def run(place: Path, row: dict[str, str], work: Path, capsys, *, old: bool = False) -> tuple[int, dict]:
    """`etude simulate astra`, or the spelling from before it."""
    configs = place / "configs"
    before = "--astra-" if old else "--"
    command = ["simulate", *([] if old else ["astra"]), str(work), "--json", "--backend", row["backend"]]
    command += [f"{before}network", str(configs / "network" / row["network_config"])]
    command += [f"{before}system", str(configs / "system" / row["system_config"])]
    if row.get("remote_memory_config"):
        command += [f"{before}remote-memory", str(configs / "remote_memory" / row["remote_memory_config"])]
    if row.get("comm_group_config"):
        command += [f"{before}groups", str(configs / "comm_group" / row["comm_group_config"])]
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
    equal = refused = seen = 0
    for row in rows(place / "semantics.csv", 3):
        folder = case_folder(place, row)
        if folder is None or row["timed_out"] == "True":
            continue
        npus = len(list(folder.glob("w.*.et")))
        code, found = run(place, row, folder / "w", capsys, old=seen % 2 == 1)
        seen += 1
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
    assert "--system is missing" in capsys.readouterr().err


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


def test_a_job_in_any_form_and_one_that_lacks_ranks(shared: Path, tmp_path: Path, capsys) -> None:
    place = shared / "oracle" / "astra"
    plain = place / "et" / "semantics" / "p2p_exchange_send_first" / "w"
    row = {"backend": "unaware", "network_config": "Ring_4.yml", "system_config": "1d_ring_s1.json"}
    assert main(["convert", str(plain), str(tmp_path / "packed"), "--to", "parquet"]) == 0
    capsys.readouterr()
    first, second = (run(place, row, work, capsys) for work in (plain, tmp_path / "packed"))
    assert first == second
    assert first[0] == 0
    code, told = run(place, row | {"network_config": "Ring_8.yml"}, tmp_path / "packed", capsys)
    assert (code, told["abort"]["what"]) == (1, "the network has 8 NPUs, but there is no trace of rank 4")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--astra-groups", "g.json"], "--network is missing"),
        (["--astra-network", "n", "--astra-system", "s", "--system", "dgx-h100"], "two systems for one run"),
        (["--astra-network", "n", "--astra-system", "s"], "n: No such file"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], why: str, capsys) -> None:
    assert main(["simulate", "somewhere", *options]) == 2
    assert why in capsys.readouterr().err


def test_an_injection_scale_below_nothing(shared: Path, capsys) -> None:
    place = shared / "oracle" / "astra"
    command = ["simulate", str(place / "et" / "all_reduce_1KB.et"), "--injection-scale", "-1"]
    command += ["--astra-network", str(place / "configs" / "network" / "Ring_4.yml")]
    command += ["--astra-system", str(place / "configs" / "system" / "1d_ring_s1.json")]
    assert main(command) == 2
    assert "--injection-scale: `-1` is negative" in capsys.readouterr().err
