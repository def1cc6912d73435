"""Kernels beside one another: queues, tails, waves and shares, worked by hand on a device of four cores."""

import csv
from pathlib import Path

import pytest

from etude.base.errors import UsageError
from etude.cost.contention import Launch, beside, launch_of, predicted_rows
from etude.cost.contention.launches import COPY, BlockRoom
from etude.cost.contention.meeting import held
from etude.cost.ops import matmul
from etude.machine import Device, open_device
from etude.machine.sharing import HostLink, KernelSharing

FULL = BlockRoom(1.0, 1.0, 1)
MEASURED = Path(__file__).resolve().parents[3] / "shared/measured/h200_extra/contention"


def device(**more: object) -> Device:
    link = HostLink(read_bytes_per_s=50e9, write_bytes_per_s=50e9, both_bytes_per_s=40e9)
    sharing = KernelSharing(clusters=1, gap_ns=0.0)
    # 100 bytes per ns reach the kernels
    given = {"memory_bandwidth_bytes_per_s": 100e9 / 0.9, "cores": 4, "sharing": sharing, "host_link": link}
    return Device(name="four", **{**given, **more})


def compute(blocks: int, each_ns: float, waves: int, room: BlockRoom = FULL) -> Launch:
    return Launch(alone_ns=each_ns * waves, blocks=blocks, core_ns=each_ns, room=room)


def stream(blocks: int, each_bytes: float, alone_ns: float) -> Launch:
    return Launch(alone_ns=alone_ns, blocks=blocks, size_bytes=each_bytes, room=COPY)


def test_full_kernels_queue():
    # Four blocks of 1000 ns fill the device; each kernel waits for the other's.
    one = compute(4, 1000.0, 1)
    assert beside(device(), one, one) == pytest.approx(2000, rel=1e-6)


def test_a_small_kernel_behind_a_large_one_waits_for_it():
    small, large = compute(4, 10.0, 1), compute(40, 1000.0, 10)
    # The large one holds all cores for 10,000 ns; the small one has a turn when its last blocks are handed out.
    assert beside(device(), small, large) == pytest.approx(10_010, rel=0.01)


def test_the_last_wave_leaves_room():
    # Five blocks on four cores: in the second wave of 1000 ns three cores are free for kernels of three blocks of 100.
    large, small = compute(5, 1000.0, 2), compute(3, 100.0, 1)
    found = beside(device(), small, large)
    assert 150 < found < 250  # ten of them in each 2000 ns


def test_kernels_that_fit_side_by_side_do_not_meet():
    half = compute(2, 1000.0, 1)
    assert beside(device(), half, half) == pytest.approx(1000, rel=1e-3)


def test_the_memory_is_shared_evenly():
    # Each alone draws all 100 bytes per ns with two cores; together each has half.
    half = stream(2, 100_000.0, 2000.0)
    assert beside(device(), half, half) == pytest.approx(4000, rel=1e-3)


def test_demands_that_fit_are_not_slowed():
    # 30 and 60 bytes per ns of 100.
    low = Launch(alone_ns=1000.0, blocks=2, core_ns=1000.0, size_bytes=15_000.0, room=COPY)
    high = Launch(alone_ns=1000.0, blocks=2, core_ns=1000.0, size_bytes=30_000.0, room=COPY)
    assert beside(device(), low, high) == pytest.approx(1000, rel=1e-3)
    # 30 and 120: the lower demand is met, the other has the rest, 70 of its 120.
    more = Launch(alone_ns=1200.0, blocks=2, core_ns=1000.0, size_bytes=60_000.0, room=COPY)
    assert beside(device(), low, more) == pytest.approx(1000, rel=1e-3)
    assert beside(device(), more, low) == pytest.approx(120_000 / 70, rel=1e-2)


@pytest.mark.parametrize(("cores_held", "waves"), [(0, 1), (1, 2), (2, 2), (3, 4)])
def test_waves_count(cores_held: int, waves: int):
    assert held(device(), compute(4, 1000.0, 1), cores_held) == pytest.approx(1000 * waves)


def test_a_holder_takes_no_room_from_threads_alone():
    light = compute(4, 1000.0, 1, BlockRoom(0.25, 0.0, 1))
    assert held(device(), light, 3) == pytest.approx(1000)


def test_pairs_of_blocks_stay_in_their_cluster():
    # Two clusters of two cores, one core of each held: no cluster has room for a pair while the other core could.
    two = device(cores=8, sharing=KernelSharing(clusters=2, gap_ns=0.0))
    pairs = compute(6, 1000.0, 1, BlockRoom(1.0, 1.0, 2))
    assert held(two, pairs, 2) == pytest.approx(2000)
    singles = compute(6, 1000.0, 1, BlockRoom(1.0, 1.0, 1))
    assert held(two, singles, 2) == pytest.approx(1000)


def test_a_holder_that_copies_takes_bandwidth():
    # 100 bytes per ns less 40: 120,000 bytes in 2000 ns instead of 1200.
    assert held(device(), stream(4, 30_000.0, 1200.0), 1, 40e9) == pytest.approx(2000, rel=1e-6)


def test_copies_meet_on_the_link_and_hardly_elsewhere():
    down = Launch(alone_ns=1000.0, size_bytes=50_000.0, copies="h2d")
    up = Launch(alone_ns=1000.0, size_bytes=50_000.0, copies="d2h")
    kernel = compute(4, 1000.0, 1)
    assert beside(device(), down, up) == pytest.approx(1250)
    assert beside(device(), down, down) == 2000
    assert beside(device(), kernel, down) == 1000
    assert beside(device(), down, kernel) == 1000


def test_a_launch_alone_takes_its_time():
    h200 = open_device("h200")
    for work in (matmul(4096, 4096, 4096), matmul(64, 8192, 8192)):
        launch = launch_of(h200, work, 50_000.0)
        assert held(h200, launch, 0) == pytest.approx(50_000, rel=1e-3)


def test_four_cores_held_cost_a_wave_and_two_cost_nothing():
    h200 = open_device("h200")
    product = launch_of(h200, matmul(2048, 2048, 2048), 23_742.0)
    assert held(h200, product, 2) == pytest.approx(23_742, rel=1e-3)
    assert held(h200, product, 4) > 1.7 * 23_742


@pytest.mark.skipif(not MEASURED.is_dir(), reason="no measured contention beside the checkout")
def test_measured_rows(tmp_path: Path):
    rows = list(csv.DictReader((MEASURED / "pairs.csv").open()))[::8]
    path = tmp_path / "some.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    found = [r for r in predicted_rows(open_device("h200"), path) if r["covered"]]
    errors = sorted(abs(r["predicted"] / r["measured"] - 1) for r in found)
    assert errors[len(errors) // 2] < 0.1


def test_headers_of_spreadsheets_and_slow_downs_by_their_times(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text(
        "\ufeffop, background, op_alone_ns, background_alone_ns, op_with_background_ns\nx, y, 10, 10, 25\n", "utf-8"
    )
    (row,) = predicted_rows(open_device("h200"), path)
    assert (row["op"], row["beside"], row["measured"]) == ("x", "y", 2.5)


def test_a_device_of_one_core_runs_one_block_after_another():
    one = device(cores=1)
    product = launch_of(one, matmul(512, 512, 512), 1000.0)
    assert beside(one, product, product) == pytest.approx(2000, rel=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "columns of either kind"),
        ("op,holder,sms_held,op_alone_ns\ngemm_64,spin,many,10\n", "not a number"),
        ("op,holder,sms_held,op_alone_ns\ngemm_64,spin,132,10\n", "row 0: `sms_held`: 132 of 132 cores"),
        ("op,holder,sms_held,op_alone_ns\ngemm_64,spin,2.5,10\n", "2.5 of 132 cores"),
        ("op,holder,sms_held,op_alone_ns\ngemm_64,spin,-1,10\n", "out of range"),
        ("op,background,op_alone_ns,background_alone_ns\nx,y,10,\n", "row 0: `y`: .* alone is not known"),
        ("op,background,op_alone_ns,background_alone_ns\n,y,10,10\n", "`op` has no name"),
        ("op,background,op_alone_ns,background_alone_ns\nx,y,10,10,7\n", "more cells than there are columns"),
        ("op,op,background,op_alone_ns,background_alone_ns\nx,x,y,10,10\n", "two columns `op`"),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, text: str, message: str):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        predicted_rows(open_device("h200"), path)
