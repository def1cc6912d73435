"""Numbers of a page say what they are, and are that when they are worked out again."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest

import etude
from asked_pages import Again, counted, differences, outcome_again, read, twice_named
from etude.analyse.expressions import evaluate
from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.tell.report.compose import report
from etude.tell.report.subject import Subject
from etude.tell.view.page import Page, Told, render
from etude.tell.view.sentences import Asked, Sentence, sentence, series
from recorded import event

ROWS = pa.table({"rank": [0, 0, 1, 1], "ns": [10, 30, 5, None], "name": ["a", "b", "a", "c"]})


def value(text: str) -> object:
    return evaluate(text, {"rows": ROWS}.__getitem__)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("sum(rows.ns)", 45),
        ("mean(rows.ns)", 15.0),
        ("median(rows[rows.rank == 0].ns)", 20.0),
        ("max(rows.ns) - min(rows.ns)", 25),
        ("quantile(rows.ns, 0.5)", 10.0),
        ("quantile(rows.ns, 0.75)", 20.0),
        ("count(rows[(rows.rank == 1) & (rows.name == 'a')])", 1),
        ("count(rows[(rows.name == 'c') | (rows.ns > 9)])", 3),
        ("rows[1].name", "b"),
        ("rows[-1].ns", None),
        ("rows[rows.rank == 1][0].ns / 2", 2.5),
        ("least(sum(rows.ns), 40)", 40),
    ],
)
def test_an_expression_by_hand(text: str, wanted: object) -> None:
    assert value(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').getcwd()",
        "rows.ns.__class__",
        "(lambda: 1)()",
        "[1 for _ in rows]",
        "open('x')",
        "rows.ns",
        "rows[9].ns",
        "nothing.ns",
        "rows.no",
        "1 / 0",
        "sum(",
        "1+" * 3000 + "1",
        "rows[0].name.upper()",
        "9 ** 9",
    ],
)
def test_what_is_no_expression_over_tables_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        value(text)


def test_a_sentence_keeps_what_its_numbers_are() -> None:
    half = Sentence.of(Asked("50%", "a / b", "percent", 0.5))
    text = sentence("of {part}, {named}. ", part=half, named=series([sentence("x"), half, sentence("y")]))
    assert text == "of 50%, x, 50% and y."
    assert [one.query for one in text.asked] == ["a / b", "a / b"]
    assert sentence("{a} {b}", a=sentence(""), b="so it is") == "so it is"
    page = render(Page(title="t", subtitle="", verdict=text, told=(Told("info", text),)))
    assert len(read(page).numbers) == 4


def test_a_number_that_does_not_say_what_it_is_is_seen() -> None:
    page = render(Page(title="t", subtitle="", verdict="It takes 12 ms.", told=(Told("info", "On an H100."),)))
    assert list(differences(page, Again({}.__getitem__, lambda: 0))) == ["does not say what it is: It takes 12 ms."]


def test_a_number_that_is_something_else_is_seen() -> None:
    wrong = sentence("It takes {time}.", time=Sentence.of(Asked("12 ms", "run[0].span_ns", "time", 12_000_000)))
    page = render(Page(title="t", subtitle="", verdict=wrong))
    again = Again(lambda name: pa.table({"span_ns": [13_000_000]}), lambda: 0)
    assert list(differences(page, again)) == ["12 ms (12000000) is 13 ms (13000000): run[0].span_ns"]


RECORDINGS = ("h200/ddp_rank0_kineto", "h200/gpt_train_kineto", "public/mi300_resnet_act_checkpoint.kineto")


@pytest.mark.parametrize("name", RECORDINGS)
def test_all_numbers_of_a_page_are_worked_out_again(name: str, shared: Path) -> None:
    path = shared / f"traces/{name}.json.gz"
    page = render(report(etude.open_run(path)))
    run = etude.open_run(path)
    again = Subject(run, run.job.name)
    assert counted(page) > 500
    assert list(differences(page, Again(again.table, again.gain))) == []
    assert twice_named(page) == []


def test_work_that_is_not_counted_is_said(shared: Path) -> None:
    """Two kernels of 168,446 ns that were launched before the recording began are in no sum of this page."""
    found = report(etude.open_run(shared / "traces/h200/gpt_train_kineto.json.gz"))
    texts = [one.what for one in found.told if "launched before the recording began is not counted" in one.what]
    assert texts == [
        "Work of the device that was launched before the recording began is not counted: 168 µs in 2 pieces."
    ]


def test_one_value_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A kernel of 30 us and one of 10 us, 20 us apart: the device is idle a third of the time."""
    events = [event("kernel", name, at, us, stream=7, device=0) for name, at, us in (("gemm", 0, 30), ("norm", 50, 10))]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert main(["evaluate", str(path), "sum(breakdown.idle_ns) / sum(breakdown.span_ns)"]) == 0
    assert float(capsys.readouterr().out) == pytest.approx(20 / 60)
    assert main(["evaluate", str(path), "kernels[0].name"]) == 0
    assert capsys.readouterr().out.strip() == "gemm"
    assert main(["evaluate", str(path), "sum(nothing.idle_ns)"]) == 2


# -- a served stream ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "out"
    assert main(["serve", "gpt2", "--system", "dgx-h100", "--rate", "5", "--count", "30", "-o", str(folder)]) == 0
    return folder


def test_every_number_of_a_served_stream_is_worked_out_again_from_its_files(served: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(served), "-o", str(page)]) == 0
    text = page.read_text("utf-8")
    assert list(differences(text, outcome_again(served))) == []
    assert twice_named(text) == []
    assert {query for _, _, query, _ in read(text).numbers} >= {"record[0].ttft_s_p99", "count(replicas)"}
    changed = text.replace("record[0].ttft_s_p99", "record[0].ttft_s_p50")
    assert len(list(differences(changed, outcome_again(served)))) == 2  # in the sentence, and on a card


def test_a_number_of_a_served_stream_is_asked_for_by_its_expression(
    served: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(served), "mean(requests.finish_s - requests.arrival_s)", "--json"]) == 0
    record = json.loads((served / "served.json").read_text("utf-8"))
    assert json.loads(capsys.readouterr().out)["value"] == pytest.approx(record["latency_s"]["mean"])
    assert main(["evaluate", str(served), "record[0].finished", "--system", "h200"]) == 2
    assert "--system was given" in capsys.readouterr().err
