"""Devices of which kinds for which models: by hand, by brute force, and what demand and supply do."""

import itertools
import json
import random
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from etude.decide.search import search
from etude.decide.search.replica_rates import DeviceOffer, Offer, Strategy, WantedModel, highest, kept_rate
from etude.decide.search.spaces.mix import Hour, choose, undominated
from etude.surface.cli import main

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "search" / "mix.yaml"
KINDS = "kind,device,price,node,available\n"
RATES = "model,kind,plan,devices,rate\n"


def space(folder: Path, **texts: Any) -> Path:
    """Texts are files; the other keys stand in the space."""
    keys: dict[str, Any] = {"search": "mix", "models": {"chat": {"model": "llama3-8b"}, "large": {"model": "gpt2"}}}
    for name, text in texts.items():
        if isinstance(text, str) and "\n" in text:
            (folder / f"{name}.csv").write_text(text)
            keys[name] = f"{name}.csv"
        else:
            keys[name] = text
    (folder / "space.yaml").write_text(json.dumps(keys))
    return folder / "space.yaml"


def test_one_of_each_is_demand_over_rate_rounded_up(tmp_path: Path):
    for demand, count in ((1, 1), (6.9, 1), (7, 1), (7.1, 2), (70, 10), (70.5, 11)):
        path = space(tmp_path, kinds=KINDS + "a,h100,3,1,\n", throughput=RATES + "chat,a,one,1,7\n",
                     demand=f"hour,model,rate\n0,chat,{demand}\n")  # fmt: skip
        found = search(path).best
        assert (found["devices"], found["cost"], found["single"]) == (count, 3 * count, "a")
        assert count == ceil(demand / 7)


def test_a_mix_by_hand(tmp_path: Path):
    # chat wants 9: two of a (5 each, 1 $) are 2 $; large wants 4: one pair of b (4, 6 $). b alone serves chat by one
    # pair more: 12 $; a alone never serves large.
    path = space(
        tmp_path,
        kinds=KINDS + "a,t4,1,1,\nb,h100,3,2,\n",
        demand="hour,model,rate\n0,chat,9\n0,large,4\n",
        throughput=RATES + "chat,a,,1,5\nchat,b,,2,20\nlarge,b,,2,4\n",
    )
    found = search(path)
    assert found.best["held"] == {"chat a": 2, "large b": 1}
    assert (found.best["cost"], found.best["single_cost"], found.best["single"]) == (8, 12, "b")
    assert search(path, changed={"mixed": False}).best["held"] == {"chat b": 1, "large b": 1}


def naive(offers: list[Offer], hour: Hour) -> tuple[float, float]:
    """The least cost that serves all, and the most goodput, of all counts that devices allow, tried one by one."""
    uses = []
    for kind, have in hour.available.items():
        mine = [o for o in offers if o.kind == kind]
        ranges = [range(int(have // o.devices) + 1) for o in mine]
        uses.append([
            list(zip(mine, counts, strict=True)) for counts in itertools.product(*ranges)
            if sum(o.devices * n for o, n in zip(mine, counts, strict=True)) <= have
        ])  # fmt: skip
    cheapest, most = float("inf"), 0.0
    for parts in itertools.product(*uses):
        rates, cost = dict.fromkeys(hour.models, 0.0), 0.0
        for offer, count in itertools.chain(*parts):
            rates[offer.model] += offer.rate * count
            cost += offer.devices * count * hour.prices[offer.kind]
        if all(rates[m] >= d for m, d in zip(hour.models, hour.demand, strict=True)):
            cheapest = min(cheapest, cost)
        most = max(most, sum(min(rates[m], d) for m, d in zip(hour.models, hour.demand, strict=True)))
    return cheapest, most


@pytest.mark.parametrize("seed", range(5))
def test_programs_against_brute_force(seed: int):
    draw = random.Random(seed)
    offers = [
        Offer(model=m, kind=k, plan=f"p{p}", devices=draw.choice([1, 2, 2, 3]), rate=draw.randint(1, 30) / 2)
        for m in "xy"
        for k in "abc"
        for p in range(3)
    ]
    about: dict[str, Any] = {
        "models": ("x", "y"), "demand": (draw.randint(3, 20) + 0.25, draw.randint(3, 20) + 0.25), "weight": (1.0, 1.0),
        "prices": {k: float(draw.randint(1, 5)) for k in "abc"}, "available": {k: draw.randint(2, 3) for k in "abc"},
    }  # fmt: skip
    cheapest, most = naive(offers, Hour(**about, goodput=False))
    for goodput in (False, True):
        hour = Hour(**about, goodput=goodput)
        for method, tried in (("ilp", undominated(offers)), ("joint", offers), ("all", offers)):
            choice = choose(tried, hour, method)[0]
            if goodput:
                assert choice is not None and choice.goodput == pytest.approx(most, rel=1e-6)
            else:
                assert (choice.cost if choice else float("inf")) == pytest.approx(cheapest)


def test_more_supply_never_costs_more(tmp_path: Path):
    text = RATES + "chat,a,,1,3\nchat,b,,1,5\nlarge,b,,2,2\nlarge,a,,4,3\n"
    costs, goods = [], []
    for supply in range(4, 12):
        path = space(
            tmp_path,
            kinds=KINDS + f"a,t4,1,4,{supply}\nb,h100,3,2,{supply - 2}\n",
            throughput=text,
            demand="hour,model,rate\n0,chat,11\n0,large,3\n",
        )
        goods.append(search(path, changed={"score": "goodput"}).best["goodput"])
        if goods[-1] > 14 - 1e-6:
            costs.append(search(path).best["cost"])
    assert len(costs) > 3
    assert costs == sorted(costs, reverse=True)
    assert goods == pytest.approx(sorted(goods))


def test_hours_supply_by_the_hour_and_a_budget(tmp_path: Path):
    path = space(
        tmp_path, kinds=KINDS + "a,t4,1,1,\nb,h100,3,1,\n", throughput=RATES + "chat,a,,1,2\nchat,b,,1,10\n",
        demand="hour,model,rate\n0,chat,4\n1,chat,12\n2,chat,4\n", available="kind,hour,count\na,0,9\na,2,1\nb,0,1\n",
    )  # fmt: skip
    found = search(path)
    assert [row["held"] for row in found.rows] == [{"chat a": 2}, {"chat a": 1, "chat b": 1}, {"chat b": 1}]
    assert (found.more["cost"], found.more["static_cost"]) == (2 + 4 + 3, 3 * 4)
    assert [row["single_cost"] for row in found.rows] == [2, 6, 3]
    poor = search(path, changed={"score": "goodput", "budget": 3})
    assert [row["goodput"] for row in poor.rows] == [4, 10, 4]
    assert [row["cost"] for row in poor.rows] == [2, 3, 3]
    assert search(path, method="all").rows == found.rows


def test_an_hour_that_cannot_be_served_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = space(tmp_path, kinds=KINDS + "a,t4,1,1,3\n", throughput=RATES + "chat,a,,1,2\n",
                 demand="hour,model,rate\n0,chat,4\n1,chat,12\n")  # fmt: skip
    assert search(path).more["unserved_hours"] == [1]
    assert main(["search", str(path)]) == 0
    told = capsys.readouterr().err
    assert "cannot be served: 1" in told and "solved in" in told
    (tmp_path / "demand.csv").write_text("hour,model,rate\n1,chat,12\n")
    assert main(["search", str(path)]) == 2
    assert "never serve all requests" in capsys.readouterr().err


def test_plans_that_others_beat_are_left_out():
    rates = {"one": (1, 5.0), "two": (2, 9.0), "slow": (2, 5.0), "same": (2, 9.0), "four": (4, 9.0)}
    offers = [Offer(model="m", kind="k", plan=name, devices=d, rate=r) for name, (d, r) in rates.items()]
    assert [o.plan for o in undominated(offers)] == ["one", "two"]
    other = Offer(model="m", kind="other", plan="slow", devices=2, rate=1.0)
    assert undominated([*offers, other])[-1] is other


@pytest.mark.parametrize("limit", [0.003, 0.7, 1.0, 3.9, 250.0])
def test_the_highest_rate_that_holds(limit: float):
    found = highest(lambda rate: rate <= limit)
    assert limit / 1.021 < found <= limit
    assert highest(lambda rate: False) == 0


def test_a_rate_is_what_serving_holds():
    wanted = WantedModel(model="llama3.2-1b", prompt=256, output=16, ttft_ns=2e8)
    kind = DeviceOffer(kind="x", device="h100", price=1.0, node=2)
    found = kept_rate(wanted, kind, Strategy(), 1.0, 0.99, 0)
    assert found["why"] == "" and found["rate"] > 10
    assert kept_rate(wanted, kind, Strategy(tp=4), 1.0, 0.99, 0) == {"rate": 0.0, "why": "plan"}
    large = WantedModel(model="llama3-70b")
    assert kept_rate(large, kind, Strategy(), 1.0, 0.99, 0) == {"rate": 0.0, "why": "memory"}


def test_rates_are_served_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    models = {"chat": {"model": "llama3.2-1b", "prompt": 256, "output": 16, "ttft": "200ms"}}
    path = space(tmp_path, kinds=KINDS + "a,h100,2,2,\n", demand="hour,model,rate\n0,chat,900\n", models=models,
                 plans=[1, 4], seconds=1)  # fmt: skip
    found = search(path, out=tmp_path / "rates")
    rate = kept_rate(
        WantedModel(model="llama3.2-1b", prompt=256, output=16, ttft_ns=2e8),
        DeviceOffer(kind="a", device="h100", price=2.0, node=2),
        Strategy(),
        1.0,
        0.99,
        0,
    )["rate"]
    assert [(o["plan"], o["rate"]) for o in found.more["offers"]] == [("tp1", rate)]
    assert dict(found.pruned) == {"plan": 1} and found.space == 2
    assert found.best["devices"] == ceil(900 / rate)
    monkeypatch.setattr("etude.decide.search.replica_rates.kept_rate", None)
    assert search(path, out=tmp_path / "rates").record() == found.record()


GOOD = {"kinds": KINDS + "a,t4,1,1,\n", "throughput": RATES + "chat,a,,1,2\n", "demand": "hour,model,rate\n0,chat,4\n"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"score": "profit"}, "unknown score"),
        ({"budget": 3}, "`budget` applies only to the score goodput"),
        ({"score": "goodput", "budget": -1}, "`budget` is -1"),
        ({"mixed": "no"}, "`mixed` is no"),
        ({"models": {}}, "key `models` is missing"),
        ({"models": {"chat": {"model": "llama3-8b", "slo": 1}}}, "unknown key `slo`"),
        ({"demand": "hour,model,rate\n0,other,4\n"}, "no model `other`"),
        ({"demand": "hour,model,rate\n0,chat,4\n0,chat,4\n"}, "appears twice"),
        ({"available": "kind,count\nz,4\n"}, "no kind `z`"),
        ({"throughput": RATES + "chat,z,,1,2\n"}, "which are not both in the search"),
        ({"kinds": KINDS + "a,t4,0,1,\n"}, "is not positive"),
        ({"gpus": 3}, "unknown key `gpus`"),
    ],
)
def test_what_is_wrong_is_told(changed: dict[str, Any], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["search", str(space(tmp_path, **(GOOD | changed)))]) == 2
    assert told in capsys.readouterr().err


def test_too_many_counts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = "".join(f"chat,a,p{i},1,0.{i}1\n" for i in range(1, 10))
    path = space(tmp_path, **(GOOD | {"throughput": RATES + rows}))
    assert main(["search", str(path), "--method", "all"]) == 2
    assert "--method ilp" in capsys.readouterr().err


def test_plans_of_the_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given = {k: v for k, v in GOOD.items() if k != "throughput"}
    for plans in ("all", [], [0], [{"pp": 2}]):
        assert main(["search", str(space(tmp_path, **given, plans=plans))]) == 2
    capsys.readouterr()
    assert Strategy(tp=2, precision="fp8").name == "tp2 fp8"


def test_the_example(tmp_path: Path):
    rows = "small,rtx4090,,1,60\nchat,l40s,,1,8\nchat,h100,,1,30\nlarge,h100,,2,8\n"
    (tmp_path / "rates.csv").write_text(RATES + rows)
    found = search(EXAMPLE, changed={"throughput": str(tmp_path / "rates.csv")})
    assert len(found.rows) == 24
    assert found.more["cost"] < found.more["static_cost"]
