"""Rounds of faults: ``python -m tests.chaos --rounds 30 --seed 1``, or ``make chaos ROUNDS=30 SEED=1``.

Prints what was played and how long servers and clients took to recover; with ``--json`` as JSON Lines. Ends with 1,
after the round's plan and the command that plays it again, if anything was seen that must not be.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from tests.certificates import authority
from tests.chaos.crew import Crew
from tests.chaos.findings import Broken, Finding
from tests.chaos.invariants import Place, lanes_here
from tests.chaos.plan import Lane, Round, draw
from tests.chaos.scenarios import Times, play

import farpool

LOG_TAIL = 4000
PERCENTILES = (50, 90, 99, 100)


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Play rounds of faults.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="play this round of the seed alone, so many times")
    here = sorted({lane.transport for lane in lanes_here()})
    parser.add_argument("--transport", choices=here, help="hit clients of this transport alone")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no round after that")
    parser.add_argument("--json", action="store_true", help="print rows of JSON")
    return parser.parse_args()


class Run:
    """The rounds of one command, and what they have shown."""

    def __init__(self, asked: argparse.Namespace, undo: ExitStack) -> None:
        self._asked = asked
        self._undo = undo
        self._lanes: list[Lane] = lanes_here()
        self._places: dict[str, Place] = {}
        folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
        tempfile.tempdir = folder  # for what others make and leave to us
        os.environ["FARPOOL_TLS_CA"] = str(authority().ca)
        self._crew = undo.enter_context(Crew(Path(folder)))
        self._times = Times()
        self._played: Counter[str] = Counter()
        self._turns = 0
        self._faults: Counter[str] = Counter()
        self._found = dict.fromkeys(Finding, 0)

    def play(self) -> bool:
        """Play all rounds; return whether everything held."""
        begun = time.monotonic()
        for number in range(self._asked.rounds):
            if time.monotonic() - begun > self._asked.seconds:
                break
            plan = self._draw(number)
            at = f"{time.monotonic() - begun:5.1f} s"
            self._say(f"{at}, round {plan.number}: {plan.scenario}; {plan.lane}; victim {plan.victim}")
            try:
                play(plan, self._place(plan.lane.place), self._crew, self._times)
            except (Broken, farpool.FarpoolError) as error:
                self._fail(plan, error)
                break
            self._played[str(plan.scenario)] += 1
            self._played[str(plan.lane)] += 1
            for done in self._crew.told.done.values():
                self._turns += done["turns"]
                self._faults.update(done["faults"])
        self._report(time.monotonic() - begun)
        return not any(self._found.values())

    def _draw(self, number: int) -> Round:
        asked = self._asked
        return draw(asked.seed, number if asked.only is None else asked.only, self._lanes, asked.transport)

    def _place(self, name: str) -> Place:
        if name not in self._places:
            self._places[name] = Place(name, self._lanes, self._undo)
        return self._places[name]

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr if self._asked.json else sys.stdout, flush=True)

    def _fail(self, plan: Round, error: Exception) -> None:
        self._found[error.kind if isinstance(error, Broken) else Finding.ERROR] += 1
        if plan.lane.place in self._places:
            print(self._places[plan.lane.place].server.log()[-LOG_TAIL:], file=sys.stderr)
        print(f"FAILED: {type(error).__name__}: {error}\nround: {plan}", file=sys.stderr)
        over = f" --transport {self._asked.transport}" if self._asked.transport else ""
        print(
            f"again: python -m tests.chaos --seed {plan.seed} --only {plan.number} --rounds 20{over}", file=sys.stderr
        )

    def _report(self, seconds: float) -> None:
        rounds = {"rounds": self._crew_rounds(), "turns": self._turns, "seconds": round(seconds, 1)}
        found = {str(kind): count for kind, count in self._found.items()}
        summary = {
            "seed": self._asked.seed,
            **rounds,
            **found,
            "survived": dict(self._faults),
            "played": dict(self._played),
        }
        if self._asked.json:
            print(json.dumps(summary))
            for row in self._rows():
                print(json.dumps(row))
            return
        print(", ".join(f"{name} {value}" for name, value in summary.items()))
        for row in self._rows():
            line = "{measure} after {after}, {count} times: p50 {p50} ms, p90 {p90}, p99 {p99}, most {p100}"
            print(line.format(**row))

    def _crew_rounds(self) -> int:
        return sum(count for name, count in self._played.items() if name in set(map(str, self._lanes)))

    def _rows(self) -> list[dict[str, Any]]:
        """Return the distribution of each time, in milliseconds."""
        rows: list[dict[str, Any]] = []
        for measure, taken in (("reclaim", self._times.reclaim), ("reattach", self._times.reattach)):
            for after, seconds in sorted(taken.items()):
                at = np.percentile(np.array(seconds) * 1e3, PERCENTILES)
                shown = {f"p{percent}": round(float(ms), 1) for percent, ms in zip(PERCENTILES, at, strict=True)}
                rows.append({"measure": measure, "after": after, "count": len(seconds), **shown})
        return rows


def main() -> int:
    """Play, and return the exit code."""
    with ExitStack() as undo:
        return 0 if Run(options(), undo).play() else 1


if __name__ == "__main__":
    sys.exit(main())
