"""No text of a file becomes markup in a page, and a page's policy admits its own script alone."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import browser
from etude.base.notebook import card, note, records, shares
from etude.surface.cli import main
from etude.tell.report.fleet.training import hours_section
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.heat import heat
from etude.tell.view.lengths import in_notebook, sized, sizes
from etude.tell.view.markup import Markup, escaped, heading, joined, paragraph
from etude.tell.view.page import Figure, Page, PageSection, Told, render
from etude.tell.view.plots import Axis, PlotPoint, StripInterval, plot, strip

HOSTILE = (
    "<script>document.title='PWNED'</script>",
    '"><img src=x onerror="document.title=\'PWNED\'">',
    "'><svg onload=document.title='PWNED'>",
    "--></title></style></script><script>document.title='PWNED'</script>",
)


class Elements(HTMLParser):
    """Elements and attributes of a page, and the texts of its scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag if tag in self.raw and "type" not in dict(attrs) else ""
        if self._in:
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in:
            self.raw[self._in][-1] += data


def checked(html: str) -> Elements:
    """A page whose elements are all its own."""
    found = Elements()
    found.feed(html)
    for tag, attributes in found.tags:
        assert tag not in ("img", "iframe", "object", "embed", "base", "link"), (tag, attributes)
        assert not any(name.startswith("on") or name in ("style", "srcdoc") for name in attributes), (tag, attributes)
        assert not str(attributes.get("href") or "#").lower().startswith(("javascript:", "data:"))
    assert "PWNED" not in "".join(found.raw["script"] + found.raw["style"])
    return found


def policed(html: str) -> Elements:
    """A page with one script and one style, which are what its policy names, and nothing else."""
    found = checked(html)
    assert [len(found.raw[kind]) for kind in ("script", "style")] == [1, 1]
    policies = [a["content"] for t, a in found.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    policy = dict(part.strip().split(" ", 1) for part in str(policies[0]).split(";"))
    for kind in ("script", "style"):
        digest = b64encode(sha256(found.raw[kind][0].encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in str(policies[0])
    assert html.index("Content-Security-Policy") < html.index("<style>") < html.index("<script>")
    return found


# -- traces ------------------------------------------------------------------------------------------------------------


def kineto(bad: str) -> dict[str, Any]:
    """A small trace of one rank in which every text that a recorder chooses freely is hostile."""
    comm = {"Collective name": "allreduce", "In msg nelems": 1024, "dtype": bad, "Process Group Name": bad,
            "Process Group Description": bad, "Process Group Ranks": "[0, 1]", "Group size": 2}  # fmt: skip
    shapes = {"Input Dims": [[512, 512], [512, 512]], "Input type": [bad, "float"], "Concrete Inputs": ["", bad]}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": bad}},
        {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": bad}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": bad}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": bad}},
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#1{bad}", "pid": 1, "tid": 1, "ts": 0, "dur": 900},
        {"ph": "X", "cat": "user_annotation", "name": bad, "pid": 1, "tid": 1, "ts": 1, "dur": 800},
        {"ph": "X", "cat": "python_function", "name": bad, "pid": 1, "tid": 1, "ts": 2, "dur": 700,
         "args": {"Python module id": 1, bad: bad}},
    ]  # fmt: skip
    for k, (cat, name, args) in enumerate(
        [("kernel", f"gemm{bad}", {"dtype": bad}), ("kernel", bad, {bad: bad}),
         ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", comm),
         ("gpu_memcpy", f"Memcpy HtoD {bad}", {"bytes": 4096}),
         ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", comm)]
    ):  # fmt: skip
        at = 10 + 150 * k
        op = {"External id": 100 + k, **(shapes if not k else {}), "Call stack": bad}
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm" if not k else bad, "pid": 1, "tid": 1, "ts": at, "dur": 30,
             "args": op},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 5, "dur": 5,
             "args": {"correlation": k, "External id": 100 + k}},
            {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": at + 20, "dur": 90,
             "args": {"correlation": k, "External id": 100 + k, "stream": 7, "device": 0, **args}},
        ]  # fmt: skip
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": bad, "totalGlobalMem": 1}],
        "distributedInfo": {"backend": bad, "rank": 0, "world_size": 2,
                            "pg_config": [{"pg_name": bad, "pg_desc": bad, "ranks": [0, 1], "backend_config": bad}]},
        "record_shapes": 1, "displayTimeUnit": "ms", "traceName": bad, bad: bad, "traceEvents": events,
    }  # fmt: skip


def without_slash(bad: str) -> str:
    """A file name cannot have a slash."""
    return bad.replace("/", "|")


@pytest.mark.parametrize("bad", HOSTILE)
def test_a_trace_puts_no_markup_in_its_pages(tmp_path: Path, bad: str):
    trace = tmp_path / f"{without_slash(bad)}.json"
    trace.write_text(json.dumps(kineto(bad)), "utf-8")
    page, job = tmp_path / "r.html", tmp_path / without_slash(f"job {bad}")
    assert main(["report", str(trace), "-o", str(page)]) == 0
    policed(page.read_text("utf-8"))
    assert main(["report", str(trace), "--ran-on", "h100", "-o", str(page), "--force"]) == 0
    policed(page.read_text("utf-8"))
    assert main(["convert", str(trace), "-o", str(job)]) == 0
    other = tmp_path / "two.html"
    assert main(["report", str(job), str(trace), "-o", str(other)]) == 0
    policed(other.read_text("utf-8"))
    picture = tmp_path / "g.svg"
    assert main(["graph", str(trace), "-o", str(picture)]) == 0
    assert {t for t, _ in checked(picture.read_text("utf-8")).tags} <= {
        "svg", "title", "style", "defs", "marker", "path", "g", "rect", "text",
    }  # fmt: skip


def test_the_device_of_a_trace_is_text(tmp_path: Path):
    trace, page = tmp_path / "t.json", tmp_path / "r.html"
    trace.write_text(json.dumps(kineto(HOSTILE[0])), "utf-8")
    assert main(["report", str(trace), "-o", str(page)]) == 0
    html = page.read_text("utf-8")
    text = re.sub(r"</?data[^>]*>", "", html)
    assert "No peak rates of &lt;script&gt;document.title=&#x27;PWNED&#x27;&lt;/script&gt; are known" in text
    assert html.count("<script") == 2  # the page's own, and the packed data of the timeline


# -- every part of a page ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", HOSTILE)
def test_every_part_of_a_page_takes_text(bad: str):
    x = Axis(bad, lambda v: bad, False, 0.0, 1.0)
    shown = [Bar(bad, (BarPiece(bad, bad, 0.5), BarPiece(bad, bad, 0.25, True)), bad)]
    rows = [{"a": bad, "b": 1.0}]
    columns = [Heading("a", bad, number=False), Heading("a", bad, number=False, code=True),
               Heading("b", bad, lambda v: bad, meter=2.0)]  # fmt: skip
    body = legend([(bad, bad)]) + bars(shown, lambda v: bad) + table(bad, rows * 30, columns) + heading(bad)
    body += plot(bad, x, x, [PlotPoint(0.5, 0.5, bad, bad)], [(bad, bad, [(0.0, 0.0), (1.0, 1.0)])])
    body += heat(bad, [[1.0, 2.0], [3.0, 4.0]], [bad, bad], lambda v: bad) + paragraph(bad) + bad
    body += strip(bad, [StripInterval(0.0, 0.5, bad, bad)], 0.0, 1.0, lambda v: bad)
    page = Page(
        title=bad, subtitle=bad, verdict=bad, cards=(Figure(bad, bad, bad, bad),),
        told=(Told("bad", bad, bad, bad, 1, bad),),
        sections=(PageSection(bad, bad, bad, body), PageSection("e", bad, bad, empty=bad)),
        facts=((bad, bad),), notes=(bad,), made_by=bad,
    )  # fmt: skip
    policed(render(page))
    told = card(bad, bad, [(bad, bad)], note(bad), shares([(bad, 0.5, bad)]), records(rows), in_notebook(body))
    seen = Elements()
    seen.feed(told)
    assert not [t for t, a in seen.tags if t in ("script", "img") or any(n.startswith("on") for n in a)]


def test_a_body_that_is_not_markup_is_text():
    hostile: Any = HOSTILE[0]
    assert "&lt;script&gt;" in render(
        Page(title="", subtitle="", verdict="", sections=(PageSection("a", "", "", hostile),))
    )


def test_text_that_joins_markup_is_escaped():
    assert Markup("<b>") + "<i>" == "<b>&lt;i&gt;"
    assert "<i>" + Markup("<b>") == "&lt;i&gt;<b>"
    assert joined(["<i>", Markup("<b>")]) == "&lt;i&gt;<b>"
    assert escaped(escaped("<")) == "&lt;"
    assert all(type(m) is Markup for m in (Markup("a") + "b", "a" + Markup("b"), joined("ab"), heading("a")))


def test_lengths_are_rules():
    assert [sized(v) for v in (0, 12.5, 100, 33.33333)] == ["w-0", "w-12_5", "w-100", "w-33_333"]
    html = f'<i class="{sized(12.5)}"></i><svg class="chart {sized(680, "most")}"></svg>'
    assert sizes(html) == ".most-680{max-width:680px}.w-12_5{width:12.5%}"
    assert sizes(html, ".x ") == ".x .most-680{max-width:680px}.x .w-12_5{width:12.5%}"


def test_names_of_a_fleets_runs_are_text():
    record = {"useful_s": 1.0, "lost_s": {}, "useful_fraction": 1.0}
    section = hours_section([(HOSTILE[0], record)])
    assert "<script" not in section.body
    assert "&lt;script&gt;" in section.body


def test_the_sources_have_no_handlers_and_no_inline_styles():
    folder = Path(__file__).parents[2] / "src" / "etude"
    for path in [*folder.rglob("*.py"), *folder.rglob("*.js"), *folder.rglob("*.html")]:
        text = path.read_text("utf-8")
        assert "unsafe-inline" not in text, path
        assert not re.search(r"<[a-z][^<>\n]* on[a-z]+=", text), path
        assert not re.search(r"\.(innerHTML|outerHTML)\b|insertAdjacentHTML|document\.write\(|\beval\(\"", text), path


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium")
    with browser.Browser(program) as found:
        yield found


@pytest.mark.parametrize("bad", HOSTILE)
def test_a_hostile_trace_runs_nothing_and_the_page_works(tmp_path: Path, chromium: browser.Browser, bad: str):
    trace, page = tmp_path / "t.json", tmp_path / "r.html"
    trace.write_text(json.dumps(kineto(bad)), "utf-8")
    assert main(["report", str(trace), "-o", str(page)]) == 0
    chromium.problems.clear()
    refused = "addEventListener('securitypolicyviolation', (e) => (window.refused ??= []).push(e.violatedDirective))"
    chromium.open(page, before=refused)
    assert chromium.evaluate("document.title") != "PWNED"
    assert chromium.evaluate("window.refused ?? []") == []
    assert chromium.problems == []
    # The page's own style and script are in force: widths are those of the bars, and the theme turns.
    assert chromium.evaluate("document.querySelector('.bars .bar i').getBoundingClientRect().width") > 1
    before = chromium.evaluate("document.documentElement.dataset.theme")
    chromium.click("#theme")
    assert chromium.evaluate("document.documentElement.dataset.theme") != before
    # What is added later is refused by the policy.
    chromium.evaluate("{const s = document.createElement('script'); s.textContent = \"document.title = 'PWNED'\"; "
                      "document.body.append(s);}")  # fmt: skip
    assert chromium.evaluate("document.title") != "PWNED"
