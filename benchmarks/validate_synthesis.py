"""Learned synthesis against the jobs it was learned from, and against real jobs of other rank counts.

    python benchmarks/validate_synthesis.py [--shared ../shared] [--system dgx-h100]

Each row learns from one job and makes another; both are simulated (roofline). Errors are made over real, less one.
"""

import argparse
import tarfile
import tempfile
import time
from pathlib import Path

import msgspec

import etude
from etude.cost import catalogue
from etude.cost.traces import timed
from etude.generate.build import generate
from etude.generate.model import model
from etude.generate.plan import Plan
from etude.generate.synth_learn import learn
from etude.generate.synth_make import MakeOptions, make
from etude.model.job import Job
from etude.sweep.likeness import likeness

STG = ("gpt_cp2_dp2_tp2", "gpt_dp2_tp2_pp2_mb2", "gpt_pp4_mb8", "llama_fsdp_dp8_mp", "moe_dp2_ep4")
LLM = (
    ("gpt8L_r16_dp2tp2pp4_mb8", ""),
    ("gpt8L_r64_dp8tp4sp2_fsdp", ""),
    ("gpt8L_r8_dp8", "gpt8L_r64_dp64"),
    ("gpt8L_r64_dp64", "gpt8L_r8_dp8"),
    ("gpt8L_r16_dp4tp4", "gpt8L_r64_dp16tp4"),
    ("gpt8L_r64_dp16tp4", "gpt8L_r16_dp4tp4"),
)
"""Learned from, compared with; where nothing is said, with itself."""
GENERATED = (
    ("llama3-8b, 16 ranks", {}),
    ("llama3-8b, 64 ranks", {"gpus": 64, "global_batch": 64}),
    ("llama3-8b, 16 ranks, without times", {}),
)
PLAN = {"gpus": 16, "tp": 2, "pp": 2, "global_batch": 16}
"""Etude's own, learned with the times of the system, since their names and shapes say how long they take."""


def opened(name: str, shared: Path, folder: Path) -> Job:
    if name in dict(GENERATED):
        return generate(model("llama3-8b"), Plan(**PLAN | dict(GENERATED)[name])).job
    stg = shared / "oracle" / "stg" / name
    if stg.is_dir():
        return etude.open(stg)
    if not (folder / name).is_dir():
        with tarfile.open(shared / "oracle" / "astra" / "llm" / "traces" / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    return etude.open(folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--system", default="dgx-h100")
    args = parser.parse_args()
    system = catalogue.system(args.system)
    print("| learned from | made for | model bytes | CPU s | largest distance of sizes | bytes sent | step | exposed |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, other in [*((n, "") for n in STG), *LLM, (GENERATED[0][0], GENERATED[1][0]), (GENERATED[2][0], "")]:
            source = opened(name, args.shared, Path(folder))
            real = opened(other, args.shared, Path(folder)) if other else source
            began = time.process_time()
            learned = learn([timed(source, system.device) if name == GENERATED[0][0] else source])
            made = make(learned, MakeOptions(ranks=len(real)))
            spent = time.process_time() - began
            if etude.check(made):
                raise SystemExit(f"{name}: what was made is not sound")
            rows = {row["what"]: row["difference"] for row in likeness(real, made, system)}
            distance = max(v for k, v in rows.items() if k.endswith(", each"))
            sent = rows.get("collective bytes, a rank", rows.get("message bytes, a rank", 0.0))
            print(
                f"| {name} | {other or 'itself'} | {len(msgspec.json.encode(learned)):,} | {spent:.2f} "
                f"| {distance:.3f} | {sent:+.1%} | {rows['simulated step, ns']:+.1%} "
                f"| {rows['simulated exposed_comm_ns, a rank']:+.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
