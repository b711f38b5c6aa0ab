"""Structured logs on stderr: for people on a terminal, JSON elsewhere. For the server's process alone."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

__all__ = ["configure"]


def configure(level: str, log_format: str) -> None:
    """Set up structlog; may be called again to change the level."""
    for_people = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if for_people
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
