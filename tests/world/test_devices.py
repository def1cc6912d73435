"""Devices and their holders: every device has one at a time, and their times add up."""

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.world.devices import DOWN, FREE, DevicePool, Holding, held_ns
from etude.world.fleet.sharing.supply import DevicePrices
from etude.world.policies import known, policy
from etude.world.prices import paid, read_prices


def test_seats_nodes_and_faults_by_hand():
    devices = DevicePool(3, 4, policy("place", "pack"))
    assert devices.take_nodes("train", 1, 0) == [0]
    first = devices.take_seat("chat", 3, 10)
    second = devices.take_seat("chat", 1, 20)
    assert first is not None and second is not None
    assert (first.node, second.node) == (1, 1)  # the fullest that has room
    assert devices.take_seat("chat", 4, 20).node == 2
    assert devices.take_seat("chat", 1, 20) is None
    devices.give(first, 30)
    devices.fail(1, 40)  # three free ones are down, and the one of the second seat is still held
    assert devices.held("chat") == 5 and devices.held(DOWN) == 3 and devices.free().tolist() == [0, 0, 0]
    devices.give(second, 50)
    assert devices.held(DOWN) == 4
    devices.repair(1, 60)
    # chat: 3 from 10, 8 from 20, 5 from 30, 4 from 50; down: 3 from 40, 4 from 50 to 60; free: 8, 5, 0, 3 (30 to 40), 4
    assert devices.device_ns("chat", 100) == 3 * 10 + 8 * 10 + 5 * 20 + 4 * 50
    assert devices.device_ns(DOWN, 100) == 3 * 10 + 4 * 10
    assert devices.device_ns(FREE, 100) == 8 * 10 + 5 * 10 + 3 * 10 + 4 * 40
    assert sum(devices.device_ns(who, 100) for who in devices.history) == 12 * 100


def test_places_pack_or_spread():
    free = [4, 1, 3]
    assert policy("place", "pack")(free, 1) == 1
    assert policy("place", "spread")(free, 1) == 0
    assert known("place") == ["pack", "spread"]
    with pytest.raises(UsageError, match="unknown policy `tight`"):
        policy("place", "tight")


def test_nodes_that_leave_soon_are_not_given():
    devices = DevicePool(2, 1, policy("place", "pack"))
    devices.leaving[0] = True
    assert devices.take_nodes("a", 2, 0) == [1]


@pytest.mark.parametrize("seed", range(20))
def test_holders_of_any_history_add_up(seed: int):
    random, devices, seats = np.random.default_rng(seed), DevicePool(4, 3, policy("place", "spread")), []
    for now in np.cumsum(random.integers(0, 50, 80)).tolist():
        what = random.integers(5)
        if what < 2 and (seat := devices.take_seat(f"w{random.integers(3)}", int(random.integers(1, 4)), now)):
            seats.append(seat)
        elif what == 2 and seats:
            devices.give(seats.pop(int(random.integers(len(seats)))), now)
        elif what == 3:
            devices.fail(int(random.integers(4)), now)
        elif what == 4:
            devices.repair(int(random.integers(4)), now)
        assert sum(devices.held(who) for who in devices.history) == devices.count
    assert sum(devices.device_ns(who, 5000) for who in devices.history) == 12 * 5000


def test_time_between_two_moments():
    history = [Holding(0, 2), Holding(10, 5), Holding(20, 1)]
    assert held_ns(history, 5, 25) == 2 * 5 + 5 * 10 + 1 * 5
    assert held_ns(history, 12, 15) == 15


def test_devices_are_paid_at_the_price_of_the_hour(tmp_path):
    hour = 3_600_000_000_000
    prices = DevicePrices(np.array([0, hour]), np.array([2.0, 5.0]))
    # two devices for half an hour at 2, then four: half an hour at 2, an hour at 5
    assert paid([Holding(0, 2), Holding(hour // 2, 4)], prices, 2 * hour) == pytest.approx(2 + 4 + 20)
    file = tmp_path / "spot.csv"
    file.write_text("time_s,price\n0,2\n3600,5\n")
    assert [one.price.tolist() for one in read_prices(str(file))] == [[2, 5]]
    for text, told in (
        ("time_s\n0\n", "has no column `price`"),
        ("time_s,price\n1,2\n", "start at 0"),
        ("time_s,price\n0,x\n", "not a number"),
        ("time_s,price\n0,-1\n", "negative"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=told):
            read_prices(str(file))
