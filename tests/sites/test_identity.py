"""Keys that sign messages, and the list of those that are believed: what stands there at this moment, and never again a
key that was revoked.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sordino.errors import ConfigError, WireError
from sordino.sites.identity import AllowList, allow, check_name, fingerprint, revoke
from sordino.transport.message import Signer

A, B, C = (Ed25519PrivateKey.generate() for _ in range(3))
DAY = date(2026, 11, 22)


def public(key: Ed25519PrivateKey) -> Ed25519PublicKey:
    return key.public_key()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A list with a and b on it."""
    allow(tmp_path / "sites.toml", "a", public(A))
    allow(tmp_path / "sites.toml", "b", public(B))
    return tmp_path / "sites.toml"


def test_a_list_says_what_its_file_says_at_this_moment(place: Path) -> None:
    known = AllowList(place)
    assert dict(known) == {"a": public(A), "b": public(B)}
    allow(place, "c", public(C))
    assert set(known) == {"a", "b", "c"}
    revoke(place, "a", DAY)
    assert ("a" in known, len(known)) == (False, 2)
    with pytest.raises(KeyError):
        known["a"]


def test_a_message_is_believed_as_long_as_its_key_is(place: Path) -> None:
    server = Signer("server", "run", known=AllowList(place))
    message = Signer("a", "run", key=A).write("server", 0, {"do": "done"})
    assert server.read(message).head.sender == "a"
    revoke(place, "a", DAY)
    with pytest.raises(WireError) as refusal:
        server.read(message)
    assert refusal.value.code == "unknown-sender"


def test_people_may_write_the_file_too(tmp_path: Path) -> None:
    raw = public(A).public_bytes_raw()
    (tmp_path / "x.toml").write_text(f'# ours\n[sites]\nhospital-a = "{base64.b64encode(raw).decode()}"\n')
    assert AllowList(tmp_path / "x.toml")["hospital-a"] == public(A)
    revoke(tmp_path / "x.toml", "hospital-a", DAY)
    assert f'key = "{raw.hex()}"' in (tmp_path / "x.toml").read_text()
    assert "2026-11-22" in (tmp_path / "x.toml").read_text()


def test_a_revoked_site_may_come_back_with_another_key(place: Path) -> None:
    revoke(place, "a", DAY)
    allow(place, "a", public(C))
    revoke(place, "a", DAY)
    assert set(AllowList(place)) == {"b"}
    for key in (A, C):  # both are remembered
        with pytest.raises(ConfigError, match="2026-11-22"):
            allow(place, "d", public(key))


@pytest.mark.parametrize(
    ("attempt", "code"),
    [
        (lambda at: allow(at, "a", public(C)), "name-taken"),
        (lambda at: allow(at, "c", public(A)), "same-key"),
        (lambda at: allow(at, "old", public(C)), "revoked-key"),
        (lambda at: allow(at, "somebody else", public(A)), "no-name"),
        (lambda at: allow(at, "", public(A)), "no-name"),
        (lambda at: revoke(at, "old"), "unknown-name"),
        (lambda at: revoke(at.with_name("none.toml"), "a"), "no-list"),
    ],
)
def test_what_a_list_does_not_take(attempt: Callable[[Path], None], code: str, place: Path) -> None:
    allow(place, "old", public(C))
    revoke(place, "old")
    before = place.read_bytes()
    with pytest.raises(ConfigError) as refusal:
        attempt(place)
    assert refusal.value.code == code
    assert place.read_bytes() == before
    allow(place, "a", public(A))  # what is there already is no mistake
    assert set(AllowList(place)) == {"a", "b"}


HEX = {name: public(key).public_bytes_raw().hex() for name, key in (("a", A), ("b", B))}
DAMAGED = {
    "no TOML": "[sites",
    "no key": '[sites]\na = "x"',
    "half a key": f'[sites]\na = "{HEX["a"][:32]}"',
    "a number": "[sites]\na = 3",
    "an unknown word": f'[site]\na = "{HEX["a"]}"',
    "a name that is none": f'[sites]\n"../a" = "{HEX["a"]}"',
    "one key twice": f'[sites]\na = "{HEX["a"]}"\nb = "{HEX["a"].upper()}"',
    "a revoked key": f'[sites]\na = "{HEX["a"]}"\n[revoked]\nz = [{{ key = "{HEX["a"]}", date = 2026-01-01 }}]',
    "a revoked key without a date": f'[revoked]\nz = [{{ key = "{HEX["a"]}" }}]',
}


@pytest.mark.parametrize("why", DAMAGED)
def test_a_list_that_cannot_be_read_allows_nobody(why: str, place: Path) -> None:
    known = AllowList(place)
    assert "a" in known
    place.write_text(DAMAGED[why])
    for ask in (lambda: "a" in known, lambda: known["a"], lambda: AllowList(place)):
        with pytest.raises(ConfigError) as refusal:
            ask()
        assert refusal.value.code == "no-list"
    place.unlink()
    with pytest.raises(ConfigError):
        len(known)


def test_a_fingerprint_is_read_aloud_in_groups_and_is_that_of_the_key() -> None:
    groups = fingerprint(public(A)).split(" ")
    assert [len(group) for group in groups] == [4] * 16
    assert "".join(groups) == hashlib.sha256(public(A).public_bytes_raw()).hexdigest()
    assert fingerprint(public(A)) != fingerprint(public(B))


@pytest.mark.parametrize("name", ["a", "hospital-a", "0_x.y", "x" * 63])
def test_names_that_are_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "a/b", "a b", "a\n", "ä", "x" * 64])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_name(name)
    assert refusal.value.code == "no-name"
