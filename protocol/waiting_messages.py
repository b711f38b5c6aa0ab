"""The messages about words that somebody waits for."""

from __future__ import annotations

from typing import ClassVar

from farpool.protocol.message_base import Done, Reply, Request

__all__ = ["LONGEST_WAIT", "WATCH_SECONDS", "Notify", "Wait", "Watch", "Word"]

LONGEST_WAIT = 1.0
"""Seconds that one ``wait`` takes at most; whoever waits longer asks again."""

WATCH_SECONDS = 2.0
"""How long one ``watch`` holds."""


class Word(Reply, frozen=True, kw_only=True):
    """The word as it is now, whether it has changed or the time was over."""

    value: int


class Wait(Request, frozen=True, kw_only=True):
    """Answer once the aligned word at ``offset`` is not ``expected``, or after ``seconds``."""

    operation: ClassVar[str] = "wait"
    reply: ClassVar[type[Reply]] = Word
    id: int
    generation: int
    offset: int
    expected: int
    seconds: float


class Watch(Request, frozen=True, kw_only=True):
    """I wait for the word at ``offset`` in memory that I map: let others' writes wake me."""

    operation: ClassVar[str] = "watch"
    reply: ClassVar[type[Reply]] = Done
    id: int
    generation: int
    offset: int


class Notify(Request, frozen=True, kw_only=True):
    """Let whoever waits for the word at ``offset`` look at it now."""

    operation: ClassVar[str] = "notify"
    reply: ClassVar[type[Reply]] = Done
    id: int
    generation: int
    offset: int
