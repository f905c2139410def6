"""`sordino identity` and `sordino certificates`: a trial is set up by hand, and mistakes are said in one screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sordino.sites.identity import AllowList
from sordino.transport.tls import of_server, of_site
from tests.helpers.command_line import Said

Cli = Callable[..., Said]


def test_a_key_is_made_shown_allowed_and_revoked(cli: Cli, tmp_path: Path) -> None:
    key, place = tmp_path / "hospital-a", tmp_path / "sites.toml"
    said = cli("identity", "new", key)
    assert said.code == 0
    shown = cli("identity", "show", key)
    assert shown == cli("identity", "show", f"{key}.pub")
    assert "name: hospital-a" in shown.out
    fingerprint = shown.out.splitlines()[-1]
    assert fingerprint in said.out

    allowed = cli("identity", "allow", "hospital-a", f"{key}.pub", "--list", place)
    assert allowed.code == 0
    assert fingerprint in allowed.out
    known = AllowList(place)
    assert known["hospital-a"].public_bytes_raw().hex() in shown.out
    assert cli("identity", "revoke", "hospital-a", "--list", place).code == 0
    assert len(known) == 0
    again = cli("identity", "allow", "hospital-a", f"{key}.pub", "--list", place)
    assert (again.code, len(known)) == (2, 0)
    assert "revoked-key" in again.err


def test_certificates_are_made_and_more_of_them_later(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "ca"
    arguments = ("certificates", folder, "--server", "localhost", "--server", "127.0.0.1", "--site", "a", "--days", 7)
    assert cli(*arguments).code == 0
    assert cli("certificates", folder, "--site", "b", "--site", "c").code == 0
    for own in (of_server(folder), *(of_site(folder / name, name) for name in "abc")):
        own.read()
    again = cli(*arguments)
    assert again.code == 2
    assert "certificate-exists" in again.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("certificates", "ca"),
        ("certificates", "ca", "--site", "a"),
        ("certificates", "ca", "--server", "h", "--days", "99999999"),
        ("identity", "show", "none"),
        ("identity", "allow", "a", "none.pub", "--list", "sites.toml"),
        ("identity", "revoke", "a", "--list", "sites.toml"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_nothing(
    arguments: tuple[str, ...], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli(*arguments)
    assert (said.code, said.out) == (2, "")
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []
