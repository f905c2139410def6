"""Signing keys (Ed25519) of sites and server, and the list of public keys whose signatures are accepted.

    [sites]
    hospital-a = "<public key: 64 hexadecimal digits, or base64>"

    [revoked]
    hospital-b = [{ key = "<public key>", date = 2026-11-22 }]

A key that was revoked is on the list for ever, so that nobody allows it again by mistake, under this name or another.

For a trial this module also makes certificates: a certificate authority (CA), and one certificate for the server and
one for each site. Where an institution has a CA, its certificates are used instead.

    DIR/ca.pem      CA certificate, which all ends trust
    DIR/ca.key      key of the CA: with it anybody can be let in, so it stays where it was made
    DIR/server.pem  DIR/server.key
    DIR/NAME/       what the site NAME gets: ca.pem, NAME.pem, NAME.key
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, NamedTuple

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from sordino.errors import ConfigError, Range, check_range
from sordino.ledger.files import atomic_write
from sordino.receipts import private
from sordino.transport.tls import SERVER, Certificates

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
_NAME: TypeAdapter[str] = TypeAdapter(Name)
LENGTH = 32  # bytes of a public key
GROUP = 4  # characters that are read aloud together
TITLE = (
    "# Whose messages are believed. `sordino identity allow` and `revoke` write this file, and drop other comments.\n\n"
)


def check_name(name: str) -> str:
    try:
        return _NAME.validate_python(name)
    except ValidationError:
        raise ConfigError(
            f"{name!r} is not a site's name",
            why="it becomes the name of a file and of a certificate",
            fix="use at most 63 letters, digits, dots, dashes and underscores, the first one a letter or a digit",
            code="no-name",
        ) from None


def fingerprint(key: Ed25519PublicKey) -> str:
    """SHA-256 of a public key in groups of four, which two people compare on the phone."""
    text = hashlib.sha256(key.public_bytes_raw()).hexdigest()
    return " ".join(text[i : i + GROUP] for i in range(0, len(text), GROUP))


@dataclass(frozen=True)
class Revoked:
    """Key whose signatures are no longer accepted."""

    key: str
    date: date


@dataclass(frozen=True)
class KeysFile:
    """Contents of the list of allowed sites."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    sites: dict[Name, str] = field(default_factory=dict)
    revoked: dict[str, list[Revoked]] = field(default_factory=dict)

    def keys_of_sites(self) -> dict[str, Ed25519PublicKey]:
        """Public keys of the allowed sites; a list with a revoked or a repeated key is refused."""
        found = {name: key_of(text) for name, text in self.sites.items()}
        gone = {key_of(old.key).public_bytes_raw() for several in self.revoked.values() for old in several}
        for name, key in found.items():
            if key.public_bytes_raw() in gone:
                raise ValueError(f"the key of {name} was revoked")
        if len({key.public_bytes_raw() for key in found.values()}) < len(found):
            raise ValueError("two sites have the same key, so one could sign as the other")
        return found


_FILE: TypeAdapter[KeysFile] = TypeAdapter(KeysFile)


class AllowList(Mapping[str, Ed25519PublicKey]):
    """Public keys of the allowed sites, as their file stands at each look-up. An unreadable file allows nobody."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[tuple[int, int, int], dict[str, Ed25519PublicKey]] | None = None
        self._now()

    def __getitem__(self, name: str) -> Ed25519PublicKey:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> dict[str, Ed25519PublicKey]:
        try:
            about = self._path.stat()
        except OSError as error:
            raise _unreadable(self._path, str(error)) from None
        stamp = about.st_mtime_ns, about.st_size, about.st_ino
        if self._read is None or self._read[0] != stamp:
            self._read = None
            self._read = stamp, _opened(self._path)[1]
        return self._read[1]


def allow(path: Path, name: str, key: Ed25519PublicKey) -> None:
    """Put a site on a list; a new file is written where there is none."""
    check_name(name)
    listed, keys = _opened(path) if path.exists() else (KeysFile(), {})
    if name in keys and keys[name] != key:
        raise ConfigError(
            f"{name} is on the list with another key",
            fix=f"`sordino identity revoke {name}` first, if the other key must not be trusted any more",
            code="name-taken",
        )
    for old_name, several in listed.revoked.items():
        for old in several:
            if key_of(old.key) == key:
                raise ConfigError(
                    f"this key was revoked on {old.date} as that of {old_name}",
                    why="anyone with a copy of it could sign messages again",
                    fix=f"have {name} make a new one with `sordino identity new`",
                    code="revoked-key",
                )
    same = next((other for other, one in keys.items() if one == key and other != name), None)
    if same is not None:
        raise ConfigError(
            f"{same} has the same key",
            why="one of the two could sign as the other",
            fix="each site makes a key of its own with `sordino identity new`",
            code="same-key",
        )
    _store(path, KeysFile({**listed.sites, name: key.public_bytes_raw().hex()}, listed.revoked))


def revoke(path: Path, name: str, today: date | None = None) -> None:
    """Take a site off a list, and remember its key and the day."""
    listed, keys = _opened(path)
    if name not in keys:
        raise ConfigError(f"{name} is not on the list {path}", fix=f"on it are: {', '.join(keys)}", code="unknown-name")
    gone = Revoked(keys[name].public_bytes_raw().hex(), today or datetime.now(UTC).date())
    left = {other: text for other, text in listed.sites.items() if other != name}
    _store(path, KeysFile(left, {**listed.revoked, name: [*listed.revoked.get(name, []), gone]}))


def key_of(text: str) -> Ed25519PublicKey:
    """Public key from hexadecimal digits or base64."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))
    raw = base64.b64decode(text, validate=True)
    if len(raw) != LENGTH:
        raise ValueError(f"a public key has {LENGTH} bytes, {text[:80]!r} stands for {len(raw)}")
    return Ed25519PublicKey.from_public_bytes(raw)


def _opened(path: Path) -> tuple[KeysFile, dict[str, Ed25519PublicKey]]:
    try:
        listed = _FILE.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
        return listed, listed.keys_of_sites()
    except (OSError, ValueError, ValidationError, RecursionError) as error:
        raise _unreadable(path, str(error)) from None


def _store(path: Path, listed: KeysFile) -> None:
    values = {
        "sites": listed.sites,
        "revoked": {
            name: [{"key": old.key, "date": old.date} for old in several] for name, several in listed.revoked.items()
        },
    }
    atomic_write(path, (TITLE + tomli_w.dumps(values)).encode())


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is not a readable list of sites",
        why=why[:300],
        fix="`sordino identity allow NAME KEY.pub --list FILE` makes one; put a damaged one right by hand",
        code="no-list",
    )


CA = "ca"
SKEW = timedelta(minutes=5)  # by which the clocks of two machines may differ


class Signed(NamedTuple):
    """Certificate and its key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


LIFETIME = Range(least=1, most=36_500, whole=True)  # a hundred years, in days


class Times(NamedTuple):
    """Validity of a certificate."""

    begin: datetime
    end: datetime

    @classmethod
    def of(cls, days: int) -> Times:
        check_range("days", days, LIFETIME, "not-positive", fix="say for how many days the certificates hold")
        now = datetime.now(UTC).replace(microsecond=0)
        return cls(now - SKEW, now + timedelta(days=days))


def make_certificates(folder: Path, server_names: Sequence[str], sites: Sequence[str], days: int) -> None:
    """Make a CA in a new folder, and certificates for a server that is reached under these names and for the sites."""
    if not server_names:
        raise ConfigError(
            "the server has no name", fix="give the host name or address by which sites reach it", code="no-server"
        )
    _check_sites(folder, sites)
    _check_new(*(folder / name for name in ("ca.pem", "ca.key", "server.pem", "server.key")))
    times = Times.of(days)
    ca = authority("sordino trial CA", times)
    server = signed(ca, SERVER, times, server_names)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, CA, ca)
    _write(folder, SERVER, server)
    _write_sites(folder, ca, sites, times)


def add(folder: Path, sites: Sequence[str], days: int) -> None:
    """Make certificates for more sites, with the CA in the folder. They are not valid for longer than the CA."""
    _check_sites(folder, sites)
    made = Certificates(folder / "ca.pem", folder / "ca.key", folder / "ca.pem").read()
    key = serialization.load_pem_private_key(made.key, None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError(f"{folder} holds no CA that was made here", fix="choose another folder", code="no-ca")
    ca, times = Signed(x509.load_pem_x509_certificate(made.ca), key), Times.of(days)
    _write_sites(folder, ca, sites, Times(times.begin, min(times.end, ca.certificate.not_valid_after_utc)))


def authority(name: str, times: Times) -> Signed:
    """Make a CA, signed by itself, that may sign only certificates of servers and sites."""
    key = generate_private_key(SECP256R1())
    built = (
        _builder(name, key, times)
        .issuer_name(_called(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Signed(built.sign(key, hashes.SHA256()), key)


def signed(ca: Signed, name: str, times: Times, hosts: Sequence[str] = ()) -> Signed:
    """Make a certificate signed by a CA: for a server that is reached at these hosts, or for a site where there are
    none.
    """
    key = generate_private_key(SECP256R1())
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    built = (
        _builder(name, key, times)
        .issuer_name(ca.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts or [name]]), critical=False)
    )
    return Signed(built.sign(ca.key, hashes.SHA256()), key)


def pems(one: Signed) -> tuple[bytes, bytes]:
    """Certificate and key in PEM format."""
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return one.certificate.public_bytes(pem), one.key.private_bytes(pem, form, serialization.NoEncryption())


def _builder(name: str, key: EllipticCurvePrivateKey, times: Times) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_called(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(times.begin)
        .not_valid_after(times.end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        raise ConfigError(
            f"{name!r} is not a host name", fix="write it as sites will, without a port", code="no-host"
        ) from None


def _check_sites(folder: Path, sites: Sequence[str]) -> None:
    for name in sites:
        check_name(name)
    if len(set(sites)) < len(sites):
        raise ConfigError("two sites have the same name", fix="give each a name of its own", code="same-name")
    _check_new(*(folder / name for name in sites))


def _check_new(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise ConfigError(
                f"{path} already exists",
                why="a certificate that may be in use would be lost",
                fix="choose another folder; without --server, sites are added to the CA that is there",
                code="certificate-exists",
            )


def _write_sites(folder: Path, ca: Signed, sites: Sequence[str], times: Times) -> None:
    for name in sites:
        (folder / name).mkdir(mode=0o700)
        _write(folder / name, name, signed(ca, name, times))
        atomic_write(folder / name / "ca.pem", pems(ca)[0])


def _write(folder: Path, name: str, one: Signed) -> None:
    certificate, key = pems(one)
    private.write(folder / f"{name}.key", key, new=True)
    atomic_write(folder / f"{name}.pem", certificate)
