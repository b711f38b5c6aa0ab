"""Slabs are ended: each is let go here and freed at the server, and one message says both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from farpool.client.attachment import Attachment, Attachments
from farpool.client.pipeline import Pipeline
from farpool.client.succession import Bond
from farpool.protocol.errors import DeadlineExceeded, FarpoolError, PermissionDenied, ReadOnly, RegionInUse, ServerLost
from farpool.protocol.messages import Done, Free

__all__ = ["abandon", "discard", "free", "free_many"]


def free(attachment: Attachment, deadline: float) -> None:
    """End the slab; every attachment that this session has of it goes stale.

    Raises:
        RegionInUse: views of this attachment are alive; nothing was freed.
        ReadOnly: it is for reading only; nothing was freed.
        PermissionDenied: the slab is another tenant's; nothing was freed.
    """
    attachment.session.check()
    _free(attachment, _let_go(attachment), deadline)


def discard(attachment: Attachment, deadline: float) -> None:
    """End a draft as :func:`free` does; what the server does not confirm by *deadline* is queued for it."""
    attachment.session.check()
    request = _let_go(attachment)
    try:
        _free(attachment, request, deadline)
    except (DeadlineExceeded, ServerLost):  # twice is once: no other slab has ever its number
        attachment.session.part(request, attachment.bond.serial)
        raise


def _free(attachment: Attachment, request: Free, deadline: float) -> None:
    owner = attachment.owner
    owner.holdings.sweep()
    try:
        attachment.call(request, Done, deadline)
    except BaseException:
        if request.detached:  # it may not have arrived
            owner.holdings.part_detach(attachment.key, attachment.bond.serial)
        raise
    owner.holdings.revoke_all(attachment.info.id)


def free_many(owner: Attachments, attachments: Sequence[Attachment], deadline: float) -> None:
    """Free many slabs with pipelined requests; the first error is raised once all were tried."""
    owner.session.check()
    owner.holdings.sweep()
    errors: list[FarpoolError] = []
    requests: list[Free] = []
    bonds: list[Bond] = []
    for attachment in attachments:
        try:
            requests.append(_let_go(attachment))
            bonds.append(attachment.bond)
        except (PermissionDenied, ReadOnly, RegionInUse) as error:
            errors.append(error)
    outcomes = Pipeline(owner.session, requests, Done, deadline, bonds=bonds).run()
    for request, bond, outcome in zip(requests, bonds, outcomes, strict=True):
        if isinstance(outcome, FarpoolError):
            errors.append(outcome)
            if request.detached:
                owner.holdings.part_detach((request.id, request.memory), bond.serial)
            if outcome.details.get("session_ended"):
                continue  # nothing was sent: what has the slab now is not this one's
        owner.holdings.revoke_all(request.id)
    if errors:
        raise errors[0]


def abandon(owner: Attachments, attachments: Iterable[Attachment]) -> None:
    """Free slabs that their caller will never see: queued, sent together, not waited for."""
    for attachment in attachments:
        owner.session.part(_let_go(attachment))
    owner.session.flush()


def _let_go(attachment: Attachment) -> Free:
    """Let go of *attachment*, and return the request that says both."""
    if attachment.info.tenant != attachment.session.welcome.tenant:
        raise PermissionDenied(
            f'slab {attachment.ticket.label} is the tenant "{attachment.info.tenant}"\'s, which alone may free it; '
            "close it to let it go"
        )
    if attachment.mode == "r":
        raise ReadOnly(f'slab {attachment.ticket.label} was opened in mode "r"; open it in mode "rw" to free it')
    detached = attachment.transport if attachment.withdraw() else ""
    info = attachment.info
    return Free(id=info.id, generation=info.generation, detached=detached, memory=info.memory_generation)
