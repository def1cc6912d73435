"""What caches find on published request files, and what it does to first tokens.

    python benchmarks/validate_caches.py [../shared/requests]
    python benchmarks/validate_caches.py --page      # the table of docs/serve.md; fails where the page has another one

Tokens found with all the room (prefix, blocks, content), by room and policy, one request after another; then streams of
the gallery's systems on these files: Irminsul's, RcLLM's and DUAL-BLADE's commands. CPU seconds beside them.
"""

import json
import sys
import time
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

from etude.surface.cli import main
from etude.world.serve.cache import Room, cache_rules
from etude.world.serve.pieces import pieces_of
from etude.world.serve.request_files import read_requests
from etude.world.serve.reuse import no_reuse
from etude.world.serve.store import hits, store_of

HERE = Path(__file__).parent
FOLDER = next((Path(word) for word in sys.argv[1:] if not word.startswith("-")), HERE.parents[1] / "shared/requests")
FILES = ("mooncake_conversation.jsonl.gz", "mooncake_synthetic.jsonl.gz")
ROOMS = (1_000_000, 4_000_000, 16_000_000)
EDGE = """
name: edge-nvme
device: rtx4090
levels: [{name: board, kind: switch, size: 1, bandwidth: 25GB/s, latency: 5us}]
tiers:
  - {name: page_cache, capacity: 64GiB, read: 12GB/s, write: 5GB/s, read_ahead: 128KiB, below: disk}
  - {name: disk, read: 6GB/s, write: 4GB/s, latency: 80us, slots: 64}
"""


def said(*words: str) -> dict:
    out = StringIO()
    with redirect_stdout(out):
        code = main([*words, "--json"])
    if code:
        raise SystemExit(code)
    return json.loads(out.getvalue())


def found_by(name: str) -> None:
    requests = read_requests(FOLDER / name)
    total = int(requests.prompt.sum())
    print(f"{name}: {len(requests):,} requests, {total:,} tokens in")
    by = {}
    for mode in ("prefix", "blocks", "content"):
        began = time.process_time()
        store = store_of(requests, cache_rules(mode), 1, 16)
        by[mode] = hits(store, no_reuse(), requests.prompt, requests.session, requests.arrival_ns)
        print(f"  {mode:8} all room   {by[mode].sum() / total:7.2%}   {time.process_time() - began:.1f} CPU s")
    largest = pieces_of(requests, cache_rules("content"), 16).size.max()
    assert (by["prefix"] <= by["blocks"]).all()
    assert (by["content"] > by["prefix"] - largest).all()
    for room in ROOMS:
        row = []
        for policy in ("lru", "belady", "ttl=60s", "pinned=512"):
            rules = replace(cache_rules(f"prefix {policy}"), tiers=(Room(name="host", bytes=room),))
            began = time.process_time()
            found = hits(
                store_of(requests, rules, 1, 16), no_reuse(), requests.prompt, requests.session, requests.arrival_ns
            ).sum()
            row.append(f"{policy} {found / total:.2%} ({time.process_time() - began:.1f} s)")
        print(f"  prefix   {room / 1e6:3.0f}M tokens {', '.join(row)}")


def streams(name: str) -> None:
    file = str(FOLDER / name)
    for words in ("none", "prefix", "content fix=2ns"):
        one = said("serve", "deepseek-v2-lite", "--requests", file, "--first", "1500", "--replicas", "2", "--system",
                   "dgx-h200", "--cache", words)  # fmt: skip
        print(f"  irminsul {words:28} ttft {one['ttft_s']['mean']:.4f} s, {one['cache_hit_tokens']:,} found")
    for words in ("prefix", "blocks fix=0.1 sharded link=25GB/s"):
        one = said("serve", "llama3.2-3b", "--requests", file, "--first", "1500", "--replicas", "4", "--router",
                   "affinity", "--system", "dgx-h100", "--cache", words)  # fmt: skip
        print(f"  rcllm    {words:28} ttft {one['ttft_s']['mean']:.4f} s, {one['cache_hit_tokens']:,} found")


def disks(name: str) -> None:
    edge = Path("/tmp/etude-edge-nvme.yaml")
    edge.write_text(EDGE)
    row = []
    for path in ("cache", "direct", "dual"):
        one = said("serve", "llama3-8b", "--requests", str(FOLDER / name), "--first", "5", "--system", str(edge),
                   "--offload", f"kv path={path}", "--host-memory", "1GB")  # fmt: skip
        row.append(f"{path} {one['prefill_s']:.2f} + {one['decode_s']:.2f} s")
    print(f"  dual-blade {name}: {', '.join(row)}")
    edge.unlink()


def page() -> int:
    """The hour of conversations on 8 replicas, as the page has it."""
    printed, missing = (HERE.parent / "docs" / "serve.md").read_text("utf-8"), 0
    for words in ("--router least", "--cache prefix --router least", "--cache prefix --router prefix"):
        one = said("serve", "llama3-8b", "--replicas", "8", "--system", "dgx-h100", "--requests",
                   str(FOLDER / FILES[0]), *words.split())  # fmt: skip
        part = one["cache_hit_tokens"] / one["prompt_tokens"]
        row = f"`{words}` | {f'{part:.1%}' if part else 0}"
        times = f"| {one['ttft_s']['mean']:.3f} s | {one['ttft_s']['p99']:.2f} s |"
        there = any(line.startswith(f"| {row}") and line.endswith(times) for line in printed.splitlines())
        print(f"| {row} {times}" + ("" if there else "   not on the page"))
        missing += not there
    return int(missing > 0)


if __name__ == "__main__":
    if not FOLDER.is_dir():
        sys.exit(f"no request files in {FOLDER}")
    if "--page" in sys.argv:
        sys.exit(page())
    for name in FILES:
        found_by(name)
        streams(name)
        disks(name)
