"""docs/runbook.md, in pieces."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)


def blocks(language: str = "sh") -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def block_with(words: str, language: str = "sh") -> str:
    """The one block that holds these words."""
    (found,) = [block for block in blocks(language) if words in block]
    return found
