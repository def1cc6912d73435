"""The commands in the order in which `etude --help` shows them: name, panel, and the line that says what it does.

A command is the file of this folder with its name (`_` for blanks and hyphens), and is loaded when it runs or its own
help is asked for; `etude --help` and completion read this table alone, and stay quick however many commands there are.
A test holds each line to the command's docstring.
"""

from etude.analyse.catalogue import command_lines

LOOK = "Look"
CONVERT = "Convert"
MAKE = "Make and change"
RUN = "Run"
ANALYSE = "Analyse"

COMMANDS: dict[str, tuple[str, str]] = {
    "info": (LOOK, "The content of a job: ranks, nodes by kind, bytes by collective, groups, span, producer"),
    "check": (LOOK, "All errors and warnings found in a job; exit code 1 if there are errors"),
    "diff": (LOOK, "The first rank, node and column in which two jobs differ, or `same`; exit code 1 if they differ"),
    "similarity": (
        LOOK,
        "How similar two jobs are: distances of distributions, sums, simulated times; or kernel by kernel",
    ),
    "query": (
        LOOK,
        "SQL over a job (nodes, deps, attrs, groups, ranks) or a served stream (requests, passes; sessions, tasks)",
    ),
    "evaluate": (LOOK, "One value of a run, from its tables: what a page says with a number, and any other"),
    "report": (LOOK, "One HTML page about a run: what happened, why, and where the time goes; it opens offline"),
    "studio": (LOOK, "A run in the browser: zoom its timeline, ask its tables, change a knob and see the new step"),
    "timeline": (LOOK, "All ranks on one clock, for ui.perfetto.dev: lanes, flows, counters, the critical path"),
    "graph": (LOOK, "The dependency graph of a rank, or its part around one node, as a picture or for graph tools"),
    "card": (LOOK, "The workload card of a job, as YAML: its model, plan, hardware and software"),
    "archive": (LOOK, "Many runs in one place: add runs, list them, query them with SQL, merge their files"),
    "mcp": (
        LOOK,
        "A server for assistants (Model Context Protocol, on stdin and stdout): ask about traces, predict, what-if",
    ),
    "convert": (
        CONVERT,
        "A job in another format: Chakra `.et`, JSON, Parquet; all files of ASTRA-sim; flows; also from ASTRA-sim text",
    ),
    "chakra": (
        CONVERT,
        "The official Chakra tools' commands, with their flags and their output: link, convert, show, generate",
    ),
    "collect": (MAKE, "Run a PyTorch command, unchanged, and record every rank of it; its exit code is passed on"),
    "link": (CONVERT, "A Chakra trace from what PyTorch recorded: operators, launches, kernels and their dependencies"),
    "generate": (MAKE, "The job of one training step, or of serving, from a model and a plan"),
    "generate micro": (MAKE, "One collective or pattern of messages, with or without concurrent compute"),
    "generate learned": (MAKE, "A job of any size that behaves like those a model was learned from"),
    "learn": (MAKE, "A small model of jobs, without names, shapes or exact sizes, for generating others"),
    "edit": (
        MAKE,
        "A what-if copy of a job: faster operators, compressed or merged communication, another order, more ranks",
    ),
    "anonymise": (MAKE, "A copy of a job with the same simulated times, without names, shapes or code"),
    "predict": (RUN, "The time of a training step, or of serving: generate and simulate in one command"),
    "serve": (
        RUN,
        "A stream of requests on replicas of a model: TTFT, tail latencies and goodput, from simulated passes",
    ),
    "fleet": (RUN, "Days of jobs on a cluster: faults, checkpoints and recovery, or many jobs that share its devices"),
    "federate": (RUN, "Federated rounds: clients of mixed devices and links, sampled, with a server or as a swarm"),
    "world": (RUN, "Training, serving, faults, prices and power on one machine and one clock, from one file"),
    "plan": (RUN, "The plans of a model that fit a cluster, ranked by simulated step time"),
    "search": (
        RUN,
        "The best of a space of designs: plans, placements, cuts, mixes; scored by simulation, with its frontier",
    ),
    "study": (
        RUN,
        "Baseline against variants from one file: points run once, pairs, intervals, checks, a page; a gallery",
    ),
    "simulate": (RUN, "Run a job on a simulated system: when each rank ends and how it spends its time"),
    "simulate astra": (
        RUN,
        "The result of ASTRA-sim for a workload, from its own files: the same cycles, and why it hangs or aborts",
    ),
    "replay": (
        RUN,
        "Run a job again on this machine: its operators, or synthetic work of the same size; and compare times",
    ),
    "replay communication": (
        RUN,
        "Replay the communication of a job, between processes of this machine or under torchrun; every call is checked",
    ),
    "energy": (RUN, "Power over time and energy of a run, or of a predicted model: J, kWh, carbon, price"),
    "score": (RUN, "How right is Etude about what you measured? Errors of every figure, and what was assumed"),
    "validate": (
        RUN,
        "Is the graph of a program right? Known delays are put into it, and the changes compared with predicted ones",
    ),
    "ops": (
        RUN,
        "A database of measured operators: find what is missing for a set of models, measure, show, add, import",
    ),
    "stacks": (RUN, "The catalogue of software stacks: list, show one"),
    "calibrate": (RUN, "Your own software stack, from measured steps or a recorded run"),
    "systems": (RUN, "The catalogue of systems: list, show one, check your own file"),
    "qualify": (
        RUN,
        "Compare this node with others, or with itself earlier: find slow GPUs, links, hosts; exit code 1 if any",
    ),
    **{name: (ANALYSE, line) for name, line in command_lines().items()},
    "demo": (LOOK, "The main workflow end to end on an embedded recording: no GPU, no server, no download"),
}

GROUPS: dict[str, str] = {"chakra converter": "A Chakra trace (`.et`) from a PyTorch trace or a text workload"}
"""Two words that are nothing but the verbs behind them."""

OTHER_NAMES: dict[str, str] = {"likeness": "similarity"}
"""Names that commands had before, which are still understood."""


def file_of(name: str) -> str:
    return name.replace("-", "_").replace(" ", "_")
