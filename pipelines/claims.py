r"""Put the field's claims to the test: every study of a claim, its numbers, its chart, its verdict, on one page.

    python -m pipelines.claims                 all studies; writes outputs/claims/<time>/claims.md and its charts
    python -m pipelines.claims only=helix      one study, or several: only=helix,wide_ep
    python -m pipelines.claims out=docs        writes the page and its charts into a folder of yours
    python -m pipelines.claims output=json     all numbers and verdicts as one JSON object on standard output

A study is a file conf/experiment/claim_NAME.yaml (also in your own --config-dir): a grid, and a section `claim` with
the statement, its source and the rule by which the measured numbers become a verdict. Its grid alone runs as
`python -m pipelines.sweep experiment=claim_NAME`. Exit codes: 0, 1 for bad input.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pipelines import _app
from sweep import accuracy, store
from sweep.claims.page import Outcome, flat, page, verdict_line
from sweep.claims.study import Claim, Lab, decide
from sweep.config import Library, Study, conf_dir
from sweep.errors import BadInput, closest
from sweep.report.charts import save

PREFIX = "claim_"
OPTIONS = ("only", "out", "output")


def studies(library: Library) -> dict[str, Claim]:
    """All claims by name, in the order of their numbers."""
    found = {}
    for name in library.choices("experiment"):
        if name.startswith(PREFIX):
            section = library.raw("experiment", name).get("claim")
            found[name.removeprefix(PREFIX)] = Claim.of(name.removeprefix(PREFIX), section)
    return dict(sorted(found.items(), key=lambda item: item[1].number))


def conduct(claim: Claim, directories: Sequence[Path], work: Path) -> Outcome:
    """One study from its configuration to its verdict."""
    started = time.perf_counter()

    def compose(overrides: Sequence[str]) -> Study:
        config, choices = _app.compose_config(list(overrides), list(directories), "claims")
        return _app.make_job(config, choices, list(directories), list(overrides), "claims").study

    try:
        module = importlib.import_module(claim.module)
    except ImportError:
        raise BadInput(f"claim.module={claim.module}: no such module ({PREFIX}{claim.name})") from None
    finding = module.measure(Lab(compose, PREFIX + claim.name, work / claim.name))
    verdict = decide(claim, finding.numbers)
    return Outcome(claim=claim, finding=finding, verdict=verdict, seconds=time.perf_counter() - started)


def write(outcomes: Sequence[Outcome], out: Path) -> Path:
    """The page, its charts and the numbers as JSON; a page appears once everything it shows is there."""
    charts = out / "claims"
    charts.mkdir(parents=True, exist_ok=True)
    for outcome in outcomes:
        for name, _, chart in outcome.finding.charts:
            for path in save(chart, charts / name):
                if path.suffix == ".png":
                    path.unlink()
    conditions = {"accuracy": accuracy.label(accuracy.AccuracyConfig()), "presets": "`ideal` and `measured`"}
    store.write_atomic(out / "claims.json", json.dumps(flat(outcomes), indent=1, sort_keys=True) + "\n")
    path = out / "claims.md"
    store.write_atomic(path, page(outcomes, version=store.code_version(), conditions=conditions))
    return path


def check_folder(out: Path, names: Sequence[str]) -> None:
    """Refuse to replace a page by one of fewer claims. Raises: `BadInput`."""
    there = json.loads((out / "claims.json").read_text()) if (out / "claims.json").is_file() else {}
    lost = [name for name in there if name not in names]
    if lost:
        raise BadInput(f"out={out}: its page also has {', '.join(lost)}; give only= another folder")


def options(words: Sequence[str]) -> dict[str, str]:
    """`only`, `out`, `output` from the command line. Raises: `BadInput`."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in OPTIONS:
            raise BadInput(f"{word}: no such key; {closest(key, OPTIONS)}")
        found[key] = value
    if found.get("output", "text") not in ("text", "json"):
        raise BadInput(f"output={found['output']}: allowed are text, json")
    return found


def task(argv: Sequence[str]) -> int:
    """All that was asked for."""
    line = _app.parse(argv)
    asked = options([*line.overrides, *line.rest])
    known = studies(Library([*line.config_dirs, conf_dir()]))
    names = [n for n in asked.get("only", "").strip("[]").split(",") if n] or list(known)
    for name in names:
        if name not in known:
            raise BadInput(f"only={name}: no such claim; {closest(name, known)}")
    out = Path(asked["out"]) if "out" in asked else Path("outputs") / "claims" / f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
    check_folder(out, names)
    outcomes = []
    work = Path(tempfile.mkdtemp(prefix="claims-"))
    try:
        for name in (n for n in known if n in names):
            outcome = conduct(known[name], line.config_dirs, work)
            outcomes.append(outcome)
            print(f"{name:12s} {outcome.seconds:5.1f} s  {verdict_line(outcome.verdict)}", file=sys.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    path = write(outcomes, out)
    if asked.get("output") == "json":
        print(json.dumps(flat(outcomes), allow_nan=False))
    else:
        print(path)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; returns the exit code."""
    words: list[Any] = list(sys.argv[1:] if argv is None else argv)
    if any(w in ("-h", "--help") for w in words):
        print((__doc__ or "").strip())
        return 0
    try:
        return task(words)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
