"""A grammar of valid commands of `serve`, `fleet`, `federate` and `search` that run fast, drawn by seed.

`<a|b>` is one of these texts, `<2..9>` and `<0.5..2.0>` a number between, `<name>` one alternative of RULES, `<name?>`
one or none of them, `<name*3>` up to three different ones. What is inside is drawn first.
"""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterator
from typing import Final

WEIGHTS: Final = {
    "serve": 34, "serve images": 5, "serve workflow": 7, "serve devices": 4, "serve offload": 4, "serve split": 5,
    "fleet train": 9, "fleet share": 9, "fleet services": 3, "fleet backbone": 3, "fleet radio": 3,
    "fleet functions": 3, "fleet experts": 4, "federate": 6, "federate swarm": 4, "federate split": 4,
    "search plans": 4, "search space": 12,
}  # fmt: skip
"""Family -> how many of its commands there are in a round of all."""

RULES: Final[dict[str, list[str]]] = {
    # -- serve ---------------------------------------------------------------------------------------------------------
    "serve": [
        "serve <model> --system <system> <load> <replicas> <engine*3> <slo?>",
        "serve <model> --system <system> <load> <engine*4> <hook?>",
        "serve <model> --system <system> <load> <apart> <engine*2> <slo?>",
        "serve <model> --system <system> <cached> <near?>",
        "serve <model> --system <system> <load> <elastic>",
        "serve <model> --system <system> --requests requests<0..5>.csv <order> <replicas?> <tiers?>",
        "serve <model> --system <system> --requests adapters<0..1>.csv --max-loras <1..3> <--max-lora-rank <8|64>|>",
        "serve pools<0..2>.yaml <load> <link*2> <slo?>",
        "serve <moe> <load> <engine*2>",
        "serve <model> --system <system> <drawn> --rate <1|2>..<8|16|30> --slo ttft=<200ms|1s>,tpot=<20ms|50ms>",
    ],
    "model": ["gpt2", "qwen3-0.6b", "llama3.2-1b", "llama3-8b", "llama3-8b --tp <2|4>", "llama3.2-1b --precision fp8"],
    "moe": [
        "mixtral-8x7b --tp 4 --system dgx-h100",
        "qwen3-30b-a3b --tp 2 --ep 2 --system dgx-h200",
        'qwen3-30b-a3b --system dgx-h100 --offload "experts path=<host|stream|auto> host=xeon-8480"',
    ],
    "system": ["dgx-h100", "dgx-a100", "dgx-h100", "h200-server"],
    "load": [
        "<drawn> --rate <0.5|2|5|12|40|120> --seed <0..9>",
        "--requests requests<0..5>.csv <--rate <3|15|60>|--first <10..40>|>",
        '--requests "agents:sessions=<3..9>,turns=<2..4>,system=<200|900>,think=<0.5|4>" --rate <1|4> --seed <0..9>',
    ],
    "drawn": ["--count <8..60> <length*3>", "--count <8..60> --lengths requests<0..5>.csv <--burst <0|3>|>"],
    "length": [
        "--prompt <16|128|700|2300|6000>", "--output <1|2|17|64|200>", "--burst <0|0.5|2.5>",
        "--diurnal 0.<2..9>@<20s|5min>",
    ],
    "replicas": [
        "--replicas <2..4> --router <turn|least|tokens|session|br0|br:8|least+steal|mine.py:route>",
        "--replicas <2..4> <--barrier|--decide <1us|3ms>|>",
    ],
    "engine": [
        "--max-num-seqs <1|4|32>", "--max-num-batched-tokens <256|512|4096>", "--no-chunked", "--block-size <8|32>",
        "--num-gpu-blocks <600|900|2500>", "--reserve", "--no-enable-prefix-caching", "--no-async-scheduling",
        "--num-speculative-tokens <1|3|5> --acceptance 0.<1..9> <--draft-model gpt2|>", "--exit-depth 0.<3..9>",
        "--preemption-mode swap --num-gpu-blocks <500|900> <--swap-bandwidth <2|60>GB/s|>",
        "--scheduling-policy <fcfs|shortest|edf>", "--stack none", "--kv-dtype fp8",
        "--admit <eager|cap:2>",
    ],
    "order": [
        "--scheduling-policy <priority|edf|fair|shortest> --max-num-seqs <2|6>",
        "--scheduling-policy fair --tenant-weights chat=<1..4>,batch=1 --max-num-seqs <2|6>",
        ],
    "apart": ["--disaggregate <1:1|1:2|2:1|2:3> <link*3> <codec?>"],
    "link": ["--link <1|10|200>Gb/s", "--link-latency <0us|40us|2ms>", '--link-later "<1|3>s:2Gb/s;<5|9>s:100Gb/s"'],
    "codec": [
        "--kv-codec <fp8|int4>", "--kv-codec fp8,int4 --kv-choose <best|learn|fixed:int4>",
        "--kv-codec none,fp8,int4 --kv-quality 0.<1..9>",
    ],
    "cached": [
        '--requests "agents:sessions=<4..9>,turns=<2..5>,shift=<0|9>" --rate <2|6> --seed <0..9> --cache "<cache>"',
        '--requests "recommend:requests=<20..60>,users=<4..9>,items=<30..90>,listed=<3..9>" --rate <4|20> '
        '--seed <0..9> --cache "<cache>"',
        '--requests blocks.jsonl --cache "<cache>"',
    ],
    "near": ["--replicas <2..4> --router <prefix|affinity|session|least|mine.py:route>"],
    "cache": [
        "prefix", "prefix lru", "prefix belady", "prefix expected", "prefix ttl=<1|20>s", "prefix pinned=<64|900>",
        "prefix host=<1|8>GB@<5|50>GB/s", "blocks fix=0.<1..4> host=<1|4>GB@25GB/s", "blocks fix=<2|90>ns",
        "content chunk=<32|128> host=2GB@25GB/s", "blocks host=2GB@25GB/s nvme=1TB@7GB/s",
        "prefix sharded host=8GB@50GB/s link=<10|50>GB/s", "prefix remote=1TB@10Gb/s shared",
    ],
    "elastic": [
        "--replicas 2 --scale queue:<1|3>..<6|12>,most=<3..6>,every=<1|4>s <--set-up <0s|2s>|> <--load <5|90>GB/s|>",
        "--replicas <1..2> --scale target:<2..6>,most=4,every=2s,down=<2|9>s",
        "--replicas 4 --reconfigure at=<1..4>s,tp=<1|2><,how=live|> <--set-up <0s|1s>|>",
        '--replicas 2 --reconfigure goodput,every=<2|5>s --plans "tp=1;tp=2" --slo ttft=1s,tpot=30ms',
    ],
    "hook": [
        "--hook <batch=mine.py:order|evict=mine.py:longest|admit=mine.py:few|exit=mine.py:half|route=mine.py:route>",
    ],
    "slo": ["--slo ttft=<50ms|300ms|2s>,tpot=<8ms|30ms>", "--slo latency=<500ms|4s>"],
    "tiers": ['--slo "chat:ttft=<200ms|1s>,tpot=30ms;batch:latency=<2s|30s>"'],
    "serve images": [
        "serve images flux.1-dev --system <dgx-h100|dgx-a100> --gpus <2|4|8> "
        '--requests "mix:<512x512|256x768>@<4..20>=0.<2..8>,1024x1024@<5..28>=0.5" --rate <0.5|2|6> --count <5..30> '
        "--seed <0..9> --degree <elastic|elastic:1..4|fixed:1|fixed:2> <image*2>",
        "serve images <flux.1-dev|wan2.1-14b> --system dgx-h100 --gpus <4|8> --requests images<0..2>.csv "
        "--degree <elastic|elastic:2..4|fixed:2|fixed:4> <image*2>",
    ],
    "image": [
        "--images-at-once <2..4>", "--scheduling-policy <edf|shortest>", "--encode <3ms|40ms>", "--stack none",
        "--slo latency=<2s|30s>",
    ],
    "serve workflow": [
        "serve workflow flow<0..7>.yaml --system <dgx-h100|dgx-a100> <session*3> <--router <turn|two|affinity|br0>|>",
        "serve workflow choices<0..3>.yaml --choose <first|fixed:best|fixed:cheap|within|pixie> "
        "--slo latency=<1|3>s,cost=0.0<1..3>,label=0.<5..8> --seed <0..9>",
        "serve workflow <cascade|verify|decompose> --models <gpt2,llama3.2-1b|llama3.2-1b,gpt2> "
        "--system dgx-h100 --seed <0..9>",
    ],
    "session": [
        "--seed <0..9>", "--replicas <2..3>", "--order program", "--cache <prefix|belady>", "--max-num-seqs <1|3>",
        "--scheduling-policy shortest", "--no-chunked", "--stack none", "--num-speculative-tokens 2",
    ],
    "serve devices": [
        "serve devices flow<0..7>.yaml<,flow<0..7>.yaml|> --devices devices<0..2>.yaml --seed <0..9> "
        "<--place <heft|reuse|future:<1..4>|heft,reuse>|> <--stack none|>",
    ],
    "serve offload": [
        "serve offload <llama3-8b|llama3.2-1b> --system h200-server --path <cache|direct|dual> "
        "--host-memory <1|4|40>GB <--prompt <900|9000> --output <2|40>|--requests requests<0..5>.csv --first <2..6>>",
    ],
    "serve split": [
        'serve split <gpt2|llama3.2-1b|llama3-8b> --system dgx-a100 --split "<0.<1..9>|0.1..0.9|adaptive> '
        'room=<1|4>GB link=<5|25>GB/s every=<8|32>" --requests "recommend:requests=<30..70>,users=<9..40>,'
        'items=<50..200>,to_items=<100..300>,listed=<4..9>" --rate <5|40> --seed <0..9> <splitting*2>',
    ],
    "splitting": ["--replicas <2..3> --router <turn|session|residency>", "--slo latency=<50ms|1s>"],
    # -- fleet ---------------------------------------------------------------------------------------------------------
    "fleet train": [
        "fleet train <job> --days <0.2..3.0> <failing> --checkpoint <saves> <recovering>",
        "fleet train <job> --days <0.2..3.0> <failing> --checkpoint <saves> --recover mine.py:recover",
        'fleet train <job> --days <0.2..3.0> --faults "node:mtbf=<40..200>h,repair=2h" --checkpoint remote:auto',
        "fleet train <job> --days <0.2..3.0> <--checkpoint <saves>|> <--price 2.5|>",
        'fleet train <job> --days <0.5..3.0> <failing> --checkpoint <saves> '
        '--retry "auto:p=0.<2..7>,every=<4|11>min,tries=<2..6>;manual:p=0.5,every=1h"',
    ],
    "job": [
        "gpt2 --gpus <8|16|32> --system dgx-h100", "llama3.2-1b --gpus 32 --zero 1 --system dgx-a100",
        "llama3.2-1b --gpus 32 --tp 2 --pp 2 --system dgx-h100", "gpt2 --gpus 32 --pp 2 --system dgx-a100",
    ],
    "failing": [
        '--faults "node:mtbf=<40..400>h,repair=<1..9>h" --seed <0..9>',
        '--faults "crash:scope=process,mtbf=<5..30>h;node:mtbf=200h,repair=2h,repair_spread=exponential" --seed <0..9>',
        '--faults "slow:mtbf=<9..90>h,factor=1.<3..9>,duration=<10..50>min" --seed <0..9> <--eject|>',
        '--faults "spot:effect=preempt,mtbf=<30..90>h,duration=<20..90>min,notice=<0|2>min" --seed <0..9>',
        '--faults "kill:at=<1..5>h,every=<2..6>h,times=<2..6>"', "--faults faults<0..2>.yaml --seed <0..9>",
        "--faults events.csv",
    ],
    "saves": [
        "local:<5..30>min", "remote:<20..90>min", "local:<5..9>min,remote:1h", "peer:<90..400>",
        "remote:<20..60>min:async:rate=<1..4>GB/s", "local:5min,peer:20min,remote:2h:diff=0.2",
    ],
    "recovering": [
        "--recover restart <--restart <30..600>s|>", "--recover spare <--spares <0..4>|>", "--recover replan",
        "--recover shrink <--regroup <5..60>s|> <--no-reintegrate|>", "--recover redistribute --detect <1..90>s",
    ],
    "fleet share": [
        "fleet share cluster<0..2>.yaml --jobs jobs<0..5>.csv --policy <fifo|backfill|sjf|fair|mine.py:smallest>",
        "fleet share cluster<0..2>.yaml --jobs jobs<0..5>.csv --policy <srtf|las|deadline|priority> "
        "<--switch <0s|30s|5min>|> <--first <4..9>|>",
        "fleet share pool<0..5>.yaml --policy <elastic|harvest|gavel|fair|las|fifo>",
        "fleet share rl<0..5>.yaml --seed <0..9>",
        "fleet share mixed<0..2>.yaml --seed <0..9> --policy <fifo|backfill|srtf>",
    ],
    "fleet services": ["fleet services edge<0..3>.yaml <--policy <fifo|edf|stability>|> --seed <0..99>"],
    "fleet backbone": ["fleet backbone backbone<0..3>.yaml <--policy <partition|colocate|shared>|> --seed <0..99>"],
    "fleet radio": [
        "fleet radio airan<0..3>.yaml --policy <greedy|strict|haf> --migrate <1s|6s|endless> --load <0.4..1.5> "
        "--seed <0..99>",
        "fleet radio airan<0..3>.yaml --policy static --load <0.4..1.5> --seed <0..99>",
    ],
    "fleet functions": ["fleet functions moe<0..3>.yaml --seed <0..99>"],
    "fleet experts": [
        "fleet experts mixtral-8x7b --ep 8 --system dgx-h100 <group*3>",
        'fleet experts mixtral-8x7b --ep 8 --system dgx-h100 --fail "<rank<0..7>|node0>@<20..90>s<;rank<0..7>@200s|>" '
        "<group*2> <--restart <20..90>s|> <--detect <1..9>s|> <--host-copies <none|all>|>",
        "fleet experts <mixtral-8x7b --ep 8 --redundant 8|qwen3-30b-a3b --ep 16 --redundant <16|32>> --system dgx-h100 "
        "--fail rank<0..7>@<20..90>s --recover shrink <group*1> <--replace <9..90>s|--regroup <1..9>s>",
    ],
    "group": ["--sequences <8|64>", "--context <512|4096>", "--horizon <250..500>s"],
    # -- federate ------------------------------------------------------------------------------------------------------
    "federate": [
        "federate <client model> --clients <5..60> --link <1|10>..50Mb/s <people*4> <rounds*4> --seed <0..9> "
        "<--deadline <2|20>min|>",
        "federate <client model> --clients clients<0..3>.csv <rounds*3> --rounds <5..40> --deadline <5|20>min",
        "federate <client model> --clients <9..40> --link 20Mb/s --step 1..<2..5>s --train share:<0.3|0.7|auto> "
        "--deadline <60..200>s <--parts <4|20>|> --rounds <5..30>",
    ],
    "client model": ["resnet-50", "gpt2", "mobilenet-v2"],
    "people": [
        "--up <1|5>Mb/s", "--step <1..4>s", "--available 0.<3..6>..0.9 <--away <2..5>|> <--leave|>", "--labels <2..5>",
    ],
    "rounds": [
        "--count <2..4> --sample <uniform|weighted|awpsp|psp>", "--steps <2..9>", "--precision fp32",
        "--quorum <1..3>", "--server <20|900>Mb/s",
    ],
    "federate swarm": [
        "federate swarm <gpt2|resnet-50> --clients <4..12> --link <50|200>..900Mb/s <people*2> --rounds <1..3> "
        "--chunk <20|60>MB <--peers <2..3>|> <--share swarm+warmup <--warmup 0.<1..5>|> <--lag <1..9>s|>|> "
        "--seed <0..9>",
    ],
    "federate split": [
        "federate split <gpt2|llama3.2-1b> --clients examples/clients.csv --lora <4..16> <--lora-cut <1..4>|> "
        "--split <1|3|auto> --steps <1..6> --rounds <2..9> --seq <128|512> <--lengths dirichlet:0.<2..9>|> "
        "<--server-system a10 --server-devices <1..3>|> <--micro-batch <1..3>|>",
    ],
    # -- search --------------------------------------------------------------------------------------------------------
    "search plans": [
        'search gpt2 --gpus <4|8> --system <dgx-h100|dgx-a100> --over "<axis>,<plan axis>" <--global-batch 16|> '
        "--score <step|tokens|mfu|memory|energy|step,memory> <--method <all|greedy --seed 1>|>",
        'search llama3.2-1b --gpus 8 --system dgx-h100 --over "<axis>,recompute" --limit memory=<20|60>GB '
        "<--price 2.5 --score cost|>",
    ],
    "axis": ["tp=1|2", "tp=1|2|4", "pp=1|2"],
    "plan axis": ["zero=0|1|3", "micro_batch=1|2", "recompute=none|full", "schedule=1f1b|zb1p"],
    "search space": [
        "search examples/search/chain.yaml --method <dp|all> --set score=<latency|energy|bottleneck> <chain*2>",
        "search examples/search/chain.yaml --again every=<5|20>s --set duration=<30..90>s <chain*2>",
        "search examples/search/memory.yaml --method <ilp|greedy> --set score=<tokens|ttft|request> <memory*3>",
        "search examples/search/regions.yaml --method <ilp|lp> --set score=<cost|carbon> --set hours=<1..48> "
        '--set "budget=[<10..90>ms, <200..900>ms, <1..5>s]"',
        "search examples/search/routes.yaml --seed <0..9> --set score=<mean|p95> --set computing=<3..9> "
        '--set "requests={rate: <20..90>, size: <50..200>kB, duration: <2..4>s, sources: <5..12>}"',
        "search examples/search/split.yaml --set count=<1..4> --set split=<layer|kernel|neuron> "
        "--set shares=<equal|speed|fit> --set model=<mobilenet-v2|alexnet>",
        "search mix<0..3>.yaml --method <ilp|joint> <--set score=goodput --set budget=<5..40>|>",
        "search commands<0..1>.yaml --method <all|greedy --seed <0..9>|anneal --seed <0..9>>",
        "search shares<0..1>.yaml --set tries=<6..15>", "search placement<0..1>.yaml --set tries=<4..9>",
        "search patterns<0..2>.yaml --seed <0..9>",
    ],
    "chain": [
        "--set batch=<1..4>", "--set dtype=fp16", "--set model=<alexnet|resnet-18>",
        '--set "limits={memory: true, deadline: <2..9>s}"',
    ],
    "memory": [
        '--set "vram=[<2..4>GiB, <6..20>GiB]"', "--set prompt=<512|9000>", "--set bits=<4.5|16>", "--set cut=false",
        '--set "ways=[<copy|cpu>]"', "--set overlap=false", "--set output=<8|200>",
    ],
}  # fmt: skip

_INNER: Final = re.compile(r"<([^<>]*)>")


def text_of(rule: str, draw: random.Random) -> str:
    """One text of a rule."""

    def one(match: re.Match[str]) -> str:
        inside = match[1]
        name, _, most = inside.rstrip("?").partition("*")
        if name not in RULES:
            return _literal(inside, draw)
        if inside.endswith("?") and draw.random() < 0.5:
            return ""
        several = draw.sample(RULES[name], draw.randint(0, min(int(most), len(RULES[name])))) if most else ()
        return " ".join(several) if most else draw.choice(RULES[name])

    while _INNER.search(rule):
        rule = _INNER.sub(one, rule)
    return rule


def _literal(inside: str, draw: random.Random) -> str:
    if "|" in inside or not (ends := re.fullmatch(r"([\d.]+?)\.\.([\d.]+)", inside)):
        return draw.choice(inside.split("|"))
    low, high = ends[1], ends[2]
    return f"{draw.uniform(float(low), float(high)):.2f}" if "." in low else str(draw.randint(int(low), int(high)))


def commands(seed: int, only: str = "") -> Iterator[str]:
    """Commands without end, round after round of all families that begin with `only`, in an order that is drawn too."""
    draw = random.Random(seed)
    families = [name for name, weight in WEIGHTS.items() for _ in range(weight) if name.startswith(only)]
    while families:
        draw.shuffle(families)
        yield from (text_of(f"<{name}>", draw) for name in families)


def words(command: str) -> list[str]:
    """As a shell cuts them."""
    return [*shlex.split(command), "--json"]
