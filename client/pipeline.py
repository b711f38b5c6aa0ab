"""Many requests of one kind that are out at once: what a batch of small slabs waits for is one round trip, not each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from farpool.client.connection import Call, Connection, Late
from farpool.client.session import Session, outcome_unknown
from farpool.client.succession import Bond
from farpool.protocol.errors import FarpoolError, ServerLost, SlabNotFound, StaleSlab
from farpool.protocol.messages import Free, Reply, Request

__all__ = ["Pipeline"]

R = TypeVar("R", bound=Reply)

WINDOW: Final = 128
"""Requests that are out at once: their replies are far less than the server buffers for us."""


class Pipeline(Generic[R]):
    """One batch. Each request has an outcome of its own: its reply and the client's session of it, or an error.

    If the batch is given up (Ctrl-C, a deadline before all were sent), *late* gets every reply that came or comes.
    """

    def __init__(
        self,
        session: Session,
        requests: Sequence[Request],
        reply_type: type[R],
        deadline: float,
        late: Late | None = None,
        bonds: Sequence[Bond] = (),
    ) -> None:
        self._session = session
        self._requests = requests
        self._reply_type = reply_type
        self._deadline = deadline
        self._late = late
        self._bonds = bonds
        self._begun: list[tuple[Connection, Call] | None] = []
        self._outcomes: list[tuple[R, int] | FarpoolError] = []

    def run(self) -> list[tuple[R, int] | FarpoolError]:
        """Send all, and return the outcomes in the order of the requests."""
        try:
            for request in self._requests:
                if len(self._begun) - len(self._outcomes) == WINDOW:
                    self._finish_next()
                self._begun.append(self._begin(request, self._bond(len(self._begun))))
            while len(self._outcomes) < len(self._requests):
                self._finish_next()
        except BaseException:
            self._give_up()
            raise
        return self._outcomes

    def _bond(self, index: int) -> Bond | None:
        return self._bonds[index] if self._bonds else None

    def _begin(self, request: Request, bond: Bond | None) -> tuple[Connection, Call] | None:
        connection = self._session.connection(self._deadline)
        if bond is not None and not self._session.succession.allows(bond, connection.serial):
            return None  # which it is told when its turn comes
        try:
            return connection, connection.begin(request, self._deadline, self._late)
        except ServerLost:
            return None  # it never left, and is sent when its turn comes

    def _finish_next(self) -> None:
        following = len(self._outcomes)
        try:
            outcome = self._finish(self._requests[following], self._begun[following], self._bond(following))
        except FarpoolError as error:
            self._outcomes.append(error)
        else:
            self._outcomes.append(outcome)

    def _finish(self, request: Request, begun: tuple[Connection, Call] | None, bond: Bond | None) -> tuple[R, int]:
        if begun is not None:
            try:
                return begun[0].finish(begun[1], self._reply_type, self._deadline), begun[0].serial
            except ServerLost as lost:
                if request.once:
                    raise outcome_unknown(lost, request) from lost
        try:
            return self._session.ask(request, self._reply_type, self._deadline, self._late, bond)
        except (SlabNotFound, StaleSlab) as error:
            if begun is None or not isinstance(request, Free) or error.details.get("session_ended"):
                raise
            return self._reply_type(), begun[0].serial  # the first try freed it

    def _give_up(self) -> None:
        for begun in self._begun[len(self._outcomes) :]:
            if begun is not None:
                begun[0].abandon(begun[1])
        for outcome in self._outcomes:
            if self._late is not None and not isinstance(outcome, FarpoolError):
                self._late(*outcome)
