"""Where a webhook may go: judges URLs and addresses. Pure: no socket and no name is looked up here.

    errors.InvalidCall
    └── UrlRefused       the URL cannot be a webhook's; `reason` is one of URL_REASONS
    errors.OutlastError
    └── AddressRefused   a name leads to where no webhook may go; `reason` is a word of the tables

The reasons are for operators. Whoever registered the URL must not learn them: told apart, they
would map our network.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from ...domain import errors

URL_CHARS_MAX = 2_048
HOST_CHARS_MAX = 253
PORT_MAX = 65_535
HTTPS_PORT, HTTP_PORT = 443, 80
PORTS = frozenset({HTTPS_PORT})

UrlReason = Literal[
    "too_long", "malformed", "scheme", "userinfo", "fragment", "host", "address", "port"
]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# The IANA registries of special-purpose addresses, whole: also the few blocks that are routed
# (AS112, AMT, anycast of protocols), since no receiver lives there. Multicast has its own registry.
_SPECIAL_V4 = (
    ("0.0.0.0/8", "this_network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier_nat"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link_local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol"),
    ("192.0.2.0/24", "documentation"),
    ("192.31.196.0/24", "as112"),
    ("192.52.193.0/24", "amt"),
    ("192.88.99.0/24", "relay_6to4"),
    ("192.168.0.0/16", "private"),
    ("192.175.48.0/24", "as112"),
    ("198.18.0.0/15", "benchmark"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("255.255.255.255/32", "broadcast"),
    ("240.0.0.0/4", "reserved"),
)
# The last row is what makes the table safe against blocks that are yet to be given a meaning:
# global unicast is handed out of 2000::/3 alone, and the rows above it are the exceptions inside.
_SPECIAL_V6 = (
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("64:ff9b:1::/48", "nat64_local"),
    ("100::/64", "discard"),
    ("100:0:0:1::/64", "dummy"),
    ("2001::/23", "protocol"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "tunnel_6to4"),
    ("2620:4f:8000::/48", "as112"),
    ("3fff::/20", "documentation"),
    ("5f00::/16", "segment_routing"),
    ("fc00::/7", "unique_local"),
    ("fe80::/10", "link_local"),
    ("fec0::/10", "site_local"),
    ("ff00::/8", "multicast"),
    ("::/3", "not_global"),
    ("4000::/2", "not_global"),
    ("8000::/1", "not_global"),
)
_V4_TABLE = tuple((ipaddress.IPv4Network(block), word) for block, word in _SPECIAL_V4)
_V6_TABLE = tuple((ipaddress.IPv6Network(block), word) for block, word in _SPECIAL_V6)
_LOOPBACK_V4 = ipaddress.IPv4Network("127.0.0.0/8")
_LOOPBACK_V6 = ipaddress.IPv6Address("::1")

# An IPv4 address inside an IPv6 one, in the low 32 bits. Through the first two a public address is
# reached as such (DNS64 answers so where there is no IPv4); the others only ever make it worse.
_REACHES_V4 = (
    ipaddress.IPv6Network("::ffff:0:0/96"),  # mapped
    ipaddress.IPv6Network("64:ff9b::/96"),  # NAT64, well-known prefix
)
_HIDES_V4 = (
    ipaddress.IPv6Network("::/96"),  # compatible
    ipaddress.IPv6Network("::ffff:0:0:0/96"),  # translated
    ipaddress.IPv6Network("64:ff9b:1::/96"),  # NAT64, local
)

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)"
    r"(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?(?P<fragment>#.*)?"
)
# What may stand in a URL at all. The backslash and its like are where parsers disagree.
_URL_CHARS = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*")
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[1-9][0-9]{0,4}))?")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class UrlRefused(errors.InvalidCall):
    """The URL cannot receive webhooks."""

    def __init__(self, reason: UrlReason) -> None:
        super().__init__()
        self.reason: UrlReason = reason


class AddressRefused(errors.OutlastError):
    """The name leads to an address that no webhook may go to."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


@dataclass(frozen=True)
class Endpoint:
    """A URL that was judged, in the parts that are used to connect: nobody parses it again."""

    scheme: str
    host: str  # lower case; an IPv6 address without its brackets
    port: int
    target: str

    @property
    def host_header(self) -> str:
        """The value of the Host header."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        usual = HTTPS_PORT if self.scheme == "https" else HTTP_PORT
        return name if self.port == usual else f"{name}:{self.port}"


def check_url(
    url: str, *, allow_loopback_http: bool = False, ports: Collection[int] = PORTS
) -> Endpoint:
    """The parts of a webhook's URL. Raises UrlRefused.

    `allow_loopback_http` is the development switch: loopback, over http too, on any port.
    """
    parts = _split(url)
    scheme = parts["scheme"].lower()
    host, port = _host_and_port(parts["authority"])
    local = allow_loopback_http and names_loopback(host)
    if scheme != "https" and not (scheme == "http" and local):
        raise UrlRefused("scheme")
    if not local and (_is_literal(host) or _is_localhost(host)):
        raise UrlRefused("address")
    number = port or (HTTPS_PORT if scheme == "https" else HTTP_PORT)
    if number > PORT_MAX or not (local or number in ports):
        raise UrlRefused("port")
    return Endpoint(scheme, host, number, (parts["path"] or "/") + (parts["query"] or ""))


def judged(answers: Iterable[str], *, loopback: bool = False) -> tuple[str, ...]:
    """All that a name resolved to, fit for dialling, in canonical form. Raises AddressRefused.

    One bad answer condemns the whole: which of them is dialled is chance. With `loopback`, for
    a local name under the development switch, every answer must be loopback instead.
    """
    found: dict[str, None] = {}
    for answer in answers:
        address = _parsed(answer)
        word = why_refused(address)
        if loopback and word != "loopback":
            raise AddressRefused(word or "not_loopback")
        if word is not None and not loopback:
            raise AddressRefused(word)
        found[str(address)] = None
    if not found:
        raise AddressRefused("no_address")
    return tuple(found)


def why_refused(address: Address) -> str | None:
    """The word for what is special about the address; None for one that a webhook may go to."""
    if isinstance(address, ipaddress.IPv4Address):
        return next((word for block, word in _V4_TABLE if address in block), None)
    if address.scope_id is not None:
        return "zone"
    if any(address in block for block in _REACHES_V4):
        return why_refused(_low_v4(address))
    hidden = _hidden_v4(address)
    inner = why_refused(hidden) if hidden is not None else None
    outer = next((word for block, word in _V6_TABLE if address in block), None)
    return outer if outer in {"unspecified", "loopback"} else inner or outer


def names_loopback(host: str) -> bool:
    """Whether the host of a URL says loopback by itself, in a spelling that nobody misreads."""
    if _is_localhost(host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address in _LOOPBACK_V4 or address == _LOOPBACK_V6


def _split(url: str) -> dict[str, str]:
    if len(url) > URL_CHARS_MAX:
        raise UrlRefused("too_long")
    found = _URL.fullmatch(url) if _URL_CHARS.fullmatch(url) else None
    if found is None:
        raise UrlRefused("malformed")
    parts = found.groupdict(default="")
    if "@" in parts["authority"]:
        raise UrlRefused("userinfo")
    if parts["fragment"]:
        raise UrlRefused("fragment")
    return parts


def _host_and_port(authority: str) -> tuple[str, int]:
    """The host in lower case and the port, 0 where none is given."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise UrlRefused("malformed")
    host = found["host"].lower()
    port = int(found["port"] or 0)
    if host.startswith("["):
        return _ipv6_literal(host[1:-1]), port
    if len(host) > HOST_CHARS_MAX or not all(map(_LABEL.fullmatch, host.split("."))):
        raise UrlRefused("host")
    return host, port


def _ipv6_literal(text: str) -> str:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise UrlRefused("host") from None
    if address.scope_id is not None:
        raise UrlRefused("address")
    return address.compressed


def _is_literal(host: str) -> bool:
    """Whether the host is an address, also in the old spellings that a resolver still takes."""
    return ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]) is not None


def _is_localhost(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost")


def _parsed(answer: str) -> Address:
    try:
        return ipaddress.ip_address(answer)
    except ValueError:
        # Never dial what we cannot read: a library below us might resolve it once more.
        raise AddressRefused("malformed") from None


def _hidden_v4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address in one of the wrappings that no receiver needs."""
    if any(address in block for block in _HIDES_V4):
        return _low_v4(address)
    return address.sixtofour or (address.teredo or (None, None))[1]


def _low_v4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
