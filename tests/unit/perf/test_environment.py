"""The fingerprint of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import farpool
from farpool.perf import environment
from farpool.perf.environment import fingerprint


def test_a_fingerprint_names_machine_load_and_versions() -> None:
    facts = fingerprint()
    record = json.loads(json.dumps(facts.as_record(), allow_nan=False))
    assert set(record) == {
        "cpu",
        "cores",
        "memory_gib",
        "kernel",
        "governor",
        "virtual",
        "load",
        "python",
        "numpy",
        "farpool",
    }
    assert facts.cores >= 1
    assert facts.memory_gib > 0
    assert farpool.__version__ in str(facts)


def test_unreadable_facts_are_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "GOVERNOR", tmp_path / "none")
    monkeypatch.setattr(environment, "CPU_FACTS", tmp_path / "none")
    facts = fingerprint()
    assert facts.governor == "unknown"
    assert facts.cpu
    assert not facts.virtual
