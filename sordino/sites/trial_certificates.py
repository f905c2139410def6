"""Certificate authority for a trial: one certificate for the server and one for each site. Where an institution has a
CA, its certificates are used instead.

    DIR/ca.pem      CA certificate, which all ends trust
    DIR/ca.key      key of the CA: with it anybody can be let in, so it stays where it was made
    DIR/server.pem  DIR/server.key
    DIR/NAME/       what the site NAME gets: ca.pem, NAME.pem, NAME.key
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sordino.errors import COUNT, ConfigError, check_range
from sordino.ledger.files import atomic_write
from sordino.receipts import private
from sordino.sites.identity import check_name
from sordino.transport.tls import SERVER, Certificates

CA = "ca"
SKEW = timedelta(minutes=5)  # by which the clocks of two machines may differ


class Signed(NamedTuple):
    """Certificate and its key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


class Times(NamedTuple):
    """Validity of a certificate."""

    begin: datetime
    end: datetime

    @classmethod
    def of(cls, days: int) -> Times:
        check_range("days", days, COUNT, "not-positive", fix="say for how many days the certificates hold")
        now = datetime.now(UTC).replace(microsecond=0)
        return cls(now - SKEW, now + timedelta(days=days))


def make(folder: Path, server_names: Sequence[str], sites: Sequence[str], days: int) -> None:
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
