"""What a flood costs another tenant is measured for each kind of it."""

from __future__ import annotations

import pytest

from farpool.perf.fairness import FLOODS, measure


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_has_a_row_for_each_operation(kind: str) -> None:
    rows = list(measure(seconds=0.1, rounds=1, processes=1, floods=[kind]))
    assert [(row["op"], row["flood"]) for row in rows] == [("allocate+free", kind), ("read_into 4096", kind)]
    assert all(row["samples"] > 0 and row["ratio"] > 0 for row in rows)
