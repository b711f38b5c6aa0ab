"""What Farpool may cost at most on top of a limit, and whether it does: ``farpool perf limits``.

A bound is kept if the median over the rounds keeps it. In each round the limit and ours run right after one another, so
that what the machine does beside them touches both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final, Literal

from farpool.perf.rounds import Contender, Speed, pairs

__all__ = ["ADDED", "ROUNDS", "TIMES", "Bound", "Outcome", "added_ns", "added_us", "judge", "of_rate", "times"]

ROUNDS: Final = 7

TIMES: Final = "times"
"""Our time over the limit's, at most the bound."""
ADDED: Final = "added"
"""What ours takes longer than the limit, in the unit of the line, at most the bound."""
RATE: Final = "rate"
"""Our throughput over the limit's, at least the bound."""

Kind = Literal["times", "added", "rate"]


@dataclass(frozen=True, slots=True)
class Bound:
    """One line of the table: what is measured, beside what, and what it may cost."""

    what: str
    ours: Contender
    limit: Contender
    limit_name: str
    kind: Kind
    bound: float
    number: Callable[[Speed], float]
    """Which number of a round is compared."""
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out, as programs read it."""

    what: str
    ratio: float
    """Median over the rounds of ours over the limit's: of times (lower is better), or with kind ``rate`` of
    throughputs (higher is better)."""
    spread: float
    """The largest of the rounds' ratios less the smallest, over the median."""
    kind: Kind
    """What ``bound`` is of: ``times`` at most and ``rate`` at least of the ratio, ``added`` at most of ours less the
    limit's, in ``unit``."""
    bound: float
    met: bool
    limit: float
    ours: float
    unit: str
    limit_name: str
    emulated: bool = False

    def as_record(self) -> dict[str, Any]:
        """Return the fields as JSON takes them, floats to four digits."""
        return {
            name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in asdict(self).items()
        }


def times(what: str, ours: Contender, limit: Contender, limit_name: str, bound: float, *, p99: bool = False) -> Bound:
    """Return a bound of our time of one call, the median one or the p99, over the limit's."""
    number = _p99_us if p99 else _p50_us
    return Bound(f"{what}, p99" if p99 else what, ours, limit, limit_name, TIMES, bound, number, "us")


def added_ns(what: str, ours: Contender, limit: Contender, limit_name: str, bound: float) -> Bound:
    """Return a bound of the nanoseconds that our call takes longer than the limit."""
    return Bound(what, ours, limit, limit_name, ADDED, bound, _p50_ns, "ns")


def added_us(what: str, ours: Contender, limit: Contender, limit_name: str, bound: float) -> Bound:
    """Return a bound of the microseconds that our call takes longer than the limit."""
    return Bound(what, ours, limit, limit_name, ADDED, bound, _p50_us, "us")


def of_rate(what: str, ours: Contender, limit: Contender, limit_name: str, bound: float, call_nbytes: int) -> Bound:
    """Return a bound of our GB/s over the limit's; both move *call_nbytes* a call."""

    def gb_s(speed: Speed) -> float:
        return speed.calls_s * call_nbytes / 1e9

    return Bound(what, ours, limit, limit_name, RATE, bound, gb_s, "GB/s")


def judge(bound: Bound, seconds: float, *, emulated: bool = False, rounds: int = ROUNDS) -> Outcome:
    """Measure both sides for *seconds* each, in turns, and compare."""
    found = pairs(bound.ours, bound.limit, seconds, rounds)
    return outcome(bound, [(bound.number(ours), bound.number(limit)) for ours, limit in found], emulated=emulated)


def outcome(bound: Bound, numbers: Sequence[tuple[float, float]], *, emulated: bool = False) -> Outcome:
    """Return what rounds of (ours, the limit's) come to."""
    ratios = [ours / limit for ours, limit in numbers]
    ratio = median(ratios)
    compared = median(ours - limit for ours, limit in numbers) if bound.kind == ADDED else ratio
    return Outcome(
        what=bound.what,
        ratio=ratio,
        spread=(max(ratios) - min(ratios)) / ratio,
        kind=bound.kind,
        bound=bound.bound,
        met=compared >= bound.bound if bound.kind == RATE else compared <= bound.bound,
        limit=median(limit for _, limit in numbers),
        ours=median(ours for ours, _ in numbers),
        unit=bound.unit,
        limit_name=bound.limit_name,
        emulated=emulated,
    )


def _p50_us(speed: Speed) -> float:
    return speed.p50_us


def _p99_us(speed: Speed) -> float:
    return speed.p99_us


def _p50_ns(speed: Speed) -> float:
    return speed.p50_us * 1e3
