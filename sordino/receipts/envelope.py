"""Envelope of a receipt that general tools check: DSSE around an in-toto statement (github.com/secure-systems-lab/dsse,
in-toto.io/Statement/v1). Its subjects are the receipt and the model by their SHA-256, its predicate is the receipt.

The statement follows from the receipt alone, so whoever signs a receipt signs its envelope with it (`signature.sign`),
and anybody can put the envelope together later.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from sordino.accounting.events import Json
from sordino.receipts.folder import RunFolder

PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "urn:sordino:receipt:1"
SIGNED = "envelope"  # the name in privacy.sig of the signature over the envelope


def payload(receipt: bytes) -> bytes:
    """The statement about a receipt, given the bytes of privacy.json."""
    told, run = json.loads(receipt), RunFolder(Path())
    digests = {run.receipt_file.name: hashlib.sha256(receipt).hexdigest()}
    if model := told.get("files", {}).get(run.model_file.name):
        digests[run.model_file.name] = model
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": told,
    }
    return json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()


def signed_bytes(receipt: bytes) -> bytes:
    """The bytes that a signature of the envelope covers: DSSE's pre-authentication encoding of the statement."""
    said = payload(receipt)
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(said), said)


def envelope(folder: Path) -> str:
    """The envelope of a run's receipt, as JSON. `signatures` is empty where the receipt is not signed."""
    mine = RunFolder(folder)
    signatures: list[Json] = []
    if mine.signature_file.is_file():
        told = json.loads(mine.signature_file.read_text(encoding="utf-8"))
        if SIGNED in told:  # a signature of before there were envelopes has none
            sig = base64.b64encode(bytes.fromhex(told[SIGNED])).decode()
            signatures = [{"keyid": told["public_key"], "sig": sig}]
    said = base64.b64encode(payload(mine.receipt_file.read_bytes())).decode()
    return json.dumps({"payloadType": PAYLOAD_TYPE, "payload": said, "signatures": signatures}, indent=2)
