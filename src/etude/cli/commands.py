"""The commands in the order in which `etude --help` shows them: name, panel, and the line that says what it does.

A command is the file of this folder with its name, and is loaded when it runs or its own help is asked for; `etude
--help` and completion read this table alone, and stay quick however many commands there are. A test holds each line to
the command's docstring.
"""

LOOK = "Look"
CONVERT = "Convert"
MAKE = "Make and change"
RUN = "Run"

COMMANDS: dict[str, tuple[str, str]] = {
    "info": (LOOK, "What is in a job: ranks, nodes by kind, bytes by collective, groups, span, who wrote it"),
    "check": (LOOK, "Every way in which a job is broken; exit code 1 if there are errors"),
    "diff": (LOOK, "The first rank, node and column in which two jobs differ, or `same`; exit code 1 if they differ"),
    "query": (LOOK, "SQL over a job: nodes, deps, attrs, groups, ranks. A Parquet job is not loaded for it"),
    "convert": (CONVERT, "A job in another format, nothing lost: Chakra `.et`, JSON, or one Parquet folder"),
    "collect": (MAKE, "Run a PyTorch command, unchanged, and record every rank of it; its exit code is passed on"),
    "link": (
        CONVERT,
        "A Chakra trace from what PyTorch recorded: host and device tied together, with a report of what was",
    ),
    "simulate": (RUN, "What a job does on a system: when each rank ends and how it spends its time"),
    "systems": (RUN, "The catalogue of systems: list, show one, check a file of your own"),
    "demo": (LOOK, "The main path end to end on a small embedded job: no GPU, no server, no download"),
}
