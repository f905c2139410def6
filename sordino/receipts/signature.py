"""Signature of a receipt by a site: Ed25519 over the bytes of privacy.json, in privacy.sig beside it; and the envelope
that general tools check, DSSE around an in-toto statement (github.com/secure-systems-lab/dsse,
in-toto.io/Statement/v1).

A seal shows that receipt and ledger belong together; a signature, that nobody else has made both anew.

The statement follows from the receipt alone: signing a receipt (`sign`) also signs its envelope, and anybody can put
the envelope together later.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sordino.accounting.events import Json
from sordino.accounting.facts import read_json
from sordino.errors import ConfigError
from sordino.ledger.files import atomic_write
from sordino.receipts.folder import RunFolder, no_receipt
from sordino.receipts.private import write


def generate(path: Path) -> Path:
    """Create a key pair: PATH for its owner alone, PATH.pub to be given away."""
    public = Path(f"{path}.pub")
    if path.exists() or public.exists():
        raise ConfigError(
            f"{path} already exists",
            why="a key that is overwritten can never sign anything again",
            fix="choose another file name",
            code="key-exists",
        )
    key = Ed25519PrivateKey.generate()
    pem, form = serialization.Encoding.PEM, serialization
    write(path, key.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption()), new=True)
    atomic_write(public, key.public_key().public_bytes(pem, form.PublicFormat.SubjectPublicKeyInfo))
    return public


def sign(folder: Path, path: Path) -> Path:
    """Sign the receipt as it stands; a later receipt needs a new signature."""
    key = private_key(path)
    public = key.public_key().public_bytes_raw().hex()
    receipt = _receipt(folder)
    signed = {
        "public_key": public,
        "signature": key.sign(receipt).hex(),
        SIGNED: key.sign(signed_bytes(receipt)).hex(),
    }
    place = RunFolder(folder).signature_file
    atomic_write(place, json.dumps(signed).encode())
    return place


def wrong(folder: Path, path: Path | None) -> list[str]:
    """Reasons why the signature of a receipt does not hold. With a key, there must be a signature by that key; without
    one, a signature that is there must be valid."""
    place = RunFolder(folder).signature_file
    if not place.is_file():
        return [] if path is None else ["there is no signature"]
    try:
        values = read_json(place.read_text(encoding="utf-8"))
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(values["public_key"]))
        if path is not None and key.public_bytes_raw() != public_key(path).public_bytes_raw():
            return ["the signature is by another key"]
        receipt = _receipt(folder)
        key.verify(bytes.fromhex(values["signature"]), receipt)
        if SIGNED in values:
            key.verify(bytes.fromhex(values[SIGNED]), signed_bytes(receipt))
    except InvalidSignature:
        return ["the signature is not of this receipt"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return [f"the signature cannot be read: {error}"]
    return []


def _receipt(folder: Path) -> bytes:
    try:
        return RunFolder(folder).receipt_file.read_bytes()
    except OSError as error:
        raise no_receipt(folder, error) from None


def private_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("it is a key of another kind")
    except (OSError, ValueError, TypeError) as error:
        raise _no_key(path, str(error)) from None
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("it is a key of another kind")
    except (OSError, ValueError, TypeError) as error:
        raise _no_key(path, str(error)) from None
    return key


def _no_key(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read as an Ed25519 key",
        why=why,
        fix="make a pair with `sordino identity new FILE`: FILE signs, and FILE.pub verifies",
        code="no-key",
    )


PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "urn:sordino:receipt:1"
SIGNED = "envelope"  # the name in privacy.sig of the signature over the envelope


def payload(receipt: bytes) -> bytes:
    """In-toto statement about a receipt, the payload of its DSSE envelope: digests of receipt and model, and the
    receipt's content. `receipt`: the bytes of privacy.json.
    """
    predicate, run = read_json(receipt.decode()), RunFolder(Path())
    digests = {run.receipt_file.name: hashlib.sha256(receipt).hexdigest()}
    if model := predicate.get("files", {}).get(run.model_file.name):
        digests[run.model_file.name] = model
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()


def signed_bytes(receipt: bytes) -> bytes:
    """The bytes that a signature of the envelope covers: DSSE's pre-authentication encoding of the statement."""
    body = payload(receipt)
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(body), body)


def envelope(folder: Path) -> str:
    """The envelope of a run's receipt, as JSON. `signatures` is empty where the receipt is not signed."""
    files = RunFolder(folder)
    signatures: list[Json] = []
    if files.signature_file.is_file():
        values = read_json(files.signature_file.read_text(encoding="utf-8"))
        if SIGNED in values:  # a signature of before there were envelopes has none
            sig = base64.b64encode(bytes.fromhex(values[SIGNED])).decode()
            signatures = [{"keyid": values["public_key"], "sig": sig}]
    body = base64.b64encode(payload(files.receipt_file.read_bytes())).decode()
    return json.dumps({"payloadType": PAYLOAD_TYPE, "payload": body, "signatures": signatures}, indent=2)
