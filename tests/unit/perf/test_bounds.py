"""Bounds: what is compared with what, and when a bound is kept."""

from __future__ import annotations

import json
from array import array

import pytest

from farpool.cli.main import main
from farpool.perf.bounds import ROUNDS, Bound, added_ns, judge, of_rate, outcome, times
from farpool.perf.rounds import Contender


def taking(us: float, made: list[str], name: str) -> Contender:
    """Return a contender whose clock is made up: every call takes as long."""

    def contend(calls: int, samples: array[int], seconds: float) -> int:
        made.append(name)
        for index in range(10):
            samples[index] = round(us * 1e3 * calls)
        return 10

    return contend


def bound_of(kind: str, ours_us: float, limit_us: float, made: list[str] | None = None) -> Bound:
    made = [] if made is None else made
    sides = taking(ours_us, made, "ours"), taking(limit_us, made, "limit")
    if kind == "times":
        return times("a read", *sides, "raw", 1.1)
    if kind == "rate":
        return of_rate("a read", *sides, "raw", 0.95, 1 << 20)
    return added_ns("a read", *sides, "raw", 60)


@pytest.mark.parametrize(
    ("kind", "ours_us", "limit_us", "ratio", "met"),
    [
        ("times", 10.5, 10, 1.05, True),
        ("times", 12, 10, 1.2, False),
        ("rate", 10.5, 10, 1 / 1.05, True),
        ("rate", 12, 10, 1 / 1.2, False),
        ("added", 10.05, 10, 1.005, True),
        ("added", 10.07, 10, 1.007, False),
    ],
)
def test_a_bound_is_kept_or_not(kind: str, ours_us: float, limit_us: float, ratio: float, met: bool) -> None:
    found = judge(bound_of(kind, ours_us, limit_us), 0.1)
    assert found.ratio == pytest.approx(ratio, rel=1e-3)
    assert found.met is met
    assert found.spread == 0


def test_ours_and_the_limit_take_turns() -> None:
    made: list[str] = []
    judge(bound_of("times", 20, 10, made), 0.1)
    assert made == ["limit", "ours"] * (ROUNDS + 1)


def test_one_round_that_something_disturbed_decides_nothing() -> None:
    found = outcome(bound_of("times", 1, 1), [(10, 10), (11, 10), (90, 10)])
    assert (found.ratio, found.met, found.ours) == (1.1, True, 11)
    assert found.spread == pytest.approx((9 - 1) / 1.1)


def test_every_line_of_the_command_has_its_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "limits", "--seconds", "0.01", "--json"]) == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len({record["what"] for record in records}) == len(records) > 20
    for record in records:
        assert record["ratio"] > 0
        assert record["ours"] > 0
        assert record["limit"] > 0
        assert {"what", "ratio", "spread", "bound", "met", "limit", "ours", "unit"} <= set(record)


def test_the_table_fits_80_columns(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["perf", "limits", "--seconds", "0.01"]) == 0
    out, _ = capfd.readouterr()
    assert "…" not in out
    assert " bounds are kept" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_measurement_takes_some_time(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "limits", "--seconds", "61"]) != 0
    assert "at most 60 s" in capfd.readouterr().err
