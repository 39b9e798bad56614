"""Sockets for the addresses of a host. Light to import, so that a used port is reported at once."""

import errno
import socket
import sys

Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
"""Of IPv4 or IPv6, as ``socket.getaddrinfo`` returns it."""


def check_port(host: str, port: int) -> None:
    """Raise if the port is in use."""
    for made in bound(host, port):
        made.close()


def bound(host: str, port: int) -> list[socket.socket]:
    """Bind a socket to each address of the host. They do not listen yet: no connections before models are loaded."""
    made: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            if one := _bound(family, address):
                made.append(one)
        if not made:
            raise OSError(errno.EADDRNOTAVAIL, "no such address on this machine")
    except OSError as error:
        for one in made:
            one.close()
        hint = f"; another port: --port {port % 65535 + 1}" if error.errno == errno.EADDRINUSE else ""
        raise OSError(f"could not serve on {host}:{port}: {error.strerror or error}{hint}") from None
    return made


def _bound(family: int, address: Address) -> socket.socket | None:
    """Bind one socket. Returns None if the machine lacks the address, for example ::1 without IPv6."""
    made = None
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":  # on Windows, SO_REUSEADDR lets two servers share a port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError as error:
        if made is not None:
            made.close()
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return None
        raise
    return made
