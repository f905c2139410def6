"""Certificates of a trial: who gets which, what they may be used for, and which ones are not taken."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey, generate_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from sordino.errors import ConfigError
from sordino.sites.identity import Signed, Times, add, authority, make_certificates, pems, signed
from sordino.transport.tls import Certificates, of_server, of_site
from tests.helpers.lines import DAY, HOLDS, NOW, Papers, papers, stranger


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers(tmp_path_factory.mktemp("trial") / "ca", ["a", "hospital-b.example"])


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_each_gets_what_is_its_own_and_nobody_else_reads_a_key(trial: Papers) -> None:
    found = {path.relative_to(trial.folder).as_posix() for path in trial.folder.rglob("*") if path.is_file()}
    sites = {
        f"{name}/{file}" for name in ("a", "hospital-b.example") for file in (f"{name}.pem", f"{name}.key", "ca.pem")
    }
    assert found == {"ca.pem", "ca.key", "server.pem", "server.key"} | sites
    for path in trial.folder.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for own, name in ((trial.server, "server"), (trial.of("a"), "a")):
        own.read()
        assert own.name == name


def test_what_a_certificate_is_for(trial: Papers) -> None:
    ca = read(trial.folder / "ca.pem")
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value) == (True, x509.BasicConstraints(ca=True, path_length=0))
    for own, purpose in (
        (trial.server, ExtendedKeyUsageOID.SERVER_AUTH),
        (trial.of("a"), ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        one = read(own.chain)
        key = one.public_key()
        assert isinstance(key, EllipticCurvePublicKey)
        assert isinstance(key.curve, SECP256R1)
        assert list(one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
        assert not one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = read(trial.server.chain).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_one_more_site_later_and_no_longer_than_the_ca(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["host"], ["a"], 3)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    add(tmp_path, ["b"], 300)
    of_site(tmp_path / "b", "b").read()
    end = read(tmp_path / "b" / "b.pem").not_valid_after_utc
    assert end == read(tmp_path / "ca.pem").not_valid_after_utc
    assert abs(end - datetime.now(UTC) - timedelta(days=3)) < timedelta(minutes=5)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("attempt", "code"),
    [
        (lambda at: make_certificates(at, ["host"], [], 3), "certificate-exists"),
        (lambda at: add(at, ["a"], 3), "certificate-exists"),
        (lambda at: add(at, ["b", "b"], 3), "same-name"),
        (lambda at: add(at, ["../b"], 3), "no-name"),
        (lambda at: add(at, ["b"], 0), "not-positive"),
        (lambda at: add(at / "a", ["b"], 3), "no-file"),
        (lambda at: make_certificates(at / "new", [], ["b"], 3), "no-server"),
        (lambda at: make_certificates(at / "new", ["höst"], ["b"], 3), "no-host"),
    ],
)
def test_nothing_is_overwritten_and_nothing_half_made(
    attempt: Callable[[Path], None], code: str, tmp_path: Path
) -> None:
    make_certificates(tmp_path, ["host"], ["a"], 3)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as refusal:
        attempt(tmp_path)
    assert refusal.value.code == code
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# reading --------------------------------------------------------------------------------------------------------------


def files(folder: Path, chain: bytes, key: bytes, ca: bytes) -> Certificates:
    made = Certificates(folder / "x.pem", folder / "x.key", folder / "roots.pem")
    for path, data in zip((made.chain, made.key, made.ca), (chain, key, ca), strict=True):
        path.write_bytes(data)
    return made


def dated(trial: Papers, times: Times) -> tuple[bytes, bytes, bytes]:
    return (*pems(trial.another("a", times)), pems(trial.ca)[0])


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda t: dated(t, Times(NOW - 2 * DAY, NOW - DAY)), "expired"),
        (lambda t: dated(t, Times(NOW + DAY, NOW + 2 * DAY)), "not-yet-valid"),
        (lambda t: (dated(t, HOLDS)[0], *dated(t, HOLDS)[1:]), "wrong-key"),
        (lambda t: (*pems(t.another("a", by=stranger())), pems(t.ca)[0]), "wrong-ca"),
        (lambda t: (*pems(t.another("a")), b"nothing"), "no-certificate"),
        (lambda t: (b"", pems(t.ca)[1], pems(t.ca)[0]), "no-certificate"),
        (lambda t: (pems(t.another("a"))[0], b"-----BEGIN", pems(t.ca)[0]), "no-key"),
    ],
)
def test_what_would_not_be_taken_is_said_before(
    made: Callable[[Papers], tuple[bytes, bytes, bytes]], code: str, trial: Papers, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refusal:
        files(tmp_path, *made(trial)).read()
    assert refusal.value.code == code
    assert refusal.value.fix
    assert ("the clock of this machine says" in refusal.value.why) == (code in ("expired", "not-yet-valid"))


def test_a_file_that_is_missing_is_named(trial: Papers, tmp_path: Path) -> None:
    for field in ("chain", "key", "ca"):
        with pytest.raises(ConfigError, match="gone") as refusal:
            replace(trial.of("a"), **{field: tmp_path / "gone"}).read()
        assert refusal.value.code == "no-file"


def test_certificates_between_ours_and_the_ca_stand_behind_it(trial: Papers, tmp_path: Path) -> None:
    """As an institution's CA makes them; without the one between, it is not known who signed."""
    root = authority("root", HOLDS)
    between = _below(root)
    own, key = pems(signed(between, "a", HOLDS))
    files(tmp_path, own + pems(between)[0], key, pems(root)[0]).read()
    with pytest.raises(ConfigError) as refusal:
        files(tmp_path, own, key, pems(root)[0]).read()
    assert refusal.value.code == "wrong-ca"


def _below(root: Signed) -> Signed:
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "between")])
    built = (
        x509.CertificateBuilder(root.certificate.subject, name, key.public_key(), 7, *HOLDS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(root.key, hashes.SHA256())
    )
    return Signed(built, key)


def test_the_servers_files_are_found(trial: Papers) -> None:
    assert of_server(trial.folder) == trial.server
