"""Runs the code blocks of the pages, in process: `python docs/blocks.py docs/tutorial.md [--update] [--slow] [--times]`.

What is done with a block is said by its language and by a comment on the line above it:

- no language: every line is a command `etude ...`; text behind `  # ` is for the reader. A line that begins with a
  blank goes on with the one before.
- `console`: commands begin with `$ `. The lines below a command are its output, and must be what it prints; a line
  `...` stands for any number of lines. `--update` writes them anew.
- `python`: is executed; the blocks of a page share their names.
- `text`, `sql`: output, a drawing, a message; not run.
- `<!-- file: NAME -->`: the block is that file, for the commands below it.
- `<!-- exit: 1 -->`: the last command of the block answers "no".
- `<!-- slow: WHY -->`: only run with `--slow`, by benchmarks/bench_docs.py.
- `<!-- not run: WHY -->`: needs what a test has not.

A page runs in a folder of its own that has the names which all pages use: docs/stage.py makes them.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```", re.S | re.M)
LANGUAGES = ("", "console", "python", "yaml", "csv", "text", "sql", "json")
MARKS = ("file", "exit", "slow", "not run")
NEVER_RUN = ("text", "sql")
LONGEST = 14  # lines of an output that `--update` shows in full


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    mark: str
    """`not run`, `slow`, `exit`, `file`, or nothing."""
    said: str
    """What stands behind the mark."""
    body: str
    span: tuple[int, int]
    """Where the body is in the page."""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Step:
    """A command and, in a console block, the output that the page shows."""

    command: str
    shown: str | None = None


class BlockError(AssertionError):
    """A block of a page does not do what the page says."""


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    text, found = page.read_text(), []
    for match in BLOCK.finditer(text):
        mark, _, said = (match["mark"] or "").partition(":")
        known = mark in MARKS
        line = text[: match.start("body")].count("\n") + 1
        found.append(Block(page, line, match["language"], mark if known else "", said.strip() if known else "",
                           match["body"], match.span("body")))  # fmt: skip
    return found


def steps(block: Block) -> list[Step]:
    """The commands of a block, as a shell would take them."""
    found: list[Step] = []
    for line in block.body.splitlines():
        if block.language == "console":
            if line.startswith("$ "):
                found.append(Step(line[2:], ""))
            elif found:
                found[-1] = Step(found[-1].command, f"{found[-1].shown}{line}\n")
        elif line[:1].isspace() and found:
            found[-1] = Step(f"{found[-1].command.rstrip(chr(92))} {line.strip()}")
        elif line.strip():
            found.append(Step(line))
    return [Step(one, step.shown) for step in found for one in _split(step.command)]


def _split(command: str) -> list[str]:
    """Without what is said to the reader; several commands of one line apart."""
    command = re.split(r"\s+# ", command)[0].strip()
    return [part.strip() for part in re.split(r"(?:; |&& )(?=etude |cd )", command)]


def matches(shown: str, printed: str) -> bool:
    """Is it what is shown, where a line `...` stands for any number of lines?"""
    parts = [re.escape(part) for part in re.split(r"^\.\.\.\n", shown, flags=re.M)]
    return re.fullmatch("(?:.*\n)*?".join(parts), printed) is not None


def _short(printed: str) -> str:
    """The first lines and the last one of an output that is too long for a page."""
    lines = printed.splitlines(keepends=True)
    return printed if len(lines) <= LONGEST else "".join([*lines[: LONGEST - 5], "...\n", lines[-1]])


class Runner:
    """Runs the blocks of one page in the current folder."""

    def __init__(self, *, slow: bool = False, update: bool = False) -> None:
        self.slow, self.update = slow, update
        self.names: dict[str, Any] = {}
        self.times: list[tuple[float, str]] = []
        self.renewed: list[tuple[tuple[int, int], str]] = []

    def page(self, page: Path) -> int:
        """Runs what is to be run, and says how many blocks that were."""
        done = [self.block(block) for block in blocks(page)]
        if self.renewed:
            text = page.read_text()
            for (start, end), body in reversed(self.renewed):
                text = text[:start] + body + text[end:]
            page.write_text(text)
        return sum(done)

    def block(self, block: Block) -> bool:
        if block.language not in LANGUAGES:
            raise BlockError(
                f"{block.where}: what is to be done with `{block.language}`? known: {', '.join(LANGUAGES)}"
            )
        if block.mark == "file":
            Path(block.said).write_text(block.body)
            return True
        if block.mark == "not run" or block.language in NEVER_RUN or (block.mark == "slow") > self.slow:
            return False
        if block.language in ("yaml", "csv", "json"):
            raise BlockError(f"{block.where}: neither `<!-- file: NAME -->` nor `<!-- not run: WHY -->` is above it")
        if block.language == "python":
            self._python(block)
        else:
            self._commands(block)
        return True

    def _python(self, block: Block) -> None:
        began = time.process_time()
        if not self.names:
            import etude

            system = etude.open_system("dgx-h100").resized(16)
            self.names = {"etude": etude, "system": system, **{name: etude.open(name) for name in ("job", "a", "b")}}
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * block.line + block.body, block.where, "exec"), self.names)
        except Exception as error:
            raise BlockError(f"{block.where}: {type(error).__name__}: {error}") from error
        self.times.append((time.process_time() - began, f"{block.where}: python"))

    def _commands(self, block: Block) -> None:
        todo, body, before = steps(block), "", Path.cwd()
        for number, step in enumerate(todo):
            last = number == len(todo) - 1
            expect = int(block.said) if block.mark == "exit" and last else 0
            printed = self._command(block, step.command, expect)
            if self.update and step.shown is not None:
                kept = step.shown if step.shown and matches(step.shown, printed) else _short(printed)
                body += f"$ {step.command}\n{kept}"
            elif step.shown and not matches(step.shown, printed):
                raise BlockError(f"{block.where}: `{step.command}` prints\n{printed}and the page shows\n{step.shown}")
        os.chdir(before)
        if self.update and block.language == "console":
            self.renewed.append((block.span, body))

    def _command(self, block: Block, command: str, expect: int) -> str:
        """Runs it, and gives what it prints."""
        from etude.surface.cli import main

        words = shlex.split(command)
        began = time.process_time()
        if words[0] == "cd":
            os.chdir(words[1])
            return ""
        if words[0] != "etude":
            raise BlockError(f"{block.where}: `{command}` is no command of etude: mark the block")
        if "-j" in words:
            words[words.index("-j") + 1] = "1"  # this process: others would load everything anew
        _make_room(words)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words[1:])
        self.times.append((time.process_time() - began, f"{block.where}: {command}"))
        if code != expect:
            raise BlockError(f"{block.where}: `{command}` ends with {code}\n{err.getvalue()[-2000:]}")
        return out.getvalue() + err.getvalue()


def _make_room(words: list[str]) -> None:
    """Takes away what the command is about to write: pages use one name for many results."""
    outs = [after for word, after in pairwise(words) if word in ("-o", "--out", "--job-out")]
    if words[1] == "report" and not outs:
        outs.append("report.html")
    if words[1] == "convert":
        outs.append([word for word in words[2:] if not word.startswith("-")][1])
    for name in outs:
        path = Path(name.rstrip("/"))
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)


@contextlib.contextmanager
def staged(base: Path) -> Iterator[Path]:
    """A copy of `base` as the current folder: what a page writes or replaces stays in it."""
    with tempfile.TemporaryDirectory(prefix="etude-docs-") as name:
        shutil.copytree(base, name, symlinks=True, dirs_exist_ok=True)
        before = Path.cwd()
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run the code blocks of pages.")
    parser.add_argument("pages", nargs="*", type=Path, help="Default: all pages.")
    parser.add_argument("--update", action="store_true", help="Write the output of console blocks anew.")
    parser.add_argument("--slow", action="store_true", help="Run also what is marked `slow`.")
    parser.add_argument("--times", action="store_true", help="Print the CPU seconds of each command.")
    given = parser.parse_args(argv)
    from stage import stage

    failed = 0
    with tempfile.TemporaryDirectory() as name:
        base = stage(Path(name) / "stage")
        for page in [p.resolve() for p in given.pages] or pages():
            runner = Runner(slow=given.slow, update=given.update)
            try:
                with staged(base):
                    print(f"{page.relative_to(ROOT)}: {runner.page(page)} blocks")
            except BlockError as error:
                failed += 1
                print(f"FAILED {error}")
            if given.times:
                print("".join(f"  {s:6.2f}  {what}\n" for s, what in sorted(runner.times, reverse=True)), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
