"""What went wrong, in one line a person can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInput(Exception):
    """Input that cannot be used: the message names the key, the value, what is allowed and the nearest choice."""


def closest(word: str, choices: Iterable[str], count: int = 3) -> str:
    """The names most like `word`, as a phrase to append to a message."""
    known = sorted(set(choices))
    near = difflib.get_close_matches(word, known, n=count, cutoff=0.4)
    if near:
        return f"nearest: {', '.join(near)}"
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"choices: {shown}" if known else "there are no choices"
