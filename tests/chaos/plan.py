"""What a round does, drawn from its seed and number alone, so that any round can be played again by itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import product

__all__ = ["ROLES", "Lane", "Role", "Round", "Scenario", "draw"]


class Scenario(StrEnum):
    """What goes wrong."""

    KILL_CLIENT = "kill a client"
    KILL_COPY = "kill a client in the middle of a large copy"
    PAUSE_CLIENT = "stop a client for a moment"
    SILENCE_OWNER = "stop a slab's owner until another has it"
    SILENCE_COPY = "stop a client in the middle of a large copy until its memory is another's"
    SILENCE_RESTART = "stop a client in the middle of a large copy, and kill the server"
    KILL_SERVER = "kill the server"
    KILL_BOTH = "kill the server and a client"
    PAUSE_SERVER = "stop the server for a moment"
    TAKE_OVER = "let another server take over"


class Role(StrEnum):
    """What a client of a round does, again and again."""

    COMMITTER = "committer"
    """Commits the next version of two slabs together."""
    READER = "reader"
    """Reads both through read-only handles."""
    OWNER = "owner"
    """Takes a slab for itself alone, fills it, and looks whether anything else is in it. There are two."""
    COPIER = "copier"
    """Copies to a large slab of its own session and back."""


ROLES = (Role.COMMITTER, Role.READER, Role.OWNER, Role.OWNER, Role.COPIER)
"""The crew of each round."""

VICTIMS = {
    Scenario.KILL_COPY: ROLES.index(Role.COPIER),
    Scenario.SILENCE_COPY: ROLES.index(Role.COPIER),
    Scenario.SILENCE_RESTART: ROLES.index(Role.COPIER),
    Scenario.SILENCE_OWNER: ROLES.index(Role.OWNER),
}
"""Who is hit where that is no matter of chance."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A way to reach memory: how it is served, and the transport."""

    place: str
    transport: str

    def __str__(self) -> str:
        return f"{self.transport} ({self.place})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: who is hit, how, and when."""

    seed: int
    number: int
    scenario: Scenario
    lane: Lane
    """Where the round takes place, and the victim's transport."""
    transports: tuple[str, ...]
    """The transport of each of the crew."""
    victim: int
    """Index of the client that is hit."""
    after: float
    """Seconds that the whole crew has worked for when it is hit."""
    lasting: float
    """Seconds for which a process is stopped, where nothing else ends that."""
    version_bytes: int
    copy_bytes: int

    def __str__(self) -> str:
        facts = {name: value for name, value in asdict(self).items() if name not in ("scenario", "lane")}
        return f"{self.scenario}; {self.lane}; " + ", ".join(f"{name}={value}" for name, value in facts.items())


def draw(seed: int, number: int, lanes: Sequence[Lane], transport: str | None = None) -> Round:
    """Return round *number* of the run with that *seed*: every scenario over every lane, before one comes again.

    With *transport* victims use that alone.
    """
    every = list(product(Scenario, [lane for lane in lanes if transport in (None, lane.transport)]))
    turn, index = divmod(number, len(every))
    random.Random(f"{seed} {turn}").shuffle(every)
    scenario, lane = every[index]
    chance = random.Random(f"{seed} {number}")
    victim = VICTIMS.get(scenario, chance.randrange(len(ROLES)))
    beside = [each.transport for each in lanes if each.place == lane.place]
    transports = [chance.choice(beside) for _ in ROLES]
    transports[victim] = lane.transport
    return Round(
        seed=seed,
        number=number,
        scenario=scenario,
        lane=lane,
        transports=tuple(transports),
        victim=victim,
        after=chance.uniform(0.0, 0.2),
        lasting=chance.choice([0.05, 0.3, 0.6]),
        version_bytes=chance.choice([4096, 72 << 10, 1 << 20]),
        copy_bytes=chance.choice([4 << 20, 6 << 20, 8 << 20]),
    )
