"""Lines of values, worked by hand: pieces with their columns, figures, dataclasses, and every error at its column."""

from dataclasses import dataclass, fields
from enum import StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure, key_of, plain
from etude.base.grammar import LinePiece, fill, items, line, nearest, pairs, terms

EXAMPLE = "auto:p=0.5,every=11min"


class Way(StrEnum):
    FAST = "fast"
    SAFE = "safe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    p: float = figure("fraction", "probability")
    every_ns: int = figure("time", "interval")
    tries: int = figure("count", "attempts", 0, zero=True)
    rate_bytes_per_s: int = figure("bandwidth", "rate", 1)
    way: Way = figure("choice", "way", Way.FAST, of=Way)
    name: str = figure("text", "name", "")

    def __post_init__(self) -> None:
        if self.tries > 9:
            raise ClusterError("more than nine attempts", hint="tries=9")


def values(cls: type[Stage], text: str, where: str) -> Stage:
    whole = line(text, where)
    return fill(cls, whole.split(",") if text else (), whole)


def placed(*pieces: LinePiece | None) -> list[tuple[str, int]]:
    return [(one.text, one.column) for one in pieces if one is not None]


# -- pieces ------------------------------------------------------------------------------------------------------------


def test_every_piece_knows_its_column():
    first, second = terms("auto:p=0.5, every=11 min ;manual", "--retry")
    assert placed(first.name, *first.parts) == [("auto", 1), ("p=0.5", 6), ("every=11 min", 13)]
    assert placed(second.name, *second.parts) == [("manual", 27)]
    assert placed(*pairs(first.parts).values()) == [("0.5", 8), ("11 min", 19)]


@pytest.mark.parametrize(
    ("text", "mark", "found"),
    [
        ("0.8@24h", "@", [("0.8", 1), ("24h", 5)]),
        ("0.8", "@", [("0.8", 1)]),
        (" rank7 @ 60s", "@", [("rank7", 2), ("60s", 10)]),
        ("4..32", "..", [("4", 1), ("32", 4)]),
        ("24..", "..", [("24", 1), ("", 5)]),
        ("7..10Gb/s", "..", [("7", 1), ("10Gb/s", 4)]),
    ],
)
def test_a_piece_is_cut_at_a_mark(text, mark, found):
    assert placed(*line(text, "").cut(mark)) == found


def test_a_piece_is_cut_at_the_last_mark():
    assert placed(*line("a:b:ttft=1s", "").cut(":", last=True)) == [("a:b", 1), ("ttft=1s", 5)]


def test_blanks_stand_for_commas_between_words():
    found = items(line("0.3 room=4GB,link=25GB/s ,  last", "").words())
    assert placed(*found.bare) == [("0.3", 1), ("last", 29)]
    assert placed(*found.values.values()) == [("4GB", 10), ("25GB/s", 19)]


def test_words_of_a_shell_keep_their_columns():
    words = line("""speed  name="a b" by=2""", "").shell_words()
    assert placed(*words) == [("speed", 1), ("name=a b", 8), ("by=2", 19)]


def test_figures():
    assert line("1.5ms", "").time_ns() == 1_500_000
    assert line("64MiB", "").size_bytes() == 1 << 26
    assert line("400Gb/s", "").bytes_per_s() == 50 * 10**9
    assert line("1.2k", "").count() == 1200
    assert line("0", "").count(zero=True) == 0
    assert line("0.25", "").fraction() == 0.25
    assert line("1e3", "").number() == 1000.0
    assert line("fast", "").choice(("fast", "safe")) == "fast"


# -- dataclasses -------------------------------------------------------------------------------------------------------


def test_values_become_a_dataclass_of_figures():
    assert values(Stage, "p=0.5,every=11min,way=safe", "--retry") == Stage(
        p=0.5, every_ns=660_000_000_000, way=Way.SAFE
    )
    assert values(Stage, "p=0.5,every_ns=1ns", "--retry").every_ns == 1


def test_terms_become_dataclasses_and_a_line_wins_over_what_is_given():
    (one,) = terms("auto:p=0.5,every=1s,tries=2", "--retry")
    found = one.read(Stage, {"name": one.name.text, "tries": 7})
    assert (found.name, found.tries) == ("auto", 2)


TEXTS = st.text(st.characters(exclude_characters=",;:=", exclude_categories=("Z", "C")), min_size=1, max_size=6)


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            Stage,
            p=st.floats(0.001, 1.0),
            every_ns=st.integers(1, 10**15),
            tries=st.integers(0, 9),
            rate_bytes_per_s=st.integers(1, 10**15),
            way=st.sampled_from(Way),
            name=TEXTS,
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([",", ", ", " ,"]),
    st.sampled_from([";", " ; "]),
)
def test_what_is_written_is_read(stages, comma, semicolon):
    written = [comma.join(f"{key}={value}" for key, value in plain(one).items()) for one in stages]
    text = semicolon.join(f"stage{k}:{one}" for k, one in enumerate(written))
    found = terms(text, "--retry")
    assert [one.name.text for one in found] == [f"stage{k}" for k in range(len(stages))]
    assert [one.read(Stage) for one in found] == stages
    for one in found:
        for piece in (one.name, *one.parts, *pairs(one.parts).values()):
            assert text[piece.column - 1 :].startswith(piece.text)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "column", "problem", "hint"),
    [
        ("auto:p=x,every=1s", 8, "`p=x`: `x` is not a fraction", f"for example {EXAMPLE}"),
        ("auto:p=2,every=1s", 8, "`p=2`: `2` is more than 1", "a fraction is between 0 and 1"),
        ("auto:p=1,every=5", 16, "`every=5`: `5` has no unit", "write for example 500ns, 1.5ms or 2s"),
        ("auto:p=1,every=5m", 16, "`every=5m`: unknown unit `m` in `5m`", "write for example 500ns, 1.5ms or 2s"),
        ("auto:p=1,every=0s", 16, "`every=0s`: `0s` is not positive", "write for example 500ns"),
        ("auto:p=1,evry=1s", 10, "unknown key `evry`", "did you mean `every`? known: p, every, tries, rate, way, name"),
        ("auto:p=1,p=1", 10, "`p` is given twice", f"for example {EXAMPLE}"),
        ("auto:p=1,every", 10, "`every` has no value", f"for example {EXAMPLE}"),
        ("auto:p=1,every=", 16, "`every` has no value", f"for example {EXAMPLE}"),
        ("auto:p=1,=1s", 10, "`=1s` has no key", f"for example {EXAMPLE}"),
        ("auto:p=1,", 10, "a value is missing behind `,`", f"for example {EXAMPLE}"),
        ("auto:p=1,,every=1s", 10, "a value is missing behind `,`", f"for example {EXAMPLE}"),
        ("auto:,p=1", 6, "a value is missing before `,`", f"for example {EXAMPLE}"),
        ("auto:", 6, "a value is missing behind `:`", f"for example {EXAMPLE}"),
        (":p=1", 1, "a name is missing", f"for example {EXAMPLE}"),
        ("auto:p=1,every=1s;", 19, "a value is missing behind `;`", f"for example {EXAMPLE}"),
        ("auto:p=1,every=1s;b:p=1", 19, "key `every` is missing", f"for example {EXAMPLE}"),
        ("auto:p=1,every=1s,way=fst", 23, "`way=fst`: unknown value `fst`", "known: fast, safe"),
        ("auto:p=1,every=1s,tries=10", 1, "more than nine attempts", "tries=9"),
        ("auto:p=1,every=1s,every_ns=1s", 1, "`every` is given twice, also as `every_ns`", "leave one of them out"),
    ],
)
def test_every_error_has_its_column(text, column, problem, hint):
    with pytest.raises(UsageError) as raised:
        [one.read(Stage) for one in terms(text, "--retry", EXAMPLE)]
    assert str(raised.value).startswith(f"--retry: column {column}: ")
    assert raised.value.problem.removeprefix(f"`{text}`: ") == problem
    assert raised.value.hint == hint


@pytest.mark.parametrize(
    ("read", "column", "problem"),
    [
        (lambda: line("0.8@24x", "").cut("@")[1].time_ns(), 5, "`0.8@24x`: unknown unit `x` in `24x`"),
        (lambda: line("0.8@", "").cut("@")[1].time_ns(), 5, "`0.8@`: a value is missing"),
        (lambda: line("4..x", "").cut("..")[1].count(), 4, "`4..x`: `x` is not a count"),
        (lambda: line("4", "").count(most=3), 1, "`4` is more than 3"),
        (lambda: line("4", "").number(0, 1), 1, "`4` is not a number from 0 to 1"),
        (lambda: line("4", "").number(5), 1, "`4` is not a number of at least 5"),
        (lambda: line("-4", "").number(), 1, "`-4` is negative"),
        (lambda: line("nan", "").number(), 1, "`nan` is not a number"),
        (lambda: line("  fst", "").choice(("fast",), "way"), 3, "unknown way `fst`"),
        (lambda: line("", "").choice(("fast",), "way"), 1, "a way is missing"),
        (lambda: line("", "").split(","), 1, "a value is missing"),
        (lambda: line(", a", "").words(), 1, "a value is missing before `,`"),
        (lambda: line("""a "b c""", "").shell_words(), 3, "a quotation mark is not closed"),
    ],
)
def test_figures_have_their_columns_too(read, column, problem):
    with pytest.raises(UsageError) as raised:
        read()
    assert raised.value.where == f"column {column}"
    assert raised.value.problem.removeprefix('`a "b c`: ') == problem


def test_a_line_without_values_has_defaults_only():
    with pytest.raises(UsageError, match="--retry: column 1: key `p` is missing"):
        values(Stage, "", "--retry")


def test_a_reader_of_a_piece_counts_columns_from_its_begin():
    (value,) = pairs(line("name=a,b,c", "--edit").words()[:1]).values()
    with pytest.raises(UsageError) as raised:
        line("a,,c", "").split(",")
    assert str(value.said(raised.value)) == "--edit: column 8: `name=a`: a value is missing behind `,`"


def test_the_class_of_errors_can_be_another():
    with pytest.raises(ClusterError, match="train: column 6: `lora:x`: `x` is not a count"):
        line("lora:x", "train", error=ClusterError).cut(":")[1].count()


def test_the_nearest_word_comes_first():
    assert nearest("evry", ("p", "every")) == "did you mean `every`? known: p, every"
    assert nearest("q", ("p", "every")) == "known: p, every"


def test_all_keys_of_a_dataclass_can_be_filled():
    assert [key_of(f) for f in fields(Stage)] == ["p", "every", "tries", "rate", "way", "name"]
    at = line("all", "--retry")
    found = fill(Stage, line("p=1,every=1s,tries=1,rate=1GB/s,way=safe,name=x", "").split(","), at)
    assert found == Stage(p=1.0, every_ns=10**9, tries=1, rate_bytes_per_s=10**9, way=Way.SAFE, name="x")
