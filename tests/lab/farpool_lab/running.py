"""Run guests: start QEMU, pass on what the command prints, bound the time, end with the command's exit code.

Nothing of a run has a name in a file system: sockets come in pairs, and the memory device is an anonymous file that
each QEMU inherits. So nothing remains, however a run ends; a QEMU is killed by the kernel when this program is.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO

from tests.lab.farpool_lab.machine import LABEL_BYTES, Descriptors, Order, command_line, instructions

TIMED_OUT = 124
NO_RESULT = 125
INTERRUPTED = 130
CONSOLE_LINES = 40
"""Lines of the console that a failed boot shows."""
READ_BYTES = 65536
LEAST_WAIT = 0.1
"""Seconds to wait for a guest that has been killed."""


class Guest:
    """One QEMU, and what has come from it."""

    def __init__(self, order: Order, host: int, *, memory: int | None, wire: socket.socket | None, stack: ExitStack):
        self.name = "AB"[host] if order.hosts == 2 else ""
        self.up = False
        self.code: int | None = None
        self.failure = ""
        self.console = bytearray()
        self.timed_out = False
        self._order = order
        self._deadline = time.monotonic() + order.boot_timeout
        self._lines = bytearray()
        pairs = {name: socket.socketpair() for name in ("console", "control", "stdout", "stderr")}
        theirs = {name: stack.enter_context(pair[1]) for name, pair in pairs.items()}
        self.ours = {name: stack.enter_context(pair[0]) for name, pair in pairs.items()}
        labels = anonymous(LABEL_BYTES, stack) if memory is not None and order.cxl_kind == "pmem" else None
        numbers = {name: end.fileno() for name, end in theirs.items()}
        inherited = Descriptors(**numbers, wire=wire.fileno() if wire else None, memory=memory, labels=labels)
        self.process = subprocess.Popen(
            command_line(order, host, inherited),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=theirs["console"].fileno(),
            pass_fds=inherited.numbers(),
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        stack.callback(self.end)
        for end in theirs.values():
            end.close()
        self.ours["control"].sendall(instructions(order, host))

    def end(self) -> None:
        """Kill the guest and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def keep_bound(self) -> float:
        """Kill the guest if its time is over; return the seconds that it has left."""
        left = self._deadline - time.monotonic()
        if self.process.poll() is None and left <= 0:
            self.timed_out = True
            self.process.kill()
        return left

    def told(self, data: bytes) -> None:
        """Take what guest.sh says on the control port."""
        self._lines += data
        while b"\n" in self._lines:
            line, _, rest = self._lines.partition(b"\n")
            self._lines[:] = rest
            word, _, value = line.decode(errors="replace").partition(" ")
            if word == "up":
                self.up = True
                self._deadline = time.monotonic() + self._order.timeout
            elif word == "exit":
                self.code = int(value)
            elif word == "fail":
                self.failure = value
            if word in {"exit", "fail"}:
                # All that the command printed is in the sockets: guest.sh waits until QEMU has taken it.
                self.process.kill()

    def heard(self, data: bytes) -> None:
        """Take what the kernel and guest.sh print on the console."""
        self.console += data
        if self._order.verbose:
            sys.stderr.buffer.write(data.replace(b"\r", b""))
            sys.stderr.flush()

    def report(self, what: str) -> None:
        """Say on standard error what went wrong, with the end of the console."""
        lines = self.console.decode(errors="replace").replace("\r", "").splitlines()[-CONSOLE_LINES:]
        who = f"guest {self.name}" if self.name else "the guest"
        print(
            "\n".join(["farpool-lab: the console's last lines:", *lines, f"farpool-lab: {who} {what}"]), file=sys.stderr
        )


class Printer:
    """Copies a stream of a guest to one of ours; where there are two guests, each line begins with its name."""

    def __init__(self, guest: Guest, out: IO[bytes]):
        self._begin = f"{guest.name}| ".encode() if guest.name else b""
        self._out = out
        self._partial = b""

    def take(self, data: bytes) -> None:
        if self._begin:
            *whole, self._partial = (self._partial + data).split(b"\n")
            data = b"".join(self._begin + line + b"\n" for line in whole)
        self._out.write(data)
        self._out.flush()

    def finish(self) -> None:
        if self._partial:
            self.take(b"\n")


def anonymous(size: int, stack: ExitStack) -> int:
    """Make a file without a name, which lives as long as someone has it open; return its descriptor."""
    descriptor = os.memfd_create("farpool-lab", os.MFD_CLOEXEC)
    stack.callback(os.close, descriptor)
    os.ftruncate(descriptor, size)
    return descriptor


def terminated(number: int, frame: object) -> None:
    """End as on Ctrl-C, with the exit code that a shell gives."""
    sys.exit(128 + number)


def run(order: Order) -> int:
    """Run the order's command in its guests; return the exit code: of the first of A and B that is not 0."""
    signal.signal(signal.SIGTERM, terminated)
    with ExitStack() as stack:
        try:
            guests = start(order, stack)
            carry(guests)
        except KeyboardInterrupt:
            return INTERRUPTED
        return next((code for code in [result(order, guest) for guest in guests] if code), 0)


def start(order: Order, stack: ExitStack) -> list[Guest]:
    memory = anonymous(order.cxl_bytes, stack) if order.cxl_bytes else None
    wires: list[socket.socket | None] = [None]
    if order.hosts == 2:
        wires = [stack.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)]
    return [Guest(order, host, memory=memory, wire=wires[host], stack=stack) for host in range(order.hosts)]


def carry(guests: list[Guest]) -> None:
    """Carry the guests' streams until all have ended; a guest whose time is over is killed, which ends them."""
    printers: list[Printer] = []
    with selectors.DefaultSelector() as waiting:
        for guest in guests:
            out, err = Printer(guest, sys.stdout.buffer), Printer(guest, sys.stderr.buffer)
            printers += [out, err]
            takers = {"stdout": out.take, "stderr": err.take, "control": guest.told, "console": guest.heard}
            for name, take in takers.items():
                waiting.register(guest.ours[name], selectors.EVENT_READ, take)
        while waiting.get_map():
            left = min(guest.keep_bound() for guest in guests)
            for key, _ in waiting.select(max(left, LEAST_WAIT)):
                if not pass_on(key.fileobj, key.data):
                    waiting.unregister(key.fileobj)
    for printer in printers:
        printer.finish()


def pass_on(source: object, take: Callable[[bytes], object]) -> bool:
    """Pass on what there is; return False once there will be no more."""
    assert isinstance(source, socket.socket)
    try:
        data = source.recv(READ_BYTES)
    except ConnectionResetError:
        return False
    if data:
        take(data)
    return bool(data)


def result(order: Order, guest: Guest) -> int:
    """Return the exit code of the command, 0 for a host that was to be lost; or say what is wrong: 124 or 125."""
    expected = bool(guest.name) and guest.name == order.lost
    if guest.code is not None and not (expected and guest.code == 0):
        return guest.code
    if guest.timed_out and guest.up:
        guest.report(f"was killed: its command had not ended within {order.timeout:g} s (--timeout)")
        return TIMED_OUT
    if guest.timed_out:
        guest.report(f"was killed: it had not come up within {order.boot_timeout:g} s (--boot-timeout)")
    elif guest.failure:
        guest.report(f"could not be set up: {guest.failure}")
    elif guest.code is not None:
        guest.report("was to be lost (--lost), and its command ended")
    elif expected and guest.up:
        return 0
    else:
        guest.report(f"ended {'before its command did' if guest.up else 'before it was up'}")
    return NO_RESULT
