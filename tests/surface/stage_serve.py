"""Files of the examples of `etude serve`."""

import json
from pathlib import Path

REQUESTS = "arrival,prompt,output,tier\n0,100,4,chat\n0.1,500,6,batch\n"
POOL = """model: llama3-8b
pools:
  - {role: prefill, system: dgx-h100}
  - {role: decode, count: 2, system: dgx-a100}
"""
FLOW = """models: {chat: {model: gpt2}, other: {model: gpt2}}
system: dgx-h100
tasks:
  ask: {model: chat, message: 100, output: 10}
  look: {alternatives: [{tool: web, time: 1s, cost: 2}, {model: other}], after: [ask], output: 20}
"""
DEVICES = "devices:\n  - {name: a, system: dgx-h100}\n  - {name: b, system: dgx-a100}\n"


def make(folder: Path) -> None:
    (folder / "r.csv").write_text(REQUESTS)
    (folder / "pools.yaml").write_text(POOL)
    (folder / "mine.py").write_text("def route(request, replicas, now_s):\n    return 0\n")
    (folder / "dit.csv").write_text("arrival,height,width,steps\n0,512,512,20\n")
    (folder / "flow.yaml").write_text(FLOW)
    (folder / "devices.yaml").write_text(DEVICES)
    (folder / "dags").mkdir(exist_ok=True)
    (folder / "dags" / "one.yaml").write_text(FLOW)
    (folder / "measured").mkdir(exist_ok=True)
    (folder / "rows.csv").write_text("model,gpu,num_gpus\n")
    for name in ("result.json", "other.json"):
        (folder / name).write_text(json.dumps({"request_throughput": 1.0}))
