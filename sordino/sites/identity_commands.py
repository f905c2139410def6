"""`sordino identity` and `sordino certificates`: keys, the list of allowed sites, certificates for a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.cli import CommandGroup, Json, say

app = CommandGroup(help="Keys that sign messages, and the list of trusted keys.", no_args_is_help=True)

List = Annotated[Path, typer.Option("--list", help="List of trusted sites, a TOML file.")]
DAYS = 365


@app.command()
def new(file: Annotated[Path, typer.Argument(help="File for the private key; FILE.pub is the public one.")]) -> None:
    """Make the key pair with which a server or a site signs its messages."""
    from sordino.receipts.signature import generate, public_key
    from sordino.sites.identity import fingerprint

    public = generate(file)
    typer.echo(
        f"{file}: keep it to yourself\n{public}: give it to those who should believe you\n"
        f"fingerprint: {fingerprint(public_key(public))}"
    )


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="Key file: FILE or FILE.pub.")],
    as_json: Json = False,
) -> None:
    """Print a public key and its fingerprint, which two people compare on the phone."""
    from sordino.receipts.signature import private_key, public_key
    from sordino.sites.identity import fingerprint

    key = public_key(file) if file.suffix == ".pub" else private_key(file).public_key()
    facts = {
        "name": file.stem if file.suffix == ".pub" else file.name,
        "public key": key.public_bytes_raw().hex(),
        "fingerprint": fingerprint(key),
    }
    if as_json:
        say({name.replace(" ", "_"): fact for name, fact in facts.items()})
    else:
        typer.echo("\n".join(f"{name}: {fact}" for name, fact in facts.items()))


@app.command("allow")
def allow_(
    name: Annotated[str, typer.Argument(help="Name of the site.")],
    key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="Public key of the site.")],
    place: List,
) -> None:
    """Put a site on the list. Compare the fingerprint with its owner first."""
    from sordino.receipts.signature import public_key
    from sordino.sites.identity import allow, fingerprint

    public = public_key(key)
    allow(place, name, public)
    typer.echo(f"{name} is on {place}\nfingerprint: {fingerprint(public)}")


@app.command("revoke")
def revoke_(name: Annotated[str, typer.Argument(help="Name of the site.")], place: List) -> None:
    """Take a site off the list: no server trusts its key any more, running ones included."""
    from sordino.sites.identity import revoke

    revoke(place, name)
    typer.echo(f"{name} is off {place}; its key stays there as revoked")


def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the CA.")],
    server: Annotated[
        list[str] | None, typer.Option(help="Host name or address of the server; repeatable. Makes a new CA.")
    ] = None,
    site: Annotated[list[str] | None, typer.Option(help="Name of a site; repeatable.")] = None,
    days: Annotated[int, typer.Option(help="Validity in days.")] = DAYS,
) -> None:
    """Make certificates for a trial: a CA, one for the server, one for each site. Without --server, more sites."""
    from sordino.sites.identity import add, make_certificates

    if server:
        make_certificates(folder, server, site or [], days)
        typer.echo(f"{folder}/ca.key: lets anybody in; keep it where it is\n{folder}/server.pem, .key: for the server")
    elif site:
        add(folder, site, days)
    else:
        raise typer.BadParameter("say --server HOST, --site NAME, or both")
    for name in site or []:
        typer.echo(f"{folder / name}: for {name}, over a channel that nobody else reads")
