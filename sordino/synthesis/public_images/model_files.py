"""Pretrained models: their folders on disk, without files that could run code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from sordino.errors import ConfigError

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
WHOLE = 1 << 20  # bytes up to which a file's content identifies a model
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def model_folder(model: str, network: bool, fetch: Callable[[bool], str]) -> Path:
    """The folder of a model on this disk: `model` itself, or that of a hub id in the hub's cache, which
    `fetch(local_only)` returns. `network`: it may be downloaded.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", model):
            raise ConfigError(
                f"model folder {model} does not exist",
                fix="give the folder that holds the model, or a hub id such as owner/name",
                code="no-model",
            )
        try:
            folder = Path(fetch(not network))
        except (OSError, ValueError) as error:  # the hub's errors derive from these
            raise ConfigError(
                f"the model {model} is not on this machine" if not network else f"cannot fetch the model {model}",
                why=(str(error) or type(error).__name__).splitlines()[0]
                if network
                else "it is not a folder, and the hub's cache on this machine does not hold it",
                fix="check the id and your connection"
                if network
                else "give a folder, or set candidates.network = true to download it",
                code="no-model",
            ) from None
    _no_code(folder)
    return folder


def _no_code(folder: Path) -> None:
    for file in sorted(folder.rglob("*")):
        if file.suffix == ".py":
            raise ConfigError(
                f"the model {folder} comes with program code of its own: {file.name}",
                why="program code of a model could do anything on this machine",
                fix="use a model that its library can load without such code",
                code="code-in-model",
            )
        if file.suffix in PICKLED and not any(file.parent.glob("*.safetensors")):
            raise ConfigError(
                f"the weights {file} are pickled",
                why="loading a pickled file can run any program",
                fix="convert them to safetensors, in a place where you trust them",
                code="pickled-weights",
            )


def identity(model: str, folder: Path) -> str:
    """Identity of a model on disk: its name, and a digest of small files and of large ones' sizes and times."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in PICKLED):
        inside = file.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts):  # bookkeeping of a download or of git
            continue
        about = file.stat()
        what = file.read_bytes() if about.st_size < WHOLE else f"{about.st_size} {about.st_mtime_ns}".encode()
        digest.update(f"{inside.as_posix()} {len(what)} ".encode() + what)
    return f"{Path(model).name}@{digest.hexdigest()[:16]}"


def device(asked: Device) -> str:
    import torch

    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return asked


def bad_model(folder: Path | str, what: str, error: Exception, fix: str) -> ConfigError:
    why = " ".join(str(error).split())[:300]
    return ConfigError(f"{folder} does not hold {what}", why=why, fix=fix, code="bad-model")
