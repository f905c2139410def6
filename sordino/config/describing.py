"""What each setting means, in the words that stand beside it in the source."""

from __future__ import annotations

import inspect
import re

from sordino.config.section import Section


def described(section: type[Section]) -> dict[str, str]:
    """The meaning of each key of a section: the comment beside it, or above it."""
    source = inspect.getsource(section)
    comments = re.findall(r"((?:^    # .*\n)+)    (\w+):", source, re.MULTILINE)
    above = [(" ".join(line.strip("# ") for line in lines.splitlines()), name) for lines, name in comments]
    beside = re.findall(r"^    (\w+):.*?  #\s(?!type:)(.*)$", source, re.MULTILINE)
    behind = re.findall(r"^    (\w+):.*?#\stype: ignore\S+\s+#\s(.*)$", source, re.MULTILINE)
    said = {name: words for words, name in above} | dict(beside) | dict(behind)
    return {name: said.get(name, "") for name in section.model_fields}
