"""ASTRA-sim's configuration files: what is read, what is ignored, what is refused."""

import json

import pytest

from etude.base.errors import ClusterError, EtudeError
from etude.run.astra import read_groups, read_network, read_remote_memory, read_system
from etude.run.astra.config import Implementation, parse_algorithm

NETWORK = "topology: [ Ring, Switch ]\nnpus_count: [ 4, 2 ]\nbandwidth: [ 50, 25.5 ]\nlatency: [ 500, 0 ]\n"


@pytest.fixture
def write(tmp_path):
    def put(text):
        path = tmp_path / "file"
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    return put


def test_network(write):
    net = read_network(write(NETWORK + "note: hello\n"))
    assert net.topology == ("Ring", "Switch")
    assert net.npus_count == (4, 2)
    assert net.num_npus == 8
    assert net.bandwidth_gibyte_per_s == (50.0, 25.5)
    assert net.ignored == ("note",)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("Ring", "Torus", "unknown topology 'Torus'"),
        ("[ 4, 2 ]", "[ 4 ]", "`npus_count` has 1 entries"),
        ("[ 4, 2 ]", "[ 4, 1 ]", "above 1"),
        ("[ 4, 2 ]", "[ 4, two ]", "whole numbers"),
        ("25.5", "0", "`bandwidth` must be above 0"),
        ("[ 500, 0 ]", "[ 500, -1 ]", "`latency` must be at least 0"),
        ("latency:", "delay:", "key `latency` is missing"),
        (NETWORK, "[1, 2]", "must contain a mapping"),
        (NETWORK, "a: [", "cannot be read"),
    ],
)
def test_networks_that_make_no_sense(write, old, new, why):
    with pytest.raises(ClusterError, match=why):
        read_network(write(NETWORK.replace(old, new)))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ClusterError, match="No such file"):
        read_network(tmp_path / "nothing.yml")


def test_system(write):
    sys_ = read_system(
        write(
            {
                "scheduling-policy": "LIFO",
                "preferred-dataset-splits": 4,
                "active-chunks-per-dimension": 2,
                "endpoint-delay": 7,
                "all-reduce-implementation": ["ring", "oneDirect3"],
                "local-mem-bw": 1600,
                "roofline-enabled": 1,
                "boost-mode": 0,
                "collective-optimization": "baseline",
            }
        )
    )
    assert sys_.algorithms == {
        "all-reduce": (Implementation(name="ring"), Implementation(name="direct", is_flat=True, window=3))
    }
    assert (sys_.splits, sys_.active_chunks, sys_.endpoint_delay_ns) == (4, 2, 7)
    assert sys_.has_roofline
    assert sys_.optimization == "baseline"
    assert sys_.ignored == ("boost-mode",)


def test_an_empty_system_has_the_original_defaults(write):
    sys_ = read_system(write({}))
    assert (sys_.splits, sys_.active_chunks, sys_.endpoint_delay_ns, sys_.local_mem_gbyte_per_s) == (
        None,
        1,
        None,
        None,
    )
    assert not sys_.has_policy


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("scheduling-policy", "RANDOM", "known: LIFO, FIFO, EXPLICIT"),
        ("all-gather-implementation", ["rong"], "unknown collective implementation 'rong'"),
        ("all-gather-implementation", "ring", "must be a list"),
        ("endpoint-delay", "10", "must be a number"),
        ("endpoint-delay", -1, "at least 0"),
        ("active-chunks-per-dimension", 0, "at least 1"),
        ("all-to-all-implementation-custom", ["a", "b"], "a list of one path"),
    ],
)
def test_systems_that_make_no_sense(write, key, value, why):
    with pytest.raises(ClusterError, match=why):
        read_system(write({key: value}))


@pytest.mark.parametrize("text", ["Ring", "onering", "direct-1", "oneDoubleBinaryTree", "ring2", "", 3, None])
def test_algorithms_that_it_does_not_know(text):
    with pytest.raises(ClusterError, match="unknown collective implementation"):
        parse_algorithm(text, "")


def test_remote_memory(write):
    memory = read_remote_memory(
        write(
            {
                "memory-type": "PER_NODE_MEMORY_EXPANSION",
                "remote-mem-latency": 5,
                "remote-mem-bw": 9,
                "num-nodes": 2,
                "num-npus-per-node": 4,
            }
        )
    )
    assert (memory.kind, memory.latency_ns, memory.bytes_per_ns) == ("PER_NODE_MEMORY_EXPANSION", 5, 9)
    with pytest.raises(ClusterError, match="remote-mem-bw"):
        read_remote_memory(write({"memory-type": "MEMORY_POOL"}))
    with pytest.raises(ClusterError, match="num-nodes"):
        read_remote_memory(write({"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-bw": 9}))


def test_groups_keep_their_order(write):
    assert read_groups(write({"2": [3, 1], "1": [0, 2]})) == {2: (3, 1), 1: (0, 2)}


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ({"0": [1]}, "above 0"),
        ({"x": [1]}, "whole number"),
        ({"1": []}, "list of ranks"),
        ({"1": [1, 1]}, "twice"),
        ({"1": [1.5]}, "list of ranks"),
    ],
)
def test_groups_that_make_no_sense(write, groups, why):
    with pytest.raises(EtudeError, match=why):
        read_groups(write(groups))


@pytest.mark.parametrize(
    "text",
    [
        "topology: [ Ring, Switch ]\nnpus_count: [ 4, 2 ]  # NPUs\nbandwidth: [50, 0.5]\nlatency: [ 500.0, 0 ]\n",
        "topology:\n  - Ring\n  - Switch\nnpus_count: [4, 2]\nbandwidth: [5.0e+1, .5]\nlatency: [500, 0]\n",
        "{topology: [Ring, Switch], npus_count: [4, 2], bandwidth: [50, 0.5], latency: [500, 0]}",
    ],
)
def test_every_way_to_write_a_list(write, text):
    found = read_network(write(text))
    assert (found.topology, found.npus_count) == (("Ring", "Switch"), (4, 2))
    assert (found.bandwidth_gibyte_per_s, found.latency_ns) == ((50, 0.5), (500, 0))


@pytest.mark.parametrize("last", ["latency: [500", " latency: [500]", "latency: [500]\nlatency: ['x']"])
def test_a_network_that_is_no_yaml(write, last):
    with pytest.raises(ClusterError):
        read_network(write(f"topology: [Ring]\nnpus_count: [4]\nbandwidth: [50]\n{last}\n"))
