"""A point of the whole model from overrides, and its operations by name."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest

from sweep.config import Study, check_value
from sweep.explain import Explanation, explain
from tests.conftest import make_study

EXACT = 1e-3  # relative, where a table prints more digits than that or the formula is given
TABLE = 1e-2  # relative, where the printed rounding is coarser


@functools.cache
def _records(*choices: str) -> Study:
    """The records that were chosen; composing them takes far longer than evaluating a point."""
    return make_study(*choices)


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def point(*overrides: str) -> Explanation:
    """A point from overrides as on the command line; each argument may hold several, separated by blanks."""
    words = [word.partition("=") for words in overrides for word in words.split()]
    chosen = {key: value for key, _, value in words if "." not in key}
    study = _records(*(f"{key}={value}" for key, value in chosen.items()))
    base = dict(study.base)
    for path, _, text in words:
        group, _, key = path.partition(".")
        if key:
            values = {**base[group].values, key: check_value(group, key, _value(text))}
            base[group] = dataclasses.replace(base[group], values=values)
    return explain(dataclasses.replace(study, base=base))


def decode_ops(e: Explanation) -> dict[str, dict[str, Any]]:
    """The operations of a decode step by name (the models here have each of them once)."""
    return {row["op"]: row for row in e.ops if row["phase"] == "decode"}


def about(value: float, rel: float) -> Any:
    """`value` within a relative tolerance and nothing else."""
    return pytest.approx(value, rel=rel, abs=0)
