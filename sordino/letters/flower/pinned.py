"""The one version of Flower that letters go over. What is used of it is internal and has changed with every release."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from sordino.errors import BackendUnavailable, ConfigError

PINNED = "1.41.0"
_FIX = f"pip install 'sordino[flower]' in an environment of its own (flwr=={PINNED}), or use --via grpc"


def check_installed() -> None:
    """Refuses a Flower that is missing, or another one."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise BackendUnavailable(
            "letters over Flower need flwr, which is not installed here", fix=_FIX, code="missing-flower-extra"
        ) from None
    if found != PINNED:
        raise BackendUnavailable(
            f"letters over Flower need flwr {PINNED}, and {found} is installed",
            why="what they use are internal parts of Flower, which another version may have moved or opened",
            fix=_FIX,
            code="other-flower",
        )


def refuse_stock(address: str) -> ConfigError:
    """The refusal of a server that is not sordino's own, such as somebody's SuperLink."""
    return ConfigError(
        f"{address} is no server of sordino's",
        why="a stock SuperLink lets whoever reaches its port start a run, and every site executes the code of that "
        "run, with TLS and registered keys as without",
        fix="give the address that `sordino serve --via flower` shows; it needs no SuperLink of Flower's",
        code="stock-flower",
    )
