"""Host header and API key."""

import base64

import pytest

from debertakit.serving.access import Access


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "LOCALHOST.", "127.0.0.1:80", "[::1]:8000", "10.1.2.3", "api.example.org:1"]
)
def test_hosts_that_are_allowed(host):
    assert Access(hosts=("API.example.org",)).allows_host(host)


WRONG = ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost:x", "a@localhost"]
WRONG += ["localhost/a", "[::1", "localhost#a", "[evil]"]


@pytest.mark.parametrize("host", WRONG)
def test_hosts_that_are_not(host):
    assert not Access(hosts=("api.example.org",)).allows_host(host)


def test_every_host():
    assert Access(hosts=("*",)).allows_host("evil.example")


def test_blanks_around_a_key_are_removed():
    """A key from a file ends with a line break, which no client can send in a header."""
    access = Access(" secret\n")
    assert access.api_key == "secret"
    assert access.allows_key({b"x-api-key": b"secret"})


@pytest.mark.parametrize(("key", "said"), [("", "empty"), (" \n", "empty"), ("a\nb", "ASCII"), ("schlüssel", "ASCII")])
def test_keys_that_cannot_be(key, said):
    with pytest.raises(ValueError, match=said):
        Access(key)


def test_public_paths_begin_with_a_slash():
    with pytest.raises(ValueError, match="'metrics' must start with /"):
        Access("secret", public=("metrics",))


def basic(password):
    return b"Basic " + base64.b64encode(b"me:" + password)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, False),
        ({b"x-api-key": b"wrong"}, False),
        ({b"x-api-key": b"secret"}, True),
        ({b"authorization": b"Bearer secret"}, True),
        ({b"authorization": b"bearer secret"}, True),
        ({b"authorization": b"Bearer wrong"}, False),
        ({b"authorization": b"secret"}, False),
        ({b"authorization": basic(b"secret")}, True),
        ({b"authorization": basic(b"wrong")}, False),
        ({b"authorization": b"Basic \xff"}, False),
        ({b"authorization": basic(b"secret"), b"sec-fetch-site": b"same-origin"}, True),
        ({b"authorization": basic(b"secret"), b"sec-fetch-site": b"cross-site"}, False),
        ({b"x-api-key": b"\xff\xfe"}, False),
    ],
)
def test_keys(headers, allowed):
    assert Access("secret").allows_key(headers) is allowed
    assert Access().allows_key(headers)
