"""A small command of every verb that prints predicted figures, and the files that they need."""

from pathlib import Path

MODEL = "llama3.2-1b"
PLAN = f"{MODEL} --gpus 8 --tp 2 --zero 1 --seq 512"
WORLD = """machine: {system: dgx-h100, nodes: 4, regions: [sweden]}
horizon: 10min
workloads:
  pretrain: {train: llama3.2-1b, gpus: 8, tp: 2, checkpoint: ["remote:5min"]}
  chat: {serve: llama3.2-1b, replicas: 1, rate: 2, count: 100, slo: {ttft: 1s}}
"""
STEPS = """model,gpu_type,gpus,seq,global_batch,tp,pp,value,unit
llama3-8b,H100,8,4096,32,2,1,1.5,s
"""
PAIR = """name: pair
batch: 8
gpus: 2
sections:
  teacher: {model: gpt2, mode: forward, gpus: 1}
  student: {model: gpt2}
borders:
  - {from: teacher, to: student, carries: logits}
"""
PLACED = """models: {chat: {model: gpt2}}
system: dgx-h100
tasks: {ask: {model: chat, message: 100, output: 10}}
"""
HELD = """op,holder,sms_held,op_alone_ns
gemm_64,spin,16,10
"""
MOVED = """direction,memory,bytes,ns_median
h2d,pinned,16384,10831
"""
SPACE = """search: commands
run: predict gpt2 --gpus 2 --system dgx-h100 --json {flags}
axes: {tp: [1, 2]}
score: {step: step_time_ns}
"""
FILES = {
    "small.yaml": WORLD,
    "steps.csv": STEPS,
    "pair.yaml": PAIR,
    "placed.yaml": PLACED,
    "tp.yaml": SPACE,
    "held.csv": HELD,
    "moved.csv": MOVED,
}
JOB = f"{MODEL} --gpus 2 --tp 2 --seq 512"
"""What `gen` is generated from."""
COMMANDS = {
    "predict": f"{PLAN} --system dgx-h100 --energy",
    "predict serve": f"{MODEL} --prefill 512 --decode 4 --batch 2 --system dgx-h100",
    "predict sections": "pair.yaml --system dgx-h100",
    "predict rows": "steps.csv",
    "simulate": "gen/ --system dgx-h100",
    "simulate jobs": "gen/ gen/ --system dgx-h100",
    "serve": f"{MODEL} --rate 4 --count 8 --prompt 100 --output 4 --system dgx-h100",
    "serve images": "flux.1-dev --requests dit.csv --system dgx-h100",
    "serve workflow": "flow.yaml",
    "serve devices": "placed.yaml --devices devices.yaml",
    "serve offload": f"{MODEL} --requests r.csv --system h200-server",
    "serve split": f"{MODEL} --requests recommend:users=4,items=20 --rate 20 --split adaptive --system dgx-a100",
    "fleet train": f"{PLAN} --system dgx-h100 --days 2 --faults node:mtbf=2000h,repair=4h --checkpoint remote:1h",
    "fleet share": "cluster.yaml --jobs jobs.csv",
    "fleet services": "edge2.yaml",
    "fleet backbone": "backbone2.yaml",
    "fleet radio": "airan2.yaml",
    "fleet functions": "moe2.yaml",
    "fleet experts": "mixtral-8x7b --ep 8 --system dgx-h100",
    "federate": "gpt2 --clients clients.csv --steps 2 --rounds 2",
    "federate swarm": "gpt2 --clients clients.csv --rounds 1",
    "federate split": f"{MODEL} --clients clients.csv --lora 16 --lora-cut 4 --steps 2 --rounds 1",
    "world run": "small.yaml",
    "plan": f"{MODEL} --gpus 8 --system dgx-h100 --seq 512",
    "search": f"{MODEL} --over tp=1|2 --gpus 8 --system dgx-h100 --seq 512",
    "search deployment": f"{MODEL} --rate 2 --count 20 --slo ttft=1s,tpot=50ms --price dgx-h100=2.5 --over tp=1|2",
    "search space": "tp.yaml",
    "energy": "gen/ --system dgx-h200",
    "energy predict": f"{PLAN} --system dgx-h100",
    "energy serve": f"{MODEL} --prefill 512 --decode 4 --batch 2 --system dgx-h200",
    "ops missing": f"{MODEL} --device h100",
    "ops contend": "held.csv --device h200",
    "ops offload": "moved.csv --system h200-server",
    "ops place": f"{MODEL} --memory 2GiB",
    "ops graph": "--nodes 1000 --edges 10000 --feature 512B --partitions 10 --memory 1MB --read partitions",
    "ops kernels": "8,8,8 --device h100",
}
GIVEN = "describes a run that is given, recorded or simulated; of a simulated one `etude simulate` has the range"
BESIDE = "what was measured is next to it"
OTHERS = {
    **dict.fromkeys(
        (
            "info",
            "check",
            "diff",
            "query",
            "evaluate",
            "report",
            "studio",
            "timeline",
            "graph",
            "card",
            "breakdown",
            "idle",
            "kernels",
            "collectives",
            "critical-path",
            "stragglers",
            "trend",
            "compare",
            "metrics",
            "requests",
            "roofline",
            "memory",
            "diagnose",
            "similarity",
        ),
        GIVEN,
    ),
    **dict.fromkeys(("score", "serve run", "serve rows", "energy rows", "validate", "calibrate"), BESIDE),
    "calibrate engine": BESIDE,
    "predict program": "runs a program of PyTorch: `tests/dry/test_predict_program.py`",
    "study run": "figures of commands, which have their ranges",
    "mcp": "its tools are these verbs",
    "demo": "its steps are these verbs",
    "simulate astra": "what ASTRA-sim itself says, to the cycle",
    "world window": "a moment of a world as a job, which `etude simulate` takes",
    **dict.fromkeys(("replay", "replay communication", "qualify", "ops measure"), "measures"),
}
"""Verbs without ranges, and why."""
NOTHING = (
    "archive",
    "convert",
    "chakra",
    "collect",
    "link",
    "edit",
    "anonymise",
    "learn",
    "generate",
    "stacks",
    "systems",
    "study list",
    "study show",
    "study new",
    "ops show",
    "ops add",
    "ops import",
)
"""Verbs, and first words of verbs, that predict nothing."""


def make(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text)
