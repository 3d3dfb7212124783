"""The lines of what was ever stored; `test_golden.py` says what they are."""

import json
from pathlib import Path
from typing import Any

Line = dict[str, Any]

GOLDEN: list[Line] = [
    json.loads(text)
    for text in (Path(__file__).parent / "golden_events.jsonl").read_text("utf-8").splitlines()
]
