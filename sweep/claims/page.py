"""The page of the claims: for each the claim, its source, the sweep, the numbers, the chart, the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweep.claims.study import Claim, Finding, Number, Verdict
from sweep.report.markdown import grid, integer, number


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A claim, what was found, how it came out."""

    claim: Claim
    finding: Finding
    verdict: Verdict
    seconds: float


def shown(item: Number) -> str:
    """A number with its unit."""
    if item.value == float("inf"):
        return "never"
    whole = float(item.value).is_integer() and abs(item.value) < 1e7
    text = integer(item.value) if whole else number(item.value, item.digits)
    return f"{text} {item.unit}".strip()


def band(item: Number) -> str:
    """The edges of a number's band, a dash where it has none."""
    if item.low is None or item.high is None:
        return "–"
    return f"{number(item.low, item.digits)} to {number(item.high, item.digits)}"


def answer(outcome: Outcome) -> str:
    """The claim's answer with its numbers filled in."""
    text = outcome.claim.answer
    for key, item in sorted(outcome.finding.numbers.items(), key=lambda kv: -len(kv[0])):
        text = text.replace(f"{{{key}}}", shown(item))
    return text


def verdict_line(verdict: Verdict) -> str:
    """The verdict, and whether the model's own error could turn it."""
    if verdict.firm:
        return f"**{verdict.word}**"
    others = ", ".join(e for e in verdict.edges if e != verdict.word)
    return f"**{verdict.word}** (at an edge of the uncertainty band: {others})"


def section(outcome: Outcome) -> str:
    """One claim's part of the page."""
    claim, finding = outcome.claim, outcome.finding
    rows = [[key, shown(item), band(item), item.doc] for key, item in finding.numbers.items()]
    parts = [
        f"## {claim.number:g}. {claim.statement}",
        f"Source: {claim.source}",
        f"Verdict: {verdict_line(outcome.verdict)}. {answer(outcome)}",
        f"    python -m pipelines.claims only={claim.name}",
    ]
    for file, caption, _ in finding.charts:
        parts.append(f"![{caption}](claims/{file}.svg)\n\n{caption}")
    for caption, table in finding.tables:
        parts.append(f"{caption}\n\n{table}")
    parts.append("Numbers of the rule (80 % bands where the model's error enters):")
    parts.append(grid(["number", "value", "band", "what it is"], rows, left=[True, False, False, True]))
    parts.append(f"Rule: *holds* if `{claim.holds}`; *holds within limits* if `{claim.limits}`; else it does not.")
    parts += finding.notes
    return "\n\n".join(parts)


def page(outcomes: Sequence[Outcome], *, version: str, conditions: Mapping[str, str]) -> str:
    """The whole page."""
    rows = [[f"{o.claim.number:g}", o.claim.statement, verdict_line(o.verdict)] for o in outcomes]
    about = "; ".join(f"{key} {value}" for key, value in conditions.items())
    head = [
        "# The claims, tested",
        "Each claim is a study in `conf/experiment/claim_*.yaml`: a sweep, numbers measured on it, and a rule that reads "
        "the verdict off them. `python -m pipelines.claims out=docs` runs them all and rewrites this page; "
        "`python -m pipelines.sweep experiment=claim_...` evaluates a study's grid by itself.",
        f"codesign-sweep {version}; {about}.",
        grid(["", "claim", "verdict"], rows, left=[False, True, True]),
    ]
    return "\n\n".join([*head, *(section(o) for o in outcomes)]) + "\n"


def flat(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All numbers and verdicts as plain data."""
    return {
        o.claim.name: {
            "number": o.claim.number,
            "verdict": o.verdict.word,
            "firm": o.verdict.firm,
            "seconds": round(o.seconds, 1),
            "numbers": {
                key: {
                    k: (None if v is None or v != v or abs(v) == float("inf") else v)
                    for k, v in {"value": n.value, "low": n.low, "high": n.high}.items()
                }
                for key, n in o.finding.numbers.items()
            },
        }
        for o in outcomes
    }
