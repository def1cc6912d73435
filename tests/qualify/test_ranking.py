"""Nodes with made-up figures: what was slowed is named, and nothing else."""

import json
from dataclasses import replace

import pytest

from etude.base.errors import FormatError, UsageError
from etude.run.qualify import NodeFigure, QualifiedNode, qualify, read_node, write_node
from etude.surface.cli import main

GPUS = [f"cuda:{n}" for n in range(4)]


def gpu_node(name: str, slow: dict[tuple[str, str], float] | None = None, spread: float = 0.004) -> QualifiedNode:
    """Four GPUs; `slow`: (part or figure, device) -> how much slower it is."""
    wiggle = 1 + 0.002 * (sum(name.encode()) % 5 - 2)  # nodes are never quite alike

    def made(what: str, part: str, unit: str, value: float, device: str = "") -> NodeFigure:
        for (of, where), factor in (slow or {}).items():
            if of in (part, what) and where == device:
                value /= factor
        return NodeFigure(what, part, unit, value * wiggle, spread, device)

    figures = [made("python loop", "host", "iterations/s", 2e7), made("dispatch", "host", "operators/s", 8e5)]
    figures.append(made("all_reduce 4 KB", "link", "calls/s", 3e4))
    figures.append(made("all_reduce 64 MiB", "link", "B/s", 3e11))
    for gpu in GPUS:
        figures.append(made("gemm bfloat16", "device", "FLOP/s", 7e14, gpu))
        figures.append(made("memory", "device", "B/s", 4e12, gpu))
        figures.append(made("host to device", "link", "B/s", 5e10, gpu))
    return QualifiedNode(name, tuple(figures))


PEERS = [gpu_node(name) for name in ("a", "b", "c")]


def named(node: QualifiedNode, **more) -> list[tuple[str, str, str]]:
    found = qualify(node, PEERS, **more).findings
    return [(f["node"], f["part"], f["device"]) for f in found]


def test_a_node_like_the_others_has_nothing_slow():
    assert named(gpu_node("d")) == []


def test_a_slow_gpu_is_named_alone():
    assert named(gpu_node("d", {("device", "cuda:2"): 1.15})) == [("d", "device", "cuda:2")]


def test_a_slow_link_is_not_a_slow_gpu():
    assert named(gpu_node("d", {("host to device", "cuda:1"): 1.5})) == [("d", "link", "cuda:1")]
    assert named(gpu_node("d", {("all_reduce 64 MiB", ""): 1.3})) == [("d", "link", "")]


def test_a_slow_host_is_named_and_the_small_messages_it_delays_are_not():
    slow = {("host", ""): 1.4, ("all_reduce 4 KB", ""): 1.3}
    assert named(gpu_node("d", slow)) == [("d", "host", "")]


def test_a_slow_host_does_not_hide_a_slow_wire():
    slow = {("host", ""): 1.4, ("all_reduce 64 MiB", ""): 1.6}
    assert named(gpu_node("d", slow)) == [("d", "host", ""), ("d", "link", "")]


def test_a_difference_within_the_spread_is_none():
    slow = {("memory", "cuda:0"): 1.08}
    assert named(gpu_node("d", slow)) == [("d", "device", "cuda:0")]
    assert named(gpu_node("d", slow, spread=0.03)) == []


def test_a_slow_peer_is_named_too():
    slow = gpu_node("c", {("device", "cuda:0"): 1.3})
    found = qualify(gpu_node("d"), [PEERS[0], PEERS[1], slow])
    assert [(f["node"], f["part"]) for f in found.findings] == [("c", "device")]
    assert found.ranking[0]["node"] == "c" and found.ranking[0]["device"] == pytest.approx(1 / 1.3, abs=0.01)


def test_the_own_past_counts_where_all_have_become_slow():
    slow = {("device", gpu): 1.2 for gpu in GPUS}
    now = gpu_node("d", slow)
    found = qualify(now, [gpu_node("a", slow), gpu_node("b", slow)], baseline=gpu_node("d"))
    assert {(f["part"], f["device"], f["against"]) for f in found.findings} == {("device", g, "past") for g in GPUS}
    assert [f["slow_down"] for f in found.findings] == [pytest.approx(0.2, abs=0.001)] * 4


def test_the_neighbours_of_a_gpu_are_its_peers_where_there_is_no_other_node():
    found = qualify(gpu_node("d", {("device", "cuda:3"): 1.25})).findings
    assert [(f["part"], f["device"]) for f in found] == [("device", "cuda:3")]


def test_two_neighbours_at_least_say_what_a_gpu_should_do():
    def of(*speeds: float) -> QualifiedNode:
        figures = [
            NodeFigure("memory", "device", "B/s", value, 0.001, gpu) for value, gpu in zip(speeds, GPUS, strict=False)
        ]
        return QualifiedNode("d", tuple(figures))

    assert qualify(of(70.0, 100.0)).findings == []  # which of two is wrong, nobody can say
    found = qualify(of(70.0, 100.0, 100.0)).findings
    assert [(f["device"], f["slow_down"]) for f in found] == [("cuda:0", 0.4286)]  # 100 / 70 - 1


def test_a_part_is_as_slow_as_its_slowest_figure():
    slow = {("gemm bfloat16", "cuda:1"): 1.2, ("memory", "cuda:1"): 1.6}
    found = qualify(gpu_node("a", slow), [gpu_node("a1"), gpu_node("a2")]).findings
    wiggle = [1 + 0.002 * (sum(name.encode()) % 5 - 2) for name in ("a", "a1", "a2")]
    between = (wiggle[1] + wiggle[2]) / 2  # the median of two
    assert [(f["part"], f["device"]) for f in found] == [("device", "cuda:1")]
    assert found[0]["slow_down"] == pytest.approx(1.6 * between / wiggle[0] - 1, abs=6e-5)


def test_what_is_named_is_slower_than_the_least():
    def of(name: str, value: float) -> QualifiedNode:
        return QualifiedNode(name, (NodeFigure("memory", "device", "B/s", value, 0.001, "cuda:0"),))

    assert qualify(of("d", 75.0), [of("e", 100.0), of("f", 100.0)], least=0.25).findings == []
    assert qualify(of("d", 74.0), [of("e", 100.0), of("f", 100.0)], least=0.25).findings[0]["slow_down"] == 0.3514


def cpu_node(name: str, factor: float = 1.0, host: float = 1.0) -> QualifiedNode:
    figures = [NodeFigure("python loop", "host", "iterations/s", 1e7 / host, 0.01),
               NodeFigure("gemm float32", "device", "FLOP/s", 5e10 / factor, 0.01, "cpu"),
               NodeFigure("all_reduce 64 MiB", "link", "B/s", 1e9 / factor, 0.01),
               NodeFigure("communication of ddp", "replay", "steps/s", 100 / factor, 0.01)]  # fmt: skip
    return QualifiedNode(name, tuple(figures))


def test_on_a_cpu_node_a_busy_host_is_the_one_cause():
    found = qualify(cpu_node("x", factor=1.5, host=1.5), [cpu_node("y"), cpu_node("z")]).findings
    assert [(f["part"], round(f["slow_down"], 2)) for f in found] == [("host", 0.5)]


def busy_node(name: str, share: float, factor: float = 1.0) -> QualifiedNode:
    """A CPU node whose threads get a CPU for a part of the time; its repetitions vary wildly."""
    figures = [NodeFigure("interpreter", "host", "iterations/s of CPU time", 1e7, 0.02),
               NodeFigure("share of a CPU", "host", "", share, 0.3),
               NodeFigure("gemm float32", "device", "FLOP/s", 5e10 / factor, 0.01, "cpu")]  # fmt: skip
    return QualifiedNode(name, tuple(figures))


def test_other_work_on_the_cpus_is_a_slow_host_however_much_figures_vary():
    found = qualify(busy_node("x", 0.25, 4.0), [busy_node("y", 0.5), busy_node("z", 0.99)])
    assert [(f["node"], f["part"], f["against"], f["slow_down"]) for f in found.findings] == [
        ("x", "host", "idle", 3.0),
        ("y", "host", "idle", 1.0),
    ]
    assert found.uncertain == ["share of a CPU"]  # a third of the others', but it varies as much
    assert [f["part"] for f in qualify(busy_node("x", 0.25)).findings] == ["host"]  # nothing to be held against
    assert qualify(busy_node("x", 0.97), [busy_node("y", 0.99)]).findings == []


def test_a_replay_is_named_only_where_no_part_explains_it():
    assert [f["part"] for f in qualify(cpu_node("x", 1.5), [cpu_node("y"), cpu_node("z")]).findings] == [
        "device",
        "link",
    ]
    slow = cpu_node("x")
    slow = replace(slow, figures=(*slow.figures[:3], replace(slow.figures[3], value=60.0)))
    assert [f["part"] for f in qualify(slow, [cpu_node("y"), cpu_node("z")]).findings] == ["replay"]


# -- files and the command ---------------------------------------------------------------------------------------------


def test_a_node_is_read_as_it_was_written(tmp_path):
    node = gpu_node("d")
    write_node(node, tmp_path / "d.json")
    assert read_node(tmp_path / "d.json") == node


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "etude node", "version": 9, "name": "x", "about": {}, "figures": []}',
     '{"format": "etude node", "version": 1, "name": "x", "about": {}, "figures": [{"name": "g", "part": "roof", '
     '"unit": "B/s", "value": 1}]}',
     '{"format": "etude node", "version": 1, "name": "x", "about": {}, "figures": [{"name": "g", "part": "host", '
     '"unit": "B/s", "value": 0}]}'],
)  # fmt: skip
def test_a_file_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "n.json").write_text(text)
    with pytest.raises(FormatError, match=r"n\.json"):
        read_node(tmp_path / "n.json")


def test_nodes_that_cannot_be_compared_are_refused():
    with pytest.raises(UsageError, match="two nodes have the name `a`"):
        qualify(gpu_node("a"), PEERS)
    with pytest.raises(UsageError, match="no figure in common"):
        qualify(cpu_node("x"), [replace(gpu_node("y"), figures=gpu_node("y").figures[4:])])


def test_the_command_ranks_files_and_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for node in (*PEERS, gpu_node("d", {("device", "cuda:2"): 1.15})):
        write_node(node, f"{node.name}.json")
    others = ["--against", "a.json", "--against", "b.json"]
    assert main(["qualify", "--measured", "c.json", *others]) == 0
    assert "no slow part found" in capsys.readouterr().err
    assert main(["qualify", "--measured", "d.json", *others, "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["findings"][0]["device"] == "cuda:2"
    assert "d: device cuda:2 is 15" in told.err and "slower than its peers" in told.err
    assert main(["qualify", "--measured", "d.json", "-o", "x.json"]) == 2
    assert main(["qualify", "--measured", "nowhere.json"]) == 2
    (tmp_path / "there.json").write_text("{}")
    assert main(["qualify", "-o", "there.json"]) == 2  # before anything is measured
    assert (tmp_path / "there.json").read_text() == "{}"
