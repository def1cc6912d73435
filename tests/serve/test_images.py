"""Images and videos as requests: groups of devices, by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.steps import predict
from etude.surface.cli import main
from etude.world.serve.images import degree_rule, image_stream, image_summary, serve_images
from etude.world.serve.images.costs import ImageCosts
from etude.world.serve.images.requests import images_of
from etude.world.serve.images.words import DegreeRule
from etude.world.serve.measured.diffusion import asked_images, denoising_work, images
from etude.world.serve.stacks import ServingStack

SMALL, LARGE = (1, 512, 512), (1, 1024, 1024)
COSTS = ImageCosts(
    (1, 2, 4),
    # Of the small one hardly anything is gained by more devices; shared steps of two take 150.
    np.array([[[100, 150], [80, 120], [79, 118]], [[1000, 1900], [510, 1000], [260, 500]]]),
    np.array([50, 200]),
    np.array([0, 0]),
)
ONLY_LARGE = ImageCosts(COSTS.degrees, COSTS.step_ns[1:], COSTS.decode_ns[1:], COSTS.encode_ns[1:])
FIXED2, ELASTIC = DegreeRule(degrees=(2,)), DegreeRule(degrees=(1, 2, 4), elastic=True)


def drawn(count: int = 60, seed: int = 1):
    random = np.random.default_rng(seed)
    shapes = np.array([SMALL, LARGE])[random.integers(0, 2, count)]
    return images_of(np.cumsum(random.integers(0, 900, count)), shapes, random.integers(1, 12, count))


def test_a_group_that_stays_by_hand():
    # Two groups of two: 3 steps of 510 and 200; the third waits for the first group that is free.
    found = serve_images(images_of([0, 0, 5], [LARGE, SMALL, SMALL], [3, 2, 1]), COSTS, 4, FIXED2)
    assert found.finish_ns.tolist() == [3 * 510 + 200, 2 * 80 + 50, 210 + 80 + 50]
    assert image_summary(found)["mean_degree"] == 2.0


def test_steps_that_are_shared():
    # One group; the second joins after the step that the first is in, and leaves earlier.
    rule = DegreeRule(degrees=(1,), batch=2)
    found = serve_images(images_of([0, 30], [SMALL, SMALL], [4, 1]), COSTS, 1, rule)
    # 100 alone, 150 together, 50 for the pixels of the second, then 2 of 100 and 50.
    assert found.finish_ns.tolist() == [100 + 150 + 50 + 200 + 50, 300]


def test_a_share_changes_between_steps():
    # Alone the large one has four devices. The other comes at 100, within the first step: at 260 both have two.
    found = serve_images(images_of([0, 100], [LARGE, LARGE], [2, 2]), ONLY_LARGE, 4, ELASTIC)
    tasks = found.tasks.to_pylist()
    assert [(t["requests"], t["task"], t["start_ns"], t["degree"]) for t in tasks[:3]] == [
        ([0], "steps", 0, 4), ([0], "steps", 260, 2), ([0], "decode", 770, 1),
    ]  # fmt: skip
    # The second had 510 for its first step; then three devices are free beside the pixels: it stays with two.
    assert found.finish_ns[0] == 970 and tasks[3]["degree"] == 2


def test_set_ups_are_paid_where_devices_were_no_group_before():
    rule = DegreeRule(degrees=(1, 2, 4), elastic=True, set_up_ns=40)
    found = serve_images(images_of([0, 100], [LARGE, LARGE], [2, 2]), ONLY_LARGE, 4, rule)
    steps = [t for t in found.tasks.to_pylist() if t["task"] == "steps"]
    assert all(t["set_up_ns"] in (0, 40) for t in steps) and steps[0]["set_up_ns"] == 40
    free = serve_images(images_of([0, 100], [LARGE, LARGE], [2, 2]), ONLY_LARGE, 4, ELASTIC)
    assert found.finish_ns.max() > free.finish_ns.max()


@pytest.mark.parametrize(("set_up", "grows"), [(1001, False), (999, True)])
def test_a_group_grows_if_that_saves_more_than_its_set_up(set_up, grows):
    """Both begin with two devices. When the first has its pixels the second is in its second step. What four devices
    save is counted for all four steps that its group began with: 4 x (510 - 260). The two behind this step get it."""
    rule = DegreeRule(degrees=(1, 2, 4), elastic=True, set_up_ns=set_up)
    found = serve_images(images_of([0, 0], [LARGE, LARGE], [1, 4]), ONLY_LARGE, 4, rule)
    rest = set_up + 2 * 260 if grows else 2 * 510
    assert found.finish_ns.tolist() == [set_up + 510 + 200, set_up + 2 * 510 + rest + 200]


@pytest.mark.parametrize("order", ["fcfs", "edf", "shortest"])
def test_one_degree_without_set_up_is_the_fixed_one(order):
    bare = ImageCosts(COSTS.degrees, COSTS.step_ns, np.array([0, 0]), COSTS.encode_ns)
    requests = drawn()
    fixed = serve_images(requests, bare, 4, DegreeRule(degrees=(2,), order="fcfs"))
    one = serve_images(requests, bare, 4, DegreeRule(degrees=(2,), elastic=True, order="fcfs"))
    assert (fixed.finish_ns == one.finish_ns).all()
    any_order = serve_images(requests, COSTS, 4, DegreeRule(degrees=(1, 2, 4), elastic=True, order=order))
    assert (any_order.finish_ns >= 0).all()


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("elastic", [False, True])
def test_steps_and_device_seconds_are_conserved(batch, elastic):
    requests = drawn()
    rule = DegreeRule(degrees=(1, 2, 4) if elastic else (2,), elastic=elastic, set_up_ns=7, batch=batch)
    found = serve_images(requests, COSTS, 8, rule)
    taken = np.zeros(len(requests), int)
    devices: dict[int, list[tuple[int, int]]] = {}
    for task in found.tasks.to_pylist():
        taken[task["requests"]] += task["steps"]
        assert len(task["devices"]) == task["degree"] and len(task["requests"]) <= batch
        for device in task["devices"]:
            devices.setdefault(device, []).append((task["start_ns"], task["end_ns"]))
    assert (taken == requests.steps).all()
    for spans in devices.values():  # a device is in one group at a time
        assert all(a[1] <= b[0] for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False))
    spent = image_summary(found)["device_s"]
    assert spent["idle"] >= 0 and sum(spent[k] for k in ("busy", "idle", "set_up")) == pytest.approx(spent["all"])


def test_a_function_says_the_degrees():
    def degrees(requests, gpus, now_s):
        return [one["degrees"][0] if number < gpus else 0 for number, one in enumerate(requests)]

    found = serve_images(drawn(20), COSTS, 4, DegreeRule(degrees=(1, 2, 4), elastic=True, hook=degrees))
    one = serve_images(drawn(20), COSTS, 4, DegreeRule(degrees=(1,), elastic=True))
    assert (found.finish_ns == one.finish_ns).all()
    for wrong in (None, [3], [0, 0, 0, 0, 0]):
        with pytest.raises(UsageError, match="--degree at"):
            rule = DegreeRule(degrees=(1, 2, 4), elastic=True, hook=lambda *_, wrong=wrong: wrong)
            serve_images(drawn(20), COSTS, 4, rule)


def test_words_and_files(tmp_path: Path):
    assert degree_rule("elastic:2..8", 16, str).degrees == (2, 4, 8)
    for text in ("fixed:3", "fixed", "elastic:x", "elastic:9..10", "half"):
        with pytest.raises(UsageError, match="--degree"):
            degree_rule(text, 8, str)
    path = tmp_path / "dit.csv"
    path.write_text("arrival,height,width,frames,steps,deadline\n0,512,512,1,20,\n1.5,480,832,81,50,60\n")
    found = image_stream(path)
    assert found.sizes.tolist() == [[1, 512, 512], [81, 480, 832]] and found.steps.tolist() == [20, 50]
    assert found.arrival_ns.tolist() == [0, 1_500_000_000] and found.deadline_ns[1] == 60_000_000_000
    assert image_stream(path, rate_per_s=2).arrival_ns.tolist() == [0, 500_000_000]
    for bad in ("0,512,512,1,0,\n", "0,512,8,1,5,\n", "0,512,512,1,x,\n", "1,512,512,1,5,\n0,512,512,1,5,\n"):
        path.write_text("arrival,height,width,frames,steps,deadline\n" + bad)
        with pytest.raises(Exception, match="request"):
            image_stream(path)


def test_the_command(tmp_path, capsys):
    asked = ["serve", "pixart-sigma", "--gpus", "1", "--system", "dgx-h100", "--count", "9"]
    asked += ["--requests", "mix:256x256@4"]
    assert main([*asked, "--rate", "2", "--degree", "fixed:1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["finished"] == 9 and found["steps"] == 36 and found["sizes"][0]["step_s"]["1"] > 0
    place = str(tmp_path / "out")
    assert main([*asked, "--rate", "2", "--degree", "fixed:1", "-o", place]) == 0
    assert main(["query", place, "select count(*) as n from requests where end_s > arrival_s", "--csv"]) == 0
    assert int(capsys.readouterr().out.split()[-1]) > 0
    assert main(["compare", place, place]) == 0 and "latency_s.mean" in capsys.readouterr().out
    assert main(["report", place, "-o", str(tmp_path / "page.html")]) == 0 and "median" in capsys.readouterr().err
    assert main([*asked, "--rate", "2..4", "--degree", "fixed:1", "-o", str(tmp_path / "two")]) == 2
    assert "a single rate" in capsys.readouterr().err
    assert main([*asked, "--degree", "fixed:1"]) == 2 and "--rate" in capsys.readouterr().err


def test_rotary_embeddings_move_every_query_and_key_operator_by_operator():
    """FLUX.1 of 512 x 512 pixels: 1,024 tokens and 512 of text, 24 heads of 128, in 57 blocks. 48 bytes for an element
    of queries, and of keys, are 25.8 GB, which an H100 moves at 3.35 TB/s; the kernel itself adds a tenth."""
    model, plan = open_model("flux.1-dev"), Plan(gpus=1, seq=1024, train="forward")
    still = [replace(b, parts=tuple(replace(one, rotary=False) for one in b.parts)) for b in model.blocks]
    system = open_system("dgx-h100")
    both = [predict(one, plan, system, check=False) for one in (model, replace(model, blocks=tuple(still)))]
    turned, plain = (denoising_work(one, system)[0].rest for one in both)
    moved_ns = 57 * 1536 * 24 * 128 * 2 * 48 / 3.35e12 * 1e9
    assert moved_ns < turned - plain < 1.15 * moved_ns


def test_a_model_with_convolutions_has_an_even_part_on_each_device():
    """Its host issues as much as before: four devices take a quarter of what one takes, or what the host takes."""
    one, four = (asked_images("sdxl-unet", open_system("dgx-h100"), gpus, 1, (1, 1024, 1024)) for gpus in (1, 4))
    device = ServingStack(kernel_ns=0.0)
    assert four.step_ns(device) == pytest.approx(one.step_ns(device) / 4)
    host = ServingStack(kernel_ns=1e6)  # far above the device's time
    assert four.step_ns(host) == one.step_ns(host) == 2 * 1e6 * one.layouts[0].operations


def test_texts_that_are_put_together_inside_of_a_network_are_padded():
    """HunyuanDiT has 77 + 256 = 333 tokens of text; two devices share 334."""
    found = asked_images("hunyuandit-v1.2", open_system("dgx-h100"), 2, 1, (1, 1024, 1024))
    assert len(found.layouts) == 2 and all(one.products > 0 for one in found.layouts)


def test_heads_inside_of_a_ring():
    """Wan 2.1 1.3B has 12 heads and 30 layers: on eight devices a ring of 8, or heads over two or four inside of a ring
    of 4 or 2. Heads change places before and after attention; each further part of a ring is a message out, one in and
    one more attention. Every device has all of the text, so that attention to it sends nothing."""
    row = {"model": "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "gpu": "H100", "num_gpus": "8", "batch_size": "1",
           "num_frames": "81", "video_height": "480", "video_width": "832", "inference_steps": "50"}  # fmt: skip
    alone, spread = images({**row, "num_gpus": "1"}).layouts[0], images(row).layouts
    assert [one.operations - alone.operations for one in spread] == [30 * 7, 30 * 3, 30 * 1]
    assert [one.exchanges for one in spread] == [30 * 7 * 2, 30 * (2 + 3 * 2), 30 * (2 + 1 * 2)]
    assert all(one.attention == pytest.approx(alone.attention / 8, rel=1e-3) for one in spread)
    assert alone.host_ns(ServingStack(kernel_ns=2.0, exchange_ns=5.0)) == 2 * alone.operations
    assert spread[0].host_ns(ServingStack(kernel_ns=2.0, exchange_ns=5.0)) == 2 * spread[0].operations + 5 * 420
