"""Which URLs and which addresses a webhook may go to, in every spelling that there is."""

import ipaddress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given, strategies as st

from outlast.delivery.webhook.address import (
    URL_CHARS_MAX,
    Address,
    AddressRefused,
    Endpoint,
    UrlRefused,
    check_url,
    judged,
    names_loopback,
    why_refused,
)
from outlast.domain import errors

PUBLIC_V4 = ["1.1.1.1", "8.8.8.8", "93.184.215.14", "100.63.255.255", "100.128.0.0", "172.32.0.0"]
PUBLIC_V6 = ["2606:4700::1111", "2a00:1450:4001:82b::200e", "2003::1", "2001:4860:4860::8888"]

# Written down anew, from the registries, and not taken from the code: a block with the word.
SPECIAL = {
    "0.0.0.0/8": "this_network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "carrier_nat",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link_local",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "protocol",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "as112",
    "192.52.193.0/24": "amt",
    "192.88.99.0/24": "relay_6to4",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "as112",
    "198.18.0.0/15": "benchmark",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/5": "reserved",
    "255.255.255.255/32": "broadcast",
    "::/128": "unspecified",
    "::1/128": "loopback",
    "100::/64": "discard",
    "100:0:0:1::/64": "dummy",
    "2001:1::/32": "protocol",
    "2001:2::/48": "protocol",
    "2001:10::/28": "protocol",
    "2001:20::/28": "protocol",
    "2001:30::/28": "protocol",
    "2001:db8::/32": "documentation",
    "2620:4f:8000::/48": "as112",
    "3fff::/20": "documentation",
    "5f00::/16": "segment_routing",
    "fc00::/7": "unique_local",
    "fe80::/10": "link_local",
    "fec0::/10": "site_local",
    "ff00::/8": "multicast",
    "4000::/3": "not_global",
    "e000::/4": "not_global",
}

WRAPPINGS = {
    "mapped": lambda inner: IPv6Address((0xFFFF << 32) | inner),
    "compatible": IPv6Address,
    "translated": lambda inner: IPv6Address((0xFFFF << 48) | inner),
    "nat64": lambda inner: IPv6Address((0x64FF9B << 96) | inner),
    "nat64_local": lambda inner: IPv6Address((0x64FF9B0001 << 80) | inner),
    "6to4": lambda inner: IPv6Address((0x2002 << 112) | (inner << 80) | 1),
    "teredo": lambda inner: IPv6Address(
        (0x20010000 << 96) | (0x08080808 << 64) | (inner ^ 0xFFFF_FFFF)
    ),
}
REACHING = {"mapped", "nat64"}  # through these a public address is reached as such


def network(block: str) -> IPv4Network | IPv6Network:
    return ipaddress.ip_network(block)


def inside(block: str) -> st.SearchStrategy[Address]:
    found = network(block)
    kind = IPv4Address if found.version == 4 else IPv6Address
    numbers = st.integers(int(found.network_address), int(found.broadcast_address))
    return numbers.map(kind)


special_v4 = st.sampled_from([block for block in SPECIAL if "." in block]).flatmap(inside)
special_v6 = st.sampled_from([block for block in SPECIAL if ":" in block]).flatmap(inside)
wrappings = st.sampled_from(list(WRAPPINGS.values()))


@pytest.mark.parametrize("address", [*PUBLIC_V4, *PUBLIC_V6])
def test_a_public_address_passes(address: str) -> None:
    assert judged([address]) == (address,)


@pytest.mark.parametrize(("block", "word"), SPECIAL.items())
def test_a_special_block_is_refused_from_its_first_to_its_last_address(
    block: str, word: str
) -> None:
    found = network(block)
    assert why_refused(found.network_address) == word
    assert why_refused(found.broadcast_address) == word


@given(special_v4 | special_v6)
def test_no_special_address_passes(address: Address) -> None:
    with pytest.raises(AddressRefused):
        judged([str(address)])


@given(special_v4, wrappings)
def test_no_special_address_passes_inside_another(inner: Address, wrap) -> None:
    wrapped = wrap(int(inner))
    for spelling in (str(wrapped), wrapped.exploded, wrapped.compressed.upper()):
        with pytest.raises(AddressRefused):
            judged([spelling])


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("inner", PUBLIC_V4)
def test_a_public_address_passes_only_in_wrappings_that_lead_to_it(
    wrapping: str, inner: str
) -> None:
    wrapped = WRAPPINGS[wrapping](int(IPv4Address(inner)))
    assert (why_refused(wrapped) is None) == (wrapping in REACHING)


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_wrapped_address_is_refused_for_what_is_inside(wrapping: str) -> None:
    wrapped = WRAPPINGS[wrapping](int(IPv4Address("169.254.169.254")))
    assert why_refused(wrapped) == "link_local"


@given(st.ip_addresses())
def test_what_the_standard_library_holds_for_not_global_never_passes(address: Address) -> None:
    if not address.is_global and why_refused(address) is None:
        # The one way round: the address is the wrapping of a public one.
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        assert mapped is not None
        assert mapped.is_global


@pytest.mark.parametrize(
    "answer", ["fe80::1%eth0", "2606:4700::1111%lo", "::1%0", "example.test", "127.1", "", "0x7f.1"]
)
def test_an_answer_with_a_zone_or_that_is_no_address_is_refused(answer: str) -> None:
    with pytest.raises(AddressRefused):
        judged([answer])


@pytest.mark.parametrize("bad", ["10.0.0.1", "::1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe"])
def test_one_bad_answer_condemns_all(bad: str) -> None:
    for answers in ([bad, "8.8.8.8"], ["8.8.8.8", bad], ["2606:4700::1111", bad, "8.8.8.8"]):
        with pytest.raises(AddressRefused):
            judged(answers)


def test_no_answer_is_refused_and_a_repeated_one_counts_once() -> None:
    with pytest.raises(AddressRefused) as refused:
        judged([])
    assert refused.value.reason == "no_address"
    assert judged(["8.8.8.8", "2606:4700:0::1111", "8.8.8.8"]) == ("8.8.8.8", "2606:4700::1111")


@pytest.mark.parametrize(
    ("answers", "word"),
    [(["127.0.0.1", "10.0.0.1"], "private"), (["8.8.8.8"], "not_loopback"), ([], "no_address")],
)
def test_a_local_name_may_lead_to_loopback_only(answers: list[str], word: str) -> None:
    assert judged(["127.0.0.1", "::1"], loopback=True) == ("127.0.0.1", "::1")
    with pytest.raises(AddressRefused) as refused:
        judged(answers, loopback=True)
    assert refused.value.reason == word


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://a.example", Endpoint("https", "a.example", 443, "/")),
        ("https://a.example?x=1", Endpoint("https", "a.example", 443, "/?x=1")),
        (
            "HTTPS://A.Example:443/Hook/%2F?b=/@:",
            Endpoint("https", "a.example", 443, "/Hook/%2F?b=/@:"),
        ),
        ("https://xn--bcher-kva.example/", Endpoint("https", "xn--bcher-kva.example", 443, "/")),
        ("https://1.example-2.c3/", Endpoint("https", "1.example-2.c3", 443, "/")),
        ("https://localhost.example/", Endpoint("https", "localhost.example", 443, "/")),
    ],
)
@pytest.mark.parametrize("development", [False, True])
def test_an_https_url_comes_apart(url: str, endpoint: Endpoint, development: bool) -> None:
    assert check_url(url, allow_loopback_http=development) == endpoint
    assert endpoint.host_header == endpoint.host


REFUSED = [
    ("", "malformed"),
    ("a.example/hook", "malformed"),
    ("https:a.example", "malformed"),
    ("https:///hook", "host"),
    ("https://a.example /", "malformed"),
    (" https://a.example/", "malformed"),
    ("https://a.example/\n", "malformed"),
    ("https://a.exam\tple/", "malformed"),
    ("https://a.example\\@b.example/", "malformed"),
    ("https://bücher.example/", "malformed"),
    ("https://a.example/ü", "malformed"),
    ("https://a.example:/", "malformed"),
    ("https://a.example:0443/", "malformed"),
    ("https://a.example:44\uff13/", "malformed"),
    ("https://a.example:443:443/", "malformed"),
    ("https://[::1/", "malformed"),
    ("https://a.example/" + "x" * URL_CHARS_MAX, "too_long"),
    ("http://a.example/", "scheme"),
    ("ftp://a.example/", "scheme"),
    ("wss://a.example/", "scheme"),
    ("file://a.example/etc/passwd", "scheme"),
    ("https://user@a.example/", "userinfo"),
    ("https://user:pw@a.example/", "userinfo"),
    ("https://127.0.0.1@a.example/", "userinfo"),
    ("https://@a.example/", "userinfo"),
    ("https://a.example/#top", "fragment"),
    ("https://a.example#", "fragment"),
    ("https://a..example/", "host"),
    ("https://a.example./", "host"),
    ("https://-a.example/", "host"),
    ("https://a_b.example/", "host"),
    ("https://%61.example/", "host"),
    ("https://" + "a" * 64 + ".example/", "host"),
    ("https://" + "a." * 127 + "example/", "host"),
    ("https://[a.example]/", "host"),
    ("https://[::1%25lo]/", "address"),
    ("https://[fe80::1%lo]/", "address"),
    ("https://8.8.8.8/", "address"),
    ("https://[2606:4700::1111]/", "address"),
    ("https://[::ffff:8.8.8.8]/", "address"),
    ("https://[64:ff9b::808:808]/", "address"),
    ("https://[::ffff:127.0.0.1]/", "address"),
    ("https://127.1/", "address"),
    ("https://2130706433/", "address"),
    ("https://0x7f000001/", "address"),
    ("https://0x7f.0.0.0x1/", "address"),
    ("https://017700000001/", "address"),
    ("https://a.example.1/", "address"),
    ("https://0x/", "address"),
    ("https://a.example:8443/", "port"),
    ("https://a.example:80/", "port"),
    ("https://a.example:65536/", "port"),
]
LOCAL = [
    "http://127.0.0.1/",
    "http://127.8.9.10:8080/hook",
    "http://[::1]:8080/",
    "http://localhost:3000/",
    "http://app.localhost/",
    "https://localhost:8443/",
    "https://127.0.0.1/",
]


@pytest.mark.parametrize(("url", "reason"), REFUSED)
@pytest.mark.parametrize("development", [False, True])
def test_a_url_that_cannot_be_a_webhook_is_refused_with_its_word(
    url: str, reason: str, development: bool
) -> None:
    with pytest.raises(UrlRefused) as refused:
        check_url(url, allow_loopback_http=development)
    assert refused.value.reason == reason
    assert isinstance(refused.value, errors.InvalidCall)


@pytest.mark.parametrize("url", LOCAL)
def test_loopback_needs_the_development_switch(url: str) -> None:
    with pytest.raises(UrlRefused) as refused:
        check_url(url, allow_loopback_http=False)
    assert refused.value.reason == ("scheme" if url.startswith("http:") else "address")
    assert names_loopback(check_url(url, allow_loopback_http=True).host)


@pytest.mark.parametrize(
    ("url", "host_header"),
    [
        ("http://[0:0::1]:8080/", "[::1]:8080"),
        ("http://[::1]/", "[::1]"),
        ("http://localhost:80/", "localhost"),
        ("http://localhost:443/", "localhost:443"),
        ("https://localhost:80/", "localhost:80"),
    ],
)
def test_the_host_header_names_host_and_port_as_a_url_would(url: str, host_header: str) -> None:
    assert check_url(url, allow_loopback_http=True).host_header == host_header


def test_a_port_must_be_allowed() -> None:
    assert check_url("https://a.example:8443/", ports={443, 8443}).port == 8443
    with pytest.raises(UrlRefused):
        check_url("https://a.example/", ports={8443})


@given(special_v4 | special_v6, st.data())
def test_no_special_address_passes_as_a_url(address: Address, data: st.DataObject) -> None:
    if isinstance(address, IPv4Address):
        number = int(address)
        hosts = [str(address), str(number), hex(number), f"0{number:o}"]
        hosts += [f"[{wrap(number)}]" for wrap in WRAPPINGS.values()]
    else:
        hosts = [f"[{address.compressed}]", f"[{address.exploded.upper()}]"]
    with pytest.raises(UrlRefused):
        check_url(f"https://{data.draw(st.sampled_from(hosts))}/hook")


@given(st.text(max_size=80))
def test_no_text_brings_down_the_check(text: str) -> None:
    for url in (text, f"https://{text}", f"https://{text}/", f"https://a.example:{text}"):
        try:
            endpoint = check_url(url, allow_loopback_http=True)
        except UrlRefused:
            continue
        assert endpoint.scheme == "https" or names_loopback(endpoint.host)
