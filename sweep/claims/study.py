"""What a study of a claim is: a sweep, what it measures, and the rule by which numbers become a verdict.

The claim, its source and its rule stand in the study's configuration (`conf/experiment/claim_*.yaml`, section `claim`);
the module of the same name in this package measures. Nothing here decides by hand: a changed model changes the numbers,
and the rule reads the verdict off them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from sweep import run, store
from sweep.config import Record, Study, check_value
from sweep.errors import BadInput, closest
from sweep.explain import Explanation, explain
from sweep.expr import evaluate, names_in
from sweep.machine import band_of

VERDICTS = ("holds", "holds within limits", "does not hold in general")
PRESETS = ("ideal", "measured")
Z80 = 1.2816  # standard deviations to each side that hold 80 % of a normal distribution
CLAIM_KEYS = ("number", "statement", "source", "module", "holds", "limits", "answer")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim and the rule that decides it."""

    name: str
    number: float
    statement: str
    source: str
    module: str
    holds: str  # an expression over the measured numbers: the claim holds
    limits: str  # and if not: it holds within limits
    answer: str  # a sentence or two with {numbers} in it

    @staticmethod
    def of(name: str, section: Any) -> Claim:
        """From the section `claim` of a configuration. Raises: `BadInput`."""
        if not isinstance(section, Mapping):
            raise BadInput(f"claim={section}: must be a section with {', '.join(CLAIM_KEYS)}")
        for key in section:
            if key not in CLAIM_KEYS:
                raise BadInput(f"claim.{key}: no such key; {closest(str(key), CLAIM_KEYS)}")
        for key in CLAIM_KEYS:
            if section.get(key) is None:
                raise BadInput(f"claim.{key}=null: must be given")
        text = {key: " ".join(str(section[key]).split()) for key in CLAIM_KEYS if key != "number"}
        return Claim(name=name, number=float(section["number"]), **text)


@dataclass(frozen=True, kw_only=True)
class Number:
    """One measured number, with what it says and how far it may be off."""

    value: float
    doc: str
    unit: str = ""
    low: float | None = None  # None: no band, the number is arithmetic
    high: float | None = None
    digits: int = 3


@dataclass(kw_only=True)
class Finding:
    """What a study found."""

    numbers: dict[str, Number] = field(default_factory=dict)
    tables: list[tuple[str, str]] = field(default_factory=list)  # caption, Markdown
    charts: list[tuple[str, str, Any]] = field(default_factory=list)  # file name, what it shows, altair chart
    notes: list[str] = field(default_factory=list)

    def add(self, key: str, value: float, doc: str, unit: str = "", **more: Any) -> None:
        """One more number; keys are those of the claim's rule."""
        self.numbers[key] = Number(value=float(value), doc=doc, unit=unit, **more)

    def widen(self, sigma: float, *patterns: str) -> None:
        """Give the numbers whose keys match the 80 % band of a logarithm with a standard deviation of `sigma`."""
        for key, number in self.numbers.items():
            if any(fnmatch.fnmatch(key, pattern) for pattern in patterns) and math.isfinite(number.value):
                edges = banded(number.value, sigma)
                self.numbers[key] = dataclasses.replace(number, low=edges["low"], high=edges["high"])


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a claim came out."""

    word: str
    firm: bool  # the same at both edges of the band
    edges: tuple[str, ...]


def decide(claim: Claim, numbers: Mapping[str, Number]) -> Verdict:
    """The verdict that the claim's rule reads off the numbers, and whether their band could turn it.

    Raises: `BadInput` where the rule names a number that the study has not measured.
    """

    def at(edge: str) -> str:
        values = {}
        for key, number in numbers.items():
            other = getattr(number, edge)
            values[key] = number.value if other is None else other
        for text in (claim.holds, claim.limits):
            for name in names_in(text, f"{claim.name}.claim"):
                if name not in values:
                    raise BadInput(f"{claim.name}.claim: no number {name}; {closest(name, values)}")
        if bool(evaluate(claim.holds, values, "claim.holds")):
            return VERDICTS[0]
        return VERDICTS[1] if bool(evaluate(claim.limits, values, "claim.limits")) else VERDICTS[2]

    edges = tuple(dict.fromkeys(at(edge) for edge in ("low", "high")))
    word = at("value")
    return Verdict(word=word, firm=set(edges) <= {word}, edges=edges)


def banded(value: float, sigma: float) -> dict[str, float]:
    """Edges of the 80 % band of a number whose logarithm has a standard deviation of `sigma`."""
    reach = math.exp(Z80 * sigma)
    return {"low": value / reach, "high": value * reach}


def _value(text: str) -> Any:
    words: dict[str, Any] = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


class Lab:
    """What a study works with: the composed configuration, single points of it, and its sweep as a table."""

    def __init__(self, compose: Callable[[Sequence[str]], Study], experiment: str, directory: Path):
        self._compose = functools.cache(lambda overrides: compose([f"experiment={experiment}", *overrides]))
        self.directory = directory

    def study(self, *overrides: str) -> Study:
        """The study's configuration with overrides: records found by name, then single figures.

        Only the experiment itself is composed; records come from the library, which takes no time.
        """
        study = self._compose(())
        words = [word.partition("=") for words in overrides for word in words.split()]
        base: dict[str, Record] = dict(study.base)
        changed: dict[str, Any] = {}
        for group, _, name in (w for w in words if "." not in w[0]):
            if group == "efficiency":
                changed |= {"efficiency": study.library.raw(group, name), "efficiency_id": name}
            else:
                base[group] = study.library.record(group, name)
        for path, _, text in (w for w in words if "." in w[0]):
            group, _, key = path.partition(".")
            values = {**base[group].values, key: check_value(group, key, _value(text))}
            base[group] = dataclasses.replace(base[group], values=values)
        return dataclasses.replace(study, base=base, **changed)

    def point(self, *overrides: str) -> Explanation:
        """One point, op by op. `BadInput` where the layout is impossible."""
        return explain(self.study(*overrides))

    def columns(self, *overrides: str) -> dict[str, Any]:
        """The columns of one point."""
        return self.point(*overrides).columns

    def sigma(self, points: int, *overrides: str) -> float:
        """Standard deviation of the logarithm of a number made of so many predicted times, under `measured`.

        From the error band of a single time on the machine of the study. Errors count as independent, although those of
        points that are alike cancel in part: a ratio's band is wider than it need be.
        """
        study = self.study("efficiency=measured", *overrides)
        about = study.base["hardware"].about
        low, high = band_of(study.efficiency, about.get("generation"), about.get("vendor")).of("tpot", "undrafted")
        return math.log(high / low) / 2 / Z80 * math.sqrt(points)

    def sweep(self, name: str, *overrides: str) -> pl.LazyFrame:
        """The study's sweep, all feasible points, axis columns included; kept under the study's directory."""
        study = self._compose(tuple(overrides))
        study = dataclasses.replace(study, store=dataclasses.replace(study.store, rows="feasible", axes=True))
        plan = run.plan(study)
        directory = self.directory / name
        run.check_directory(directory, plan.sha256)
        done = store.manifest(directory)
        if done.get("config_sha256") != plan.sha256:
            run.Run(plan, directory, config_yaml="").execute()
        return store.scan(directory)


Measure = Callable[[Lab], Finding]
