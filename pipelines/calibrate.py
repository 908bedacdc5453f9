r"""Fit the constants of the `measured` preset from measured kernels, links and serving points.

    python -m pipelines.calibrate data=facts out=conf/efficiency
    python -m pipelines.calibrate data=my_chip out=my_conf/efficiency fit=generations

    data=DIR           where measurements lie: kernels*.csv (own timings: kind, hardware, weights, activations, m, n,
                       k, ..., seconds), operator tables of aiconfigurator-core (measured_ops/*.csv), measured_e2e.csv
    out=DIR            where NAME.yaml, NAME.csv (every constant, its uncertainty, its rows), NAME_errors.csv,
                       NAME_bands.csv (the 80 % bands and their held-out coverage) and NAME_residuals.csv (of every row,
                       left out with its curve, model, chip, generation, maker) go (default: outputs/calibrate/<time>)
    fit=all            kernels, then what end-to-end points say (the default)
    fit=kernels        kernels and links alone
    fit=generations    of kernels and links, only what the chip generations in the data differ by; the rest stays as
                       in the preset: for a few timings of a new chip
    fit=serving        end-to-end points alone, on the preset's kernels
    efficiency=NAME    the name of what is written, and the preset that `generations` and `serving` add to
                       (default: measured)

Three quarters of the shapes are fitted, the rest is scored; errors are printed per kind of kernel and format. The same
data give the same files. Exit codes: 0, 1 for bad input.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines._app import Job, out_directory, run
from sweep import store
from sweep.errors import BadInput, closest

FITS = ("all", "kernels", "generations", "serving")


def task(job: Job) -> int:
    """Fit what a job's data speak of, and write the preset."""
    from sweep.calibration import operators, preset, start, tables

    data, fit = job.options.get("data"), job.options.get("fit") or "all"
    if not data:
        raise BadInput("data=: give a folder of measurements, data=facts")
    if fit not in FITS:
        raise BadInput(f"fit={fit}: {closest(str(fit), FITS)}")
    folder = Path(data).expanduser()
    out = out_directory(job, "calibrate")
    study = job.study
    name, library = study.efficiency_id, study.library
    served = folder / "measured_e2e.csv"
    if fit == "serving" and not served.is_file():
        raise BadInput(f"data={folder}: holds no measured_e2e.csv")
    fitted: list[operators.Constant] = []
    scores: list[operators.Score] = []
    if fit == "generations":
        constants, fitted, scores = _generations(folder, study)
    elif fit == "serving":
        constants = dict(study.efficiency)
    else:
        frame = tables.read(folder)
        operators.check_machines(frame, library)
        found = operators.fit(frame, start.START, library)
        constants, fitted, scores = found.preset, found.constants, found.scores
    written = []
    if scores:
        print(report(scores), flush=True)
        written.append((f"{name}_errors.csv", preset.errors(scores).write_csv()))
    if fit in ("all", "serving") and served.is_file():
        constants, more, text, tables_of_bands = _end_to_end(served, constants, library)
        fitted = [*fitted, *more]
        print(text)
        written += [(f"{name}_{what}.csv", table.write_csv()) for what, table in tables_of_bands.items()]
    constants["generations"] = operators.in_order(constants["generations"], library)
    print(start.count(constants))
    written.append((f"{name}.yaml", preset.text_of(constants, name)))
    if fitted:
        before = operators.table_of(library, name) if fit in ("generations", "serving") else None
        written.append((f"{name}.csv", preset.table(fitted, before).write_csv()))
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file, content in written:
            store.write_atomic(out / file, content)
    except OSError as error:
        raise BadInput(f"out={out}: {error.strerror or error}") from None
    print("written: " + ", ".join(str(out / file) for file, _ in written))
    return 0


def _generations(folder: Path, study: Any) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """Factors of the generations in a folder's timings; all else as the preset has it."""
    from sweep.calibration import operators, tables

    if not study.efficiency.get("generations"):
        raise BadInput(f"efficiency={study.efficiency_id}: has no generations to add to; choose efficiency=measured")
    frame = tables.read(folder)
    operators.check_machines(frame, study.library)
    alone = operators.alone(study.efficiency, study.library, study.efficiency_id)
    found = operators.fit(frame, alone, study.library, common=False)
    constants = copy.deepcopy(dict(study.efficiency))
    for generation in found.generations:
        constants["generations"].setdefault(generation, {}).update(found.preset["generations"][generation])
    return constants, found.constants, found.scores


def _end_to_end(
    path: Path, constants: dict[str, Any], library: Any
) -> tuple[dict[str, Any], list[Any], str, dict[str, Any]]:
    """The second stage: overheads, multipliers, serving constants and bands from end-to-end points."""
    from sweep.calibration import bands, endtoend
    from sweep.calibration.operators import Constant, rounded
    from sweep.calibration.validate import read_rows

    found = endtoend.fit(read_rows(path), constants, library)
    full, rows = found.full, len(found.sample)
    more = [
        Constant(
            name=f"end_to_end.{c.name}",
            value=rounded(math.exp(t)),
            sigma=rounded(float(s), 2),
            rows=rows,
            kind="end_to_end",
        )
        for c, t, s in zip(full.step, full.step_theta, full.step_sigma, strict=True)
    ]
    more += [
        Constant(name=f"serving.{c.name}", value=rounded(math.exp(t)), sigma=None, rows=rows, kind="end_to_end")
        for c, t in zip(full.serving, full.serving_theta, strict=True)
    ]
    rest = found.residuals
    tables = {"bands": bands.summary(rest), "residuals": rest.frame()}
    return shortened(found.efficiency), more, endtoend.scores_table(found), tables


def shortened(value: Any) -> Any:
    """A preset with its constants to four digits."""
    if isinstance(value, dict):
        return {k: shortened(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def report(scores: Sequence[Any]) -> str:
    """Errors on rows that were not fitted, per kind of kernel, format and machine."""
    lines = [
        f"{'kind':10} {'format':11} {'machines':14} {'fitted':>7} {'held':>5} {'median':>7} {'p90':>7} {'bias':>7}"
    ]
    for s in map(dataclasses.asdict, scores):
        lines.append(
            f"{s['kind']:10} {s['weights']:11} {s['hardware'][:14]:14} {s['fitted']:7d} {s['held']:5d} "
            f"{100 * s['median']:6.1f}% {100 * s['p90']:6.1f}% {100 * s['bias']:+6.1f}%"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not any(w.startswith("efficiency=") for w in words):
        words.append("efficiency=measured")
    return run(task, "calibrate", __doc__ or "", words)


if __name__ == "__main__":
    sys.exit(main())
