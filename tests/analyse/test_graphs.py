from etude.analyse.graphs import graph_replays
from etude.capture.ingest import causal
from etude.model.run import recorded
from recorded import device_json, event, kernel, launch, op, read_device_json


def test_each_replay_has_its_launch_and_what_was_around_it() -> None:
    events = device_json(
        event("user_annotation", "decode", 0, 50),
        op("aten::mm", 1, 5, 1),
        launch(2, 10),
        kernel("k", 6, 2, 10, 1),
        launch(10, 11, "cudaGraphLaunch"),
        kernel("a", 14, 2, 11, 0),
        kernel("b", 16, 4, 11, 0, stream=8),
        kernel("c", 18, 3, 11, 0),
        launch(30, 12, "cudaGraphLaunch"),
        kernel("a", 31, 2, 12, 0),
    )
    job = causal.to_job("run", [causal.convert(read_device_json(events))])
    found = graph_replays(recorded(job)).to_pylist()
    assert [(r["call"], r["under"], r["kernels"]) for r in found] == [
        ("cudaGraphLaunch", "decode", 3),
        ("cudaGraphLaunch", "decode", 1),
    ]
    assert [(r["span_ns"], r["busy_ns"], r["delay_ns"]) for r in found] == [(7000, 7000, 3000), (2000, 2000, 0)]
