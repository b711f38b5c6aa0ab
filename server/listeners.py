"""The control plane's port and Unix socket: bound with clear errors, shown when ready, removed after."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import secrets
import socket
import stat
from pathlib import Path
from typing import Final

from farpool.protocol.addresses import Address, parse_host_port, validate_socket_path
from farpool.server.settings import ConfigurationError

__all__ = ["UnixListener", "bind_tcp", "refuse_exposure"]

BACKLOG: Final = 1024


def bind_tcp(listen: str, inherited: socket.socket | None = None) -> tuple[socket.socket, Address]:
    """Return a listening socket for ``HOST:PORT``, and its address with the real port; *inherited* if it fits."""
    host, port = parse_host_port(listen, what="listen")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {listen}: {error.strerror}; name an address of this host") from None
    family, kind, protocol, _, address = found[0]
    if inherited is not None:
        bound = inherited.getsockname()
        if bound[0] == address[0] and port in (0, bound[1]):
            return inherited, Address(host=host, port=bound[1])
        inherited.close()
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen on {listen}: {_why(error)}") from None
    listener.setblocking(False)
    return listener, Address(host=host, port=listener.getsockname()[1])


def refuse_exposure(listen: str) -> None:
    """Raise ``ConfigurationError`` if other hosts may reach ``HOST:PORT``; for a server that lets everybody in."""
    host, port = parse_host_port(listen, what="listen")
    if not _is_loopback(host, port):
        raise ConfigurationError(
            f"other hosts may reach {listen}, and nothing says who of them may use the pool: set authentication = "
            '"required" (then: farpool tenant add NAME), or let everybody in with --insecure'
        )


def _is_loopback(host: str, port: int) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        pass
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return True  # nobody reaches it: binding says what is wrong
    return ipaddress.ip_address(found[0][4][0]).is_loopback


def _why(error: OSError) -> str:
    return {
        errno.EADDRINUSE: "the port is in use; choose another with --listen, or stop what uses it",
        errno.EADDRNOTAVAIL: "this host has no such address; choose another with --listen",
        errno.EACCES: "this user may not use that port; choose one over 1023 with --listen",
    }.get(error.errno or 0, error.strerror or str(error))


class UnixListener:
    """A listening Unix socket, made under a hidden name and renamed to its own once everything else is ready.

    Raises:
        ConfigurationError: a server answers there, something else is there, or the directory is not fit.
    """

    def __init__(self, path: str, mode: int, inherited: socket.socket | None = None) -> None:
        self.path = path
        self._inode = 0
        self._folder, self._name = os.path.split(path)
        if inherited is not None:  # it has its name already
            self._hidden = ""
            self.socket = inherited
            return
        self._hidden = validate_socket_path(f"{self._folder}/.{secrets.token_hex(2)}")
        _make_folder(self._folder)
        _refuse_what_is_there(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.bind(self._hidden)
            Path(self._hidden).chmod(mode)
            self.socket.listen(BACKLOG)
        except OSError as error:
            self.close()
            raise ConfigurationError(
                f"cannot make the socket {path}: {error.strerror}; choose another place with --unix"
            ) from None
        self.socket.setblocking(False)

    def show(self) -> None:
        """Give the socket its name; a stale one of that name is replaced."""
        if self._hidden:
            _refuse_what_is_there(self.path)
            self._inode = Path(self._hidden).stat().st_ino
            Path(self._hidden).rename(self.path)
        else:
            self._inode = Path(self.path).stat().st_ino

    def leave(self) -> None:
        """Leave the name to a successor that has the socket."""
        self._inode = 0

    def close(self) -> None:
        """Close the socket, and remove its name unless another server has it now. May be called twice."""
        self.socket.close()
        if self._hidden:
            Path(self._hidden).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self._inode and Path(self.path).lstat().st_ino == self._inode:
                Path(self.path).unlink()


def _make_folder(folder: str) -> None:
    path = Path(folder)
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        status = path.lstat()
    except OSError as error:
        raise ConfigurationError(
            f"the socket's directory {folder} cannot be used: {error.strerror}; make it, or choose another with --unix"
        ) from None
    writable_by_others = stat.S_IMODE(status.st_mode) & 0o022 and not status.st_mode & stat.S_ISVTX
    if status.st_uid not in (0, os.geteuid()) or writable_by_others:
        raise ConfigurationError(
            f"the socket's directory {folder} can be changed by other users (owner uid {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):04o}); choose another with --unix"
        )


def _refuse_what_is_there(path: str) -> None:
    try:
        status = Path(path).lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"cannot look at the socket path {path}: {error.strerror}") from None
    if not stat.S_ISSOCK(status.st_mode):
        raise ConfigurationError(f"{path} is there already and no socket; remove it, or choose another with --unix")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError:
            pass  # no answer in time, or no right to ask: somebody's server all the same
    raise ConfigurationError(f"a server answers at {path} already; stop it, or choose another path with --unix")
