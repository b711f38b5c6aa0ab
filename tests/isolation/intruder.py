"""A client of another user and tenant that tries to reach what is not its own: ``python intruder.py UID TARGET``.

TARGET is JSON: where the server is, and all that a tenant could learn or guess of another one's slab. What it prints
is JSON too: for each try the error that it got, "" where it had success.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import farpool
from farpool.client.connection import Connection
from farpool.client.parting import Parting
from farpool.native.control_channel import ControlChannel
from farpool.native.tcp_wire import ANSWER_BYTES, OPERATIONS, pack_hello, pack_request, unpack_answer
from farpool.protocol.messages import (
    Attach,
    Attached,
    Commit,
    Committed,
    Done,
    DraftEnd,
    Free,
    Grant,
    GrantList,
    Grants,
    Hello,
    Negotiate,
    Negotiated,
    Notify,
    Open,
    Reserve,
    ResumeKey,
    Revoke,
    TenantLimit,
    TenantList,
    TenantListing,
    Wait,
    Welcome,
    Word,
)
from farpool.transports.cxl import descriptors
from farpool.transports.cxl.descriptors import DescriptorAnswer, DescriptorRequest
from farpool.transports.registry import find_transport, transport_names

Try = Callable[[], object]

PTRACE_ATTACH = 16


class Refused(Exception):
    """A data plane has said no."""


def become(uid: int) -> None:
    """Give up root for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def connect_as(url: str, tenant: str) -> None:
    """Open a session of a tenant."""
    farpool.connect(url, tenant=tenant).close()


def tries_of_requests(pool: farpool.Pool, target: dict[str, Any]) -> Iterator[tuple[str, Try]]:
    """Ask for another's slab by every request that names one."""
    session, timeout = pool.allocate(4096).attachment.session, 20.0
    slab, generation = target["slab"], target["generation"]

    def ask(request: Any, reply: Any) -> Try:
        return lambda: session.call(request, reply, time.monotonic() + timeout)

    for transport in ("cxl", "tcp"):
        for mode in ("r", "rw"):
            yield f"open name {transport} {mode}", ask(Open(name="secret", mode=mode, transport=transport), Attached)
            named = Open(name="secret", tenant="victim", mode=mode, transport=transport)
            yield f"open name of victim {transport} {mode}", ask(named, Attached)
            yield f"open id {transport} {mode}", ask(Open(id=slab, mode=mode, transport=transport), Attached)
            for guess in (0, generation - 1, generation, generation + 1):
                attach = Attach(id=slab, generation=guess, mode=mode, transport=transport, memory=guess)
                yield f"attach {guess} {transport} {mode}", ask(attach, Attached)
        yield f"reserve {transport}", ask(Reserve(id=slab, generation=generation, transport=transport), Attached)
        yield f"negotiate {transport}", ask(Negotiate(transport=transport, params={"slab": slab}), Negotiated)
    for draft in (slab, target["draft"]):
        yield f"commit {draft}", ask(Commit(drafts=[DraftEnd(id=draft, generation=generation)]), Committed)
        attach = Attach(id=draft, generation=target["draft_generation"], mode="rw", transport="tcp")
        yield f"attach draft {draft}", ask(attach, Attached)
    names: dict[str, Any] = {"id": slab, "generation": generation}
    yield "free", ask(Free(**names), Done)
    yield "grant", ask(Grant(**names, tenant="intruder", mode="rw"), Done)
    yield "revoke", ask(Revoke(**names, tenant="reader"), Done)
    yield "grants", ask(Grants(**names), GrantList)
    yield "wait", ask(Wait(**names, offset=0, expected=0, seconds=1.0), Word)
    yield "notify", ask(Notify(**names, offset=0), Done)
    yield "list tenants", ask(TenantListing(), TenantList)
    yield "raise its quota", ask(TenantLimit(tenant="intruder", max_bytes=None), Done)


def tries_of_sessions(target: dict[str, Any]) -> Iterator[tuple[str, Try]]:
    """Open or resume sessions that are not this user's."""
    for tenant in ("victim", "default", "reader", "nobody"):
        yield f"hello as {tenant}", partial(connect_as, target["url"], tenant)

    def resume(secret: bytes) -> None:
        wire = socket.socket(socket.AF_UNIX)
        wire.connect(target["url"].removeprefix("unix://"))
        connection = Connection(ControlChannel(wire.detach(), 1 << 20), Parting(), print)
        try:
            hello = Hello(protocol=1, client="x", resume=ResumeKey(session=target["session"], secret=secret))
            deadline = time.monotonic() + 20
            connection.finish(connection.begin(hello, deadline), Welcome, deadline)
        finally:
            connection.fail("done")

    yield "resume victim's session", lambda: resume(bytes(32))
    yield "resume victim's session with a short secret", lambda: resume(b"")


def tries_of_descriptors(pool: farpool.Pool, target: dict[str, Any]) -> Iterator[tuple[str, Try]]:
    """Ask the descriptors' socket for another's memory."""
    mine = dict(pool.allocate(4096).attachment.ticket.params)

    def fetch(session: int, secret: bytes, slab: int, generation: int, writable: bool) -> None:
        request = DescriptorRequest(session, secret, slab, generation, writable)
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as wire:
            wire.settimeout(20)
            wire.connect(mine["socket"])
            wire.send(request.encode())
            packet, received, _, _ = socket.recv_fds(wire, descriptors.ANSWER_BYTES, 1)
            for fd in received:
                os.close(fd)
            if DescriptorAnswer.decode(packet).status != descriptors.OK:
                raise Refused

    for session, secret in ((mine["session"], mine["secret"]), (target["session"], mine["secret"])):
        for slab in (target["slab"], target["draft"]):
            for generation in (0, target["generation"], target["draft_generation"]):
                for writable in (False, True):
                    what = f"descriptor {session} {slab} {generation} {writable}"
                    arguments = (session, secret, slab, generation, writable)
                    yield what, partial(fetch, *arguments)


def tries_of_data(pool: farpool.Pool, target: dict[str, Any]) -> Iterator[tuple[str, Try]]:
    """Use another's handles on the tcp data plane."""
    mine = dict(pool.allocate(4096).attachment.ticket.params)
    theirs = target["params"]

    def talk(slot: int, operation: str, handle: int, generation: int) -> None:
        with socket.create_connection((mine["host"], mine["port"]), 20) as wire, wire.makefile("rb") as answers:
            wire.sendall(pack_hello(slot, mine["secret"]))
            answer = answers.read(ANSWER_BYTES)
            if not answer or unpack_answer(answer)["status"]:
                raise Refused
            length = 8 if operation in ("read", "write", "readv", "writev") else 0
            asked = pack_request(OPERATIONS[operation], handle=handle, generation=generation, length=length, operand=1)
            parts = (0).to_bytes(8, "little") + (8).to_bytes(8, "little") if operation.endswith("v") else b""
            wire.sendall(asked + parts + (b"intruder" if operation.startswith("write") else b""))
            answer = answers.read(ANSWER_BYTES)
            if not answer or unpack_answer(answer)["status"]:
                raise Refused

    yield "victim's slot", lambda: talk(theirs["slot"], "read", theirs["handle"], target["generation"])
    for operation in sorted(set(OPERATIONS) - {"hello"}):
        for generation in (0, target["generation"]):
            arguments = (mine["slot"], operation, theirs["handle"], generation)
            yield f"victim's handle {operation} {generation}", partial(talk, *arguments)


def tries_of_the_host(target: dict[str, Any]) -> Iterator[tuple[str, Try]]:
    """Reach the server's and the victim's memory through the kernel."""

    def attach(pid: int) -> None:
        if ctypes.CDLL(None, use_errno=True).ptrace(PTRACE_ATTACH, pid, None, None) < 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    for name in ("server_pid", "victim_pid"):
        pid = target[name]
        yield f"ptrace {name}", partial(attach, pid)
        for file in ("mem", "maps", "environ"):
            yield f"{file} of {name}", Path(f"/proc/{pid}/{file}").read_bytes
        yield f"descriptors of {name}", partial(os.listdir, f"/proc/{pid}/fd")
    yield "arena", partial(os.listdir, target["arena"])
    for path in target["files"]:
        yield f"read {path}", Path(path).read_bytes
        yield f"write {path}", partial(Path(path).open, "r+b")
        yield f"remove {path}", Path(path).unlink


def outcome(attempt: Try) -> str:
    """Return the name of the error that a try got."""
    try:
        attempt()
    except (farpool.FarpoolError, OSError, Refused) as error:
        return type(error).__name__
    return ""


def main(uid: int, target: dict[str, Any]) -> None:
    """Try everything."""
    for transport in transport_names():
        find_transport(transport)
    for module in ("farpool.transports.cxl.client", "farpool.transports.tcp.client", "farpool.native.slab_table"):
        import_module(module)
    for transport in ("cxl", "tcp"):
        farpool.connect(target["url"], transport=transport).close()  # imports all that is needed, as root still
    become(uid)
    with (
        farpool.connect(target["url"], transport="cxl", timeout=20) as mapped,
        farpool.connect(target["url"], transport="tcp", timeout=20) as remote,
    ):
        assert mapped.tenant == remote.tenant == "intruder"
        tries = [
            *tries_of_requests(mapped, target),
            *tries_of_sessions(target),
            *tries_of_descriptors(mapped, target),
            *tries_of_data(remote, target),
            *tries_of_the_host(target),
        ]
        outcomes = {what: outcome(attempt) for what, attempt in tries}
        seen = [info.id for info in mapped.slabs()]
        kept: list[farpool.Slab] = []
        refusal = ""
        while not refusal and len(kept) < 1000:
            try:
                kept.append(remote.allocate("1MiB"))
            except farpool.FarpoolError as error:
                refusal = type(error).__name__
        stat = mapped.stat()
        told = [stat.pid, stat.arena, [entry.host for entry in stat.quarantined]]
        print(
            json.dumps({"outcomes": outcomes, "seen": seen, "allocated": len(kept), "refusal": refusal, "told": told})
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
