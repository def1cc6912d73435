"""Where requests are computed: by hand, by brute force, and what frictions, budgets, laws and capacities do."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from etude.decide.search import search
from etude.surface.cli import main

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "search" / "regions.yaml"
REGIONS = "region,zone,law,round_trip,price,carbon,pue,capacity,egress\n"
CLASSES = "name,home,rate,energy,budget,turns,size,friction,laws\n"


def space(folder: Path, rows: str, asks: str, **keys: Any) -> Path:
    (folder / "regions.csv").write_text(REGIONS + rows)
    (folder / "classes.csv").write_text(CLASSES + asks)
    path = folder / "space.yaml"
    path.write_text(json.dumps({"search": "regions", "regions": "regions.csv", "classes": "classes.csv"} | keys))
    return path


def test_one_class_by_hand(tmp_path: Path):
    # 1 request/s of 3.6 MJ: 1 kWh each. At home 1.5 x 0.2 = 0.30 $; away 1.0 x 0.1 + 2 GB x 0.05 = 0.20 $
    path = space(tmp_path, "a,x,,20ms,0.2,100,1.5,,\nb,x,,60ms,0.1,50,1,,0.05\n", "one,a,1,3600000,,,2GB,,\n",
                 budget=["39ms", "40ms"])  # fmt: skip
    near, far = search(path).rows
    assert (near["dollars_per_h"], near["relocated"]) == (pytest.approx(3600 * 0.3), 0)
    assert (far["dollars_per_h"], far["way_ms"]) == (pytest.approx(3600 * 0.2), 40)
    assert far["return_per_ms"] == pytest.approx(3600 * 0.1 / 40)
    assert far["marginal_per_ms"] == pytest.approx(3600 * 0.1 / 1)
    assert far["where"] == {"one": {"b": 1.0}}
    assert far["regional"] == 1 and far["seeking"] == 0
    carbon = search(path, changed={"score": "carbon", "network_kwh_per_gb": 0.5}).rows[1]
    assert carbon["g_per_h"] == pytest.approx(3600 * (1 * 50 + 2 * 0.5 * 50))


def test_capacity_splits_a_class_and_whole_classes_stay(tmp_path: Path):
    # 10 kW in all, 4 of which fit away, at half the price
    path = space(tmp_path, "a,x,,,0.2,1,1,,\nb,y,,,0.1,1,1,4,\n", "one,a,10,1000,,,,,\n")
    assert search(path).best["where"] == {"one": {"a": pytest.approx(0.6), "b": pytest.approx(0.4)}}
    assert search(path).best["dollars_per_h"] == pytest.approx(6 * 0.2 + 4 * 0.1)
    assert search(path).best["seeking"] == pytest.approx(0.4)
    assert search(path, method="all").best["where"] == {"one": {"a": 1.0}}


def test_friction_is_paid_once_for_each_region(tmp_path: Path):
    # 10 kW x 24 h x 0.1 $ saved = 24 $
    regions = "a,x,,,0.2,1,1,,\nb,x,,,0.1,1,1,,\n"
    for friction, moved in ((23.9, 1), (24.1, 0)):
        path = space(tmp_path, regions, f"one,a,10,1000,,,,{friction},\n", hours=24)
        found = search(path)
        assert found.best["relocated"] == moved
        assert found.best["dollars_per_h"] == pytest.approx(1.0 + friction / 24 if moved else 2.0)
        even = found.more["break_even"][0]
        assert even["break_even_requests"] == pytest.approx(friction / (1000 / 3.6e6 * 0.1))
        assert even["requests"] == 10 * 86400
    assert found.more["break_even"][0]["requests"] < found.more["break_even"][0]["break_even_requests"]


def test_law_and_the_own_budget_of_a_class(tmp_path: Path):
    regions = "a,x,eu,20ms,0.3,1,1,,\nb,x,eu,40ms,0.2,1,1,,\nc,y,us,100ms,0.1,1,1,,\n"
    classes = "free,a,1,1000,,,,,\nlaw,a,1,1000,,,,,eu\nsoon,a,1,1000,10ms,,,,\nturns,a,1,1000,100ms,3,,,\n"
    where = search(space(tmp_path, regions, classes)).best["where"]
    # three turns of 30 ms are within 100 ms, three of 60 ms are not
    assert where == {"free": {"c": 1.0}, "law": {"b": 1.0}, "soon": {"a": 1.0}, "turns": {"b": 1.0}}


def brute(regions: list[dict[str, Any]], classes: list[dict[str, Any]], budget_ms: float, hours: float) -> float:
    """The least dollars an hour of whole classes, tried one by one."""
    best = float("inf")
    for places in itertools.product(regions, repeat=len(classes)):
        cost, used = 0.0, {r["name"]: 0.0 for r in regions}
        for one, there in zip(classes, places, strict=True):
            home = next(r for r in regions if r["name"] == one["home"])
            away = there is not home
            if away and (there["way"] + home["way"]) / 2 > budget_ms:
                cost = float("inf")
            used[there["name"]] += one["rate"] * one["energy"] / 1000
            cost += one["rate"] * one["energy"] / 1000 * there["pue"] * there["price"]
            cost += one["friction"] / hours if away else 0.0
        if all(used[r["name"]] <= r["capacity"] for r in regions):
            best = min(best, cost)
    return best


@pytest.mark.parametrize("seed", range(6))
def test_programs_against_brute_force(seed: int, tmp_path: Path):
    draw = random.Random(seed)
    wide = seed % 2 == 0
    regions = [
        {"name": f"r{i}", "way": draw.randint(10, 200), "price": draw.randint(5, 30) / 100,
         "pue": 1 + draw.randint(0, 50) / 100, "capacity": 1e6 if wide or i == 0 else draw.randint(2, 9)}
        for i in range(4)
    ]  # fmt: skip
    classes = [
        {"home": "r0", "rate": draw.randint(1, 9), "energy": 100 * draw.randint(1, 9), "friction": draw.choice([0, 9])}
        for _ in range(4)
    ]
    rows = [f"{r['name']},z,,{r['way']}ms,{r['price']},1,{r['pue']},{r['capacity']}," for r in regions]
    asks = [f"c{i},r0,{c['rate']},{c['energy']},,,,{c['friction']}," for i, c in enumerate(classes)]
    path = space(tmp_path, "\n".join(rows), "\n".join(asks), budget=["20ms", "90ms", "1s"], hours=10)
    best = [brute(regions, classes, budget, 10) for budget in (20, 90, 1000)]
    found = {m: [row["dollars_per_h"] for row in search(path, method=m).rows] for m in ("all", "ilp", "lp")}
    assert found["all"] == pytest.approx(best)
    for lp, ilp, whole in zip(found["lp"], found["ilp"], found["all"], strict=True):
        assert lp <= ilp + 1e-9 and ilp <= whole + 1e-9
    if wide:
        assert found["lp"] == pytest.approx(found["all"]) == found["ilp"]
    for row in found.values():
        assert row == sorted(row, reverse=True)


def test_too_little_capacity_is_told_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    regions = "a,x,,20ms,0.2,1,1,1,\nb,x,,60ms,0.1,1,1,9,\n"
    path = space(tmp_path, regions, "one,a,10,1000,,,,,\n", budget=["10ms", "1s"])
    found = search(path)
    assert (found.space, found.tried, dict(found.pruned)) == (2, 1, {"capacity": 1})
    assert main(["search", str(path), "--set", "budget=10ms"]) == 2
    assert "too little capacity" in capsys.readouterr().err


def test_energy_of_a_served_run_and_carbon_of_a_table(tmp_path: Path):
    (tmp_path / "run.json").write_text('{"energy_j": 5000, "requests": 5}')
    (tmp_path / "carbon.csv").write_text("provider,region,impact\nx,a,400\nx,b,100\n")
    path = space(tmp_path, "a,x,,10ms,0.2,,1,,\nb,x,,10ms,0.1,70,1,,\n", "one,a,3.6,from:run.json,,,,,\n", budget="0ms",
                 carbon="carbon.csv", score="carbon")  # fmt: skip
    assert search(path).best["g_per_h"] == pytest.approx(3.6 * 400)
    assert search(path, changed={"budget": "1s"}).best["g_per_h"] == pytest.approx(3.6 * 70)


def test_carbon_of_cloud_regions(tmp_path: Path, shared: Path):
    regions = "europe-west3,eu,,20ms,0.2,,1,,\neurope-north1,eu,,40ms,0.2,,1,,\n"
    path = space(tmp_path, regions, "one,europe-west3,1,1000,,,,,\n", score="carbon",
                 carbon=str(shared / "clusters" / "carbon_by_cloud_region.csv"))  # fmt: skip
    assert search(path).best["where"] == {"one": {"europe-north1": 1.0}}


@pytest.mark.parametrize(
    ("regions", "classes", "keys", "told"),
    [
        ("a,x,,,0.2,1,1,,\n", "one,b,1,1,,,,,\n", {}, "no region `b`"),
        ("a,x,,,0.2,1,1,,\n", "one,a,1,much,,,,,\n", {}, "energy `much`"),
        ("a,x,,,0.2,1,1,,\n", "one,a,1,from:no.json,,,,,\n", {}, "file `no.json` does not exist"),
        ("a,x,,,0.2,1,0.9,,\n", "one,a,1,1,,,,,\n", {}, "is below 1"),
        ("a,x,,,0.2,,1,,\n", "one,a,1,1,,,,,\n", {}, "the carbon intensity"),
        ("a,x,us,,0.2,1,1,,\n", "one,a,1,1,,,,,eu\n", {}, "the legislation of its home"),
        ("a,x,,,0.2,1,1,,\na,x,,,0.2,1,1,,\n", "one,a,1,1,,,,,\n", {}, "`a` appears twice"),
        ("a,x,,,0.2,1,1,,\n", "", {}, "has no row"),
        ("a,x,,,0.2,1,1,,\n", "one,a,1,1,,,,,\n", {"score": "money"}, "unknown score"),
        ("a,x,,,0.2,1,1,,\n", "one,a,1,1,,,,,\n", {"hours": 0}, "`hours` is 0"),
        ("a,x,,,0.2,1,1,,\n", "one,a,1,1,,,,,\n", {"budget": "soon"}, "soon"),
        ("a,x,,,0.2,1,1,,\n", "one,a,1,1,,,,,\n", {"budgets": "1s"}, "unknown key `budgets`"),
        ("a,x,,,0.2,1,1,,\n", "one,a,1,1,,,,,\n", {"regions": "no.csv"}, "file `no.csv` does not exist"),
    ],
)
def test_what_is_wrong_is_told(
    regions: str, classes: str, keys: dict[str, Any], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["search", str(space(tmp_path, regions, classes, **keys))]) == 2
    assert told in capsys.readouterr().err


def test_the_example(capsys: pytest.CaptureFixture[str]):
    assert main(["search", str(EXAMPLE), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["relocated"] == 0 and rows[-1]["saving"] > 0.3
    assert main(["search", str(EXAMPLE), "--method", "dp"]) == 2
