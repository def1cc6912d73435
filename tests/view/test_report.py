"""The report: what it says is what the analyses say, and it works in a real browser."""

import random
import re
import zlib
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import browser
from etude.analyse.breakdown import breakdown
from etude.base.errors import DeadlockError
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job, Note
from etude.model.run import Run
from etude.model.schema import Collective, Kind
from etude.model.timing import Origin, Timing
from etude.run.simulate.run import simulate
from etude.store import chakra, columns
from etude.surface.cli import main
from etude.tell.report import compose, words
from etude.tell.report.compose import report
from etude.tell.report.subject import Subject
from etude.tell.report.tables import said_once
from etude.tell.view.embedded import Shown, pack
from etude.tell.view.page import Page, render
from etude.tell.view.slices import Slices, slices_of
from simulated_jobs import random_job, symmetric_job, system
from training_step import training_step

VOID = {"meta", "input", "br"}


class Balanced(HTMLParser):
    """Every tag that opens is closed, and ids are unique."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append(str(given.get("href")))
        for name in ("src", "href", "action"):
            assert not str(given.get(name) or "").startswith(("http", "//")), given
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    assert {link[1:] for link in parser.links} <= set(parser.ids)
    assert "nan" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", html, flags=re.DOTALL).lower()
    return parser


@pytest.mark.parametrize("seed", range(12))
def test_any_simulated_job_has_a_page(seed: int):
    rng = random.Random(seed)
    job = symmetric_job(rng) if seed % 2 else random_job(rng, broken=False)
    try:
        run = simulate(job, system(16))
    except DeadlockError:
        return
    if run.timing.span() is None:
        return
    checked(render(report(run)))


# -- the packed timeline -----------------------------------------------------------------------------------------------


def unpacked(text: str) -> tuple[dict[str, object], np.ndarray]:
    """An independent reader of what `pack` writes: rows of row, start, end, name, bits, count, busy."""
    import json

    raw = zlib.decompress(b64decode(text))
    length = int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4 : 4 + length])
    at = 4 + length
    total = sum(r["count"] for r in head["rows"])

    def stream() -> list[int]:
        nonlocal at
        found = []
        for _ in range(total):
            value = shift = 0
            while True:
                byte = raw[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            found.append(value)
        return found

    gap, dur, name, bits, count, busy = (stream() for _ in range(6))
    rows, i = [], 0
    for number, row in enumerate(head["rows"]):
        before = 0
        for _ in range(row["count"]):
            start = before + (-(gap[i] + 1) // 2 if gap[i] % 2 else gap[i] // 2)
            before = start + dur[i]
            rows.append((number, start, before, name[i] - 1, bits[i], count[i], busy[i] if count[i] > 1 else dur[i]))
            i += 1
    return head, np.array(rows, np.int64).reshape(-1, 7)


def demo_slices() -> tuple[Job, Slices]:
    job = training_step()
    return job, slices_of(simulate(job, system(8)))


def test_nothing_is_lost_where_all_fits():
    _, s = demo_slices()
    packed = pack([Shown(s)])
    head, rows = unpacked(packed.text)
    assert (packed.kept, packed.slices, packed.merged_below_ns) == (len(s), len(s), 0)
    names = [head["names"][k] for k in rows[:, 3]]
    found = sorted(zip(rows[:, 1].tolist(), rows[:, 2].tolist(), names, strict=True))
    assert found == sorted(zip(s.start_ns.tolist(), s.end_ns.tolist(), [s.names[k] for k in s.name], strict=True))


@pytest.mark.parametrize("most", [24, 60, 120])
def test_merging_keeps_count_and_busy_time(most: int):
    _, s = demo_slices()
    packed = pack([Shown(s, critical=s.name == 0)], most)
    _, rows = unpacked(packed.text)
    assert packed.kept == len(rows) <= most
    assert packed.merged_below_ns > 0
    assert rows[:, 5].sum() == len(s)
    assert rows[:, 6].sum() == (s.end_ns - s.start_ns).sum()
    assert (rows[:, 6] <= rows[:, 2] - rows[:, 1]).all()
    one = rows[:, 5] == 1
    assert ((rows[:, 2] - rows[:, 1])[~one] <= 4 * packed.merged_below_ns).all()
    assert (rows[:, 4] >> 3).any()


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    chakra.write_job(training_step(), folder)
    out = folder / "report.html"
    assert main(["report", str(folder), "--system", "dgx-h100", "-o", str(out), "--title", "demo <&>"]) == 0
    return out


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    program = browser.find()
    if program is None:
        pytest.skip("needs a headless Chromium (apt-get install chromium)")
    with browser.Browser(program) as found:
        yield found


def test_the_page_is_one_sound_file(page: Path):
    html = page.read_text()
    parser = checked(html)
    assert {"findings", "timeline", "breakdown", "critical-path", "collectives", "about"} <= set(parser.ids)
    assert "demo &lt;&amp;&gt;" in html
    assert page.stat().st_size < 5e6


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_without_a_word_and_without_a_network(page: Path, chromium: browser.Browser, theme: str, width: int):
    chromium.problems.clear()
    chromium.requests.clear()
    chromium.open(page, width=width, theme=theme)
    assert chromium.problems == []
    assert [r for r in chromium.requests if not r.startswith("file:")] == []
    assert chromium.evaluate("document.documentElement.dataset.theme") == theme
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    drawn = "document.querySelector('canvas.main').getContext('2d').getImageData(160, 30, 800, 200).data"
    assert chromium.evaluate(f"new Set({drawn}).size") > 8


def test_old_browsers_unpack_too(page: Path, chromium: browser.Browser):
    chromium.problems.clear()
    chromium.open(page)
    count = "document.querySelector('.timeline').timeline.start"
    before = chromium.evaluate(f"[...{count}]")
    chromium.open(page, before="delete window.DecompressionStream")
    assert chromium.evaluate("typeof DecompressionStream") == "undefined"
    assert chromium.evaluate(f"[...{count}]") == before
    assert len(before) == 168
    assert chromium.problems == []


def view(chromium: browser.Browser) -> tuple[float, float]:
    return tuple(chromium.evaluate("(t => [t.from, t.to])(document.querySelector('.timeline').timeline)"))


def test_the_timeline_answers_keys_buttons_and_the_mouse(page: Path, chromium: browser.Browser):
    chromium.problems.clear()
    chromium.open(page)
    chromium.evaluate("document.querySelector('#timeline').scrollIntoView({behavior: 'instant'})")
    whole = view(chromium)
    chromium.evaluate("document.querySelector('canvas.main').focus()")
    chromium.key("w")
    assert view(chromium)[1] - view(chromium)[0] == pytest.approx(0.7 * whole[1])
    chromium.key("d")
    assert view(chromium)[0] > 0.15 * whole[1]
    chromium.key("Home")
    assert view(chromium) == whole
    chromium.key("ArrowRight")
    chromium.key("ArrowRight")
    assert "layer1.forward" in chromium.evaluate("document.querySelector('.picked').textContent")
    chromium.key("ArrowDown")
    assert ".sum" in chromium.evaluate("document.querySelector('.picked').textContent")
    chromium.key("Enter")
    assert view(chromium)[1] - view(chromium)[0] < 0.2 * whole[1]
    chromium.click("[data-do=fit]")
    assert view(chromium) == whole
    box = chromium.evaluate("(b => [b.left, b.top])(document.querySelector('canvas.main').getBoundingClientRect())")
    chromium.mouse("mouseMoved", box[0] + 170, box[1] + 24 + 22 + 10)
    assert "layer0.forward" in chromium.evaluate("document.querySelector('#tip').textContent")
    chromium.mouse("mouseWheel", box[0] + 500, box[1] + 60, deltaX=0, deltaY=-80, modifiers=2)
    chromium.wait(f"document.querySelector('.timeline').timeline.from > {whole[0]}")
    chromium.click("[data-do=path]")
    assert chromium.evaluate("document.querySelector('[data-do=path]').getAttribute('aria-pressed')") == "true"
    chromium.evaluate("(i => { i.value = 'gradients'; i.dispatchEvent(new Event('input')); })"
                      "(document.querySelector('.timeline input'))")  # fmt: skip
    assert chromium.evaluate("document.querySelector('.found').textContent").startswith("32 found")
    assert chromium.problems == []


def test_help_opens_and_keys_reach_the_timelines_buttons(page: Path, chromium: browser.Browser):
    chromium.problems.clear()
    chromium.open(page)
    is_open = "document.querySelector('#help').open"
    assert not chromium.evaluate(is_open)
    chromium.key("?")
    assert chromium.evaluate(is_open)
    chromium.key("?")
    assert not chromium.evaluate(is_open)
    chromium.click("[data-help]")
    assert chromium.evaluate(is_open)
    assert chromium.evaluate("document.activeElement.textContent") == "Close"
    chromium.click("#help form button")
    assert not chromium.evaluate(is_open)
    chromium.evaluate("document.querySelector('canvas.main').focus()")
    chromium.key("p")
    assert chromium.evaluate("document.querySelector('[data-do=path]').getAttribute('aria-pressed')") == "true"
    chromium.key("/")
    assert chromium.evaluate("document.activeElement.type") == "search"
    chromium.key("?")  # there it is a letter
    assert not chromium.evaluate(is_open)
    chromium.key("Escape")
    assert chromium.evaluate("document.activeElement.className") == "main"
    assert chromium.problems == []


def test_everything_that_can_be_pressed_has_a_name(page: Path, chromium: browser.Browser):
    chromium.open(page)
    nameless = (
        "[...document.querySelectorAll('button, a, input, canvas[tabindex], svg[role=img], [role=img]')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML.slice(0, 80))"
    )
    assert chromium.evaluate(nameless) == []


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_stand_out_from_their_ground(page: Path, chromium: browser.Browser, theme: str):
    """4.5 to 1 for words, as WCAG asks."""
    chromium.open(page, theme=theme)

    def colour(name: str) -> float:
        got = f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()"
        return _luminance(chromium.evaluate(got))

    for word in ("ink", "soft", "faint", "link", "bad", "warn", "good", "info"):
        for ground in ("bg", "card"):
            low, high = sorted((colour(word), colour(ground)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (word, ground)


def test_nothing_is_cut_off_on_paper(page: Path, chromium: browser.Browser):
    chromium.open(page, width=720)
    chromium.send("Emulation.setEmulatedMedia", media="print")
    wide = (
        "[...document.querySelectorAll('canvas, table, .bars, svg.chart, .cards')]"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 60))"
    )
    try:
        assert chromium.evaluate(wide) == []
        assert chromium.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    finally:
        chromium.send("Emulation.setEmulatedMedia", media="")


def test_tables_sort_and_the_theme_turns(page: Path, chromium: browser.Browser):
    chromium.open(page)
    first = "document.querySelector('#t-critical-path tbody tr').cells[0].textContent"
    before = chromium.evaluate(first)
    chromium.click("#t-critical-path th:nth-child(4) button")
    assert chromium.evaluate("document.querySelector('#t-critical-path th:nth-child(4)').ariaSort") == "descending"
    assert chromium.evaluate(first) == before
    chromium.click("#t-critical-path th:nth-child(4) button")
    assert chromium.evaluate(first) != before
    chromium.click("#theme")
    assert chromium.evaluate("document.documentElement.dataset.theme") == "dark"
    chromium.click("#theme")
    assert chromium.evaluate("document.documentElement.dataset.theme") == "light"


def test_it_prints(page: Path, chromium: browser.Browser):
    chromium.open(page, theme="dark")
    paper = chromium.pdf()
    assert paper.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 12


def test_two_runs_are_held_against_each_other(page: Path, chromium: browser.Browser, tmp_path: Path):
    folder, times, out = page.parent, tmp_path / "slow.parquet", tmp_path / "compare.html"
    assert main(["simulate", str(folder), "--system", "dgx-h100", "--slow-rank", "3=1.5", "--timing", str(times)]) == 0
    assert main(["report", str(folder), str(folder), "--system", "dgx-h100", "-o", str(out)]) == 0
    parser = checked(out.read_text())
    assert {"breakdown", "timeline", "critical-path", "compare"} <= set(parser.ids)
    chromium.problems.clear()
    chromium.open(out)
    assert chromium.problems == []
    assert chromium.evaluate("document.querySelector('.timeline').timeline.rows.length") == 2 * 8 * 3
    assert main(["report", *[str(folder)] * 3, "-o", str(tmp_path / "three.html")]) == 2


def test_a_recording_is_held_against_its_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    job = training_step()
    measured = replace(simulate(job, system(8)).timing, origin=Origin.MEASURED)
    (tmp_path / "run").mkdir()
    columns.write_job(replace(job, timing=measured), tmp_path / "run")
    out = tmp_path / "compare.html"
    run = str(tmp_path / "run")
    assert main(["report", run, run, "--system", "dgx-h100", "-o", str(out)]) == 0
    assert capsys.readouterr().err.splitlines()[0].startswith("Simulated takes ")
    assert "<h1>run: measured and simulated</h1>" in out.read_text()


def test_findings_are_in_order_of_what_they_cost(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder, times, out = page.parent, tmp_path / "slow.parquet", tmp_path / "slow.html"
    assert main(["simulate", str(folder), "--system", "dgx-h100", "--slow-rank", "3=1.5", "--timing", str(times)]) == 0
    capsys.readouterr()
    assert main(["report", str(folder), "--timing", str(times), "-o", str(out)]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("▲")]
    assert re.match(r"▲ \d\d% of the devices' time goes to communication that no compute hides\. \[", told[0])
    assert told[1].startswith("▲ Rank 3 takes 50% longer than its peers, during the whole run. [")
    shown = re.sub(r"</?data[^>]*>", "", out.read_text())
    for line in told:
        what, cost = line[2:].removesuffix("]").split(" [")
        assert what.replace("'", "&#x27;") in shown
        assert f'<span class="cost">{cost}</span>' in shown


def test_the_cards_say_what_the_breakdown_says():
    run = simulate(training_step(), system(8))
    cards = {c.label: c.value for c in report(run).cards}
    rows = breakdown(run).to_pylist()
    share = sum(r["compute_ns"] for r in rows) / sum(r["span_ns"] for r in rows)
    assert cards["Computing"] == words.percent(share)
    assert cards["Time"] == words.time(run.makespan_ns)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aten::mm", "aten::mm"),
        ("nvjet_sm90_tst_192x192", "nvjet_sm90_tst_192x192"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("execute_context_1(888_78)_generation_0(0)", "execute_context_1(888_78)_generation_0(0)"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllGather_RING_LL"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*)", "cunn_SoftMaxForward"),
        (
            "void at::native::elementwise_kernel<4, at::native::AUnaryFunctor<long, at::native::MulFunctor>>()",
            "elementwise_kernel [MulFunctor]",
        ),
        ("std::enable_if<(8)>(0), void>::type vllm::fused_add<c10::BFloat16, 8>(int)", "fused_add"),
    ],
)
def test_kernels_are_called_by_their_own_names(name: str, said: str):
    assert words.kernel(name) == said


def test_the_order_of_sections_changes_no_finding(monkeypatch: pytest.MonkeyPatch):
    """Ranks that a finding is about are drawn, and told of once, whichever section is asked first."""
    run = simulate(straggling_job(), system(32), slow_ranks={19: 2.0})
    pages = []
    for order in (1, -1):
        monkeypatch.setattr(compose, "_TELL", compose._TELL[::order])
        pages.append(report(run))
    a, b = pages
    assert sorted(a.told, key=repr) == sorted(b.told, key=repr)
    assert a.sections == b.sections
    assert [t.section for t in a.told if t.what.startswith("Rank 19")] == ["stragglers"]  # and not as one that computes
    assert 19 in Subject(run, "r").drawn()


def straggling_job() -> Job:
    """More ranks than a timeline draws, each with the same kernels and a sum over all."""
    builders = []
    for _ in range(32):
        b = TraceBuilder()
        for step in range(4):
            for k in range(8):
                b.add(Kind.COMP, f"gemm{k}", cpu=0, stream=7, duration_ns=100_003, step=step)
            b.add(Kind.COLL, "sum", cpu=0, stream=7, collective=Collective.ALL_REDUCE, in_bytes=64, step=step)
        builders.append(b)
    return job_of("straggling", builders)


def test_notes_that_differ_in_figures_only_are_said_once():
    notes = [Note(0, "3 of 9 launches were dropped"), Note(1, "5 of 8 launches were dropped"), Note(1, "other")]
    assert said_once(notes) == ["3 of 9 launches were dropped (rank 0; the same on 1 other)", "other"]


def cold_start(launch_ns: int) -> Page:
    """A kernel of 100 µs whose launch takes so long; then an operator of 1 ms and a second kernel."""
    b = TraceBuilder()
    first = b.add(Kind.COMP, "cudaLaunchKernel", cpu=1, thread=1, duration_ns=launch_ns)
    kernel = b.add(Kind.COMP, "gemm", cpu=0, stream=7, data=[first], duration_ns=100_000)
    op = b.add(Kind.COMP, "aten::relu", cpu=1, thread=1, data=[first], duration_ns=1_000_000)
    b.add(Kind.COMP, "gemm", cpu=0, stream=7, data=[op, kernel], duration_ns=100_000)
    job = job_of("cold", [b])
    return report(simulate(job, system(1)))


def test_first_use_of_a_device_is_told_apart_from_slow_hosts():
    cold, warm = ([t.what for t in cold_start(ns).told] for ns in (9_000_000, 9_000))
    assert "89% of the run is first use of the device, not work." in cold
    assert not any("first use" in what for what in warm)
    assert any("idle" in what for what in warm)


def on_host(first: str, ns: int) -> list[str]:
    """What is told of a run whose host does this, then launches a kernel of 1 ms."""
    b = TraceBuilder()
    before = b.add(Kind.COMP, first, cpu=1, thread=1, duration_ns=ns)
    launch = b.add(Kind.COMP, "cudaLaunchKernel", cpu=1, thread=1, data=[before], duration_ns=5_000)
    b.add(Kind.COMP, "gemm", cpu=0, stream=7, data=[launch], duration_ns=1_000_000)
    job = job_of("one", [b])
    return [t.what for t in report(simulate(job, system(1))).told]


def test_waiting_for_batches_and_for_one_call_is_told():
    loads = on_host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 2_000_000)
    assert loads[0] == "The run waits for its data loader 67% of the time."
    assert "hipMemcpyWithStream takes 67% of the run in one piece." in on_host("hipMemcpyWithStream", 2_000_000)
    early = on_host("aten::empty", 2_000_000)
    assert "The first 67% of the run pass before the device has work." in early


def test_messages_are_listed_by_pair():
    send, receive = TraceBuilder(), TraceBuilder()
    for _ in range(3):
        send.add(Kind.SEND, "to", cpu=0, dst=1, tag=0, in_bytes=1000)
        receive.add(Kind.RECV, "from", cpu=0, src=0, tag=0, in_bytes=1000)
    job = job_of("pair", [send, receive])
    html = render(report(simulate(job, system(2))))
    table = html[html.index('id="t-messages"') :].split("</table>")[0]
    assert re.findall(r'data-v="([^"]*)"', table)[:4] == ["0", "1", "3", "3000"]


def test_one_member_of_a_collective_cannot_be_seen_to_wait():
    b = TraceBuilder()
    b.add(Kind.COLL, "sum", cpu=0, stream=7, collective=Collective.ALL_REDUCE, in_bytes=1 << 20, group="dp")
    job = job_of("one", [b], {"dp": [0, 1]})
    start, end = np.array([0], np.int64), np.array([1000], np.int64)
    timing = Timing(
        origin=Origin.MEASURED, start_ns=(start,), end_ns=(end,), block_of=np.zeros(1, np.int32),
        clock_offset_ns=np.zeros(1, np.int64),
    )  # fmt: skip
    html = render(report(Run(job, timing)))
    section = html[html.index('<section id="collectives">') :].split("</section>")[0]
    assert "waiting for the last member" not in section
    assert "total waiting" not in section


def test_a_run_in_which_nothing_stands_out_says_so():
    b = TraceBuilder()
    for number in range(30):
        b.add(Kind.COMP, f"gemm{number}", cpu=0, stream=7, duration_ns=100_000)
    job = job_of("even", [b])
    page = report(simulate(job, system(1)))
    assert [t.what for t in page.told] == ["No findings."]


@pytest.mark.parametrize(
    ("share", "said"),
    [(0, "0%"), (0.0004, "<0.1%"), (0.0123, "1.2%"), (0.5, "50%"), (0.99951, ">99.9%"), (0.995, "99.5%"), (1, "100%")],
)
def test_a_share_is_never_rounded_to_nothing_or_all(share: float, said: str):
    assert words.percent(share) == said


def test_hosts_can_be_hidden(tmp_path: Path, chromium: browser.Browser):
    builders = []
    for _ in range(3):
        b = TraceBuilder()
        op = b.add(Kind.COMP, "op", cpu=1, thread=1, duration_ns=50)
        b.add(Kind.COMP, "gemm", cpu=0, stream=7, data=[op], duration_ns=100)
        builders.append(b)
    job = job_of("three", builders)
    out = tmp_path / "hosts.html"
    out.write_text(render(report(simulate(job, system(4)))))
    chromium.open(out)
    shown = "document.querySelector('.timeline').timeline.rows.filter(r => !r.hidden).length"
    assert chromium.evaluate(shown) == 3
    chromium.click("[data-do=host]")
    assert chromium.evaluate(shown) == 6
