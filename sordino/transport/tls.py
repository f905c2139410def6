"""One end of a connection: its address, and its TLS certificates: its own, and those of the CA that it trusts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from sordino.errors import ConfigError

SERVER = "server"  # the name of its files


class Pems(NamedTuple):
    """Contents of the three PEM files of `Certificates`."""

    chain: bytes
    key: bytes
    ca: bytes


@dataclass(frozen=True)
class Certificates:
    """Three PEM files: the end's own certificate with the intermediate ones up to the CA, its private key, and the CA's
    certificates.
    """

    chain: Path
    key: Path
    ca: Path

    @property
    def name(self) -> str:
        """Common name in the end's own certificate."""
        names = _certificates(self.chain)[0].subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if len(names) != 1:
            raise _wrong(self.chain, f"it has {len(names)} common names, and one is needed", "certificate-name")
        return str(names[0].value)

    @property
    def hosts(self) -> list[str]:
        """Host names and addresses in the end's own certificate."""
        try:
            found = _certificates(self.chain)[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return []
        addresses = (str(one) for one in found.get_values_for_type(x509.IPAddress))
        return [*found.get_values_for_type(x509.DNSName), *addresses]

    def read(self) -> Pems:
        """Contents of the files; refused unless they belong together and every certificate is valid now."""
        chain, roots = _certificates(self.chain), _certificates(self.ca)
        own, now = chain[0], datetime.now(UTC)
        if self._public_of_key() != _public(own):
            raise _wrong(self.key, f"it is not the key of {self.chain}", "wrong-key")
        for one in _way(own, chain[1:], roots, self.chain):
            if now < one.not_valid_before_utc:
                raise _wrong(
                    self.chain, f"it holds from {_minute(one.not_valid_before_utc)}{_here(now)}", "not-yet-valid"
                )
            if now > one.not_valid_after_utc:
                raise _wrong(self.chain, f"it held until {_minute(one.not_valid_after_utc)}{_here(now)}", "expired")
        return Pems(*(path.read_bytes() for path in (self.chain, self.key, self.ca)))

    def _public_of_key(self) -> bytes:
        data = _bytes(self.key)
        try:
            key = serialization.load_pem_private_key(data, None).public_key()
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a password
            raise _wrong(
                self.key, f"it is not a private key that can be read without a password: {error}", "no-key"
            ) from None
        return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def of_site(folder: Path, name: str) -> Certificates:
    """Paths of a site's files in the folder that it was given."""
    return Certificates(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


def of_server(folder: Path) -> Certificates:
    """The server's files in the folder of a CA."""
    return of_site(folder, SERVER)


def _minute(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"


def _here(now: datetime) -> str:
    return f", and the clock of this machine says {_minute(now)}: is it right?"


def _way(
    own: x509.Certificate, between: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], path: Path
) -> list[x509.Certificate]:
    """Chain of certificates from the end's own one to a root."""
    way = [own]
    while way[-1] not in roots:
        above = next((one for one in (*roots, *between) if one not in way and _signed(way[-1], one)), None)
        if above is None:
            raise _wrong(path, "it is not signed by the given CA", "wrong-ca")
        way.append(above)
    return way


def _signed(one: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        one.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _public(one: x509.Certificate) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return one.public_key().public_bytes(serialization.Encoding.DER, form)


def _certificates(path: Path) -> list[x509.Certificate]:
    data = _bytes(path)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise _wrong(path, f"it holds no certificate that can be read: {error}", "no-certificate") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _wrong(path, error.strerror or str(error), "no-file") from None


def _wrong(path: Path, why: str, code: str) -> ConfigError:
    return ConfigError(
        f"{path} cannot be used for connections",
        why=why[:300],
        fix="ask the operator of the CA for a certificate; for a trial `sordino certificates DIR` makes them",
        code=code,
    )


def host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is not an address", fix="write HOST:PORT, as in 127.0.0.1:0", code="no-address")
    return host.strip("[]"), int(port)
