"""Who may use the server: the API key and the names in the Host header. Light to import, like limits.py."""

import base64
import binascii
import hmac
import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Access:
    api_key: str | None = None
    """Key required from clients. Blanks and line breaks around it are removed: secrets in files often end with one."""
    public: tuple[str, ...] = ("/health",)
    """Paths that need no key."""
    hosts: tuple[str, ...] = ()
    """Names accepted in the Host header, next to localhost and IP addresses; "*" accepts every name."""

    def __post_init__(self) -> None:
        if self.api_key is not None:
            key = self.api_key.strip()
            if not key:
                raise ValueError("the API key is empty; set one, or leave out --api-key and DEBERTA_API_KEY")
            if not all(" " <= character <= "~" for character in key):
                raise ValueError("the API key may contain only printable ASCII characters: it is sent as a header")
            object.__setattr__(self, "api_key", key)
        for path in self.public:
            if not path.startswith("/"):
                raise ValueError(f"public path {path!r} must start with /, for example /metrics")

    def allows_host(self, header: str) -> bool:
        """Whether the Host header is accepted.

        A web page can make its own domain name point to this machine and then read answers from the user's browser
        (DNS rebinding). Its requests carry its domain name as Host. An IP address as Host cannot come from such a page.
        """
        name = host_name(header)
        return name is not None and (
            name == "localhost" or _is_address(name) or "*" in self.hosts or name in map(str.lower, self.hosts)
        )

    def allows_key(self, headers: dict[bytes, bytes]) -> bool:
        """Whether the headers carry the key, as X-API-Key, as a bearer token, or as the password of a browser."""
        if self.api_key is None:
            return True
        scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
        match scheme.lower():
            case b"bearer":
                given = credentials.strip()
            case b"basic" if headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin"):
                given = _password(credentials)  # browsers send it by themselves, also for requests of other sites
            case _:
                given = b""
        return hmac.compare_digest(headers.get(b"x-api-key", given).strip(), self.api_key.encode())


def default_hosts(host: str) -> tuple[str, ...]:
    """Names for a server on ``host``: the host itself and the name of this machine."""
    return (host, socket.gethostname())


def host_name(header: str) -> str | None:
    """The name in a Host header, without port, in lower case; None if the header is malformed."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port  # raises if it is not a number
    except ValueError:
        return None
    if parts.path or parts.query or parts.fragment or "@" in header:
        return None
    return (parts.hostname or "").rstrip(".") or None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _password(credentials: bytes) -> bytes:
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
