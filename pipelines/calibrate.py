r"""Fit the constants of the `measured` preset from measured kernels, links and serving points.

    python -m pipelines.calibrate data=facts out=conf/efficiency
    python -m pipelines.calibrate data=my_chip out=my_conf/efficiency fit=generations

    data=DIR           where measurements lie: kernels*.csv (own timings: kind, hardware, weights, activations, m, n, k, ...,
                       seconds), operator tables of aiconfigurator-core (measured_ops/*.csv), measured_e2e.csv
    out=DIR            where NAME.yaml, NAME.csv (every constant, its uncertainty, its rows) and NAME_errors.csv go
                       (default: outputs/calibrate/<time>)
    fit=all            kernels, then what end-to-end points say (the default)
    fit=kernels        kernels and links alone
    fit=generations    of kernels and links, only what the chip generations in the data differ by; the rest stays as in the
                       preset: for a few timings of a new chip
    fit=serving        end-to-end points alone, on the preset's kernels
    efficiency=NAME    the preset to start from, and the name of what is written (default: measured)

Three quarters of the shapes are fitted, the rest is scored; errors are printed per kind of kernel and format. The same
data give the same files. Exit codes: 0, 1 for bad input.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines._app import Job, run
from sweep.errors import BadInput, closest

END_TO_END = ("math", "memory", "floor", "floor_link")  # multipliers that kernels do not tell
FITS = ("all", "kernels", "generations", "serving")


def task(job: Job) -> int:
    """Fit what a job's data speak of, and write the preset."""
    from sweep.calibration import operators, preset, tables

    data, fit = job.options.get("data"), job.options.get("fit") or "all"
    if not data:
        raise BadInput("data=: give a folder of measurements, data=facts")
    if fit not in FITS:
        raise BadInput(f"fit={fit}: {closest(str(fit), FITS)}")
    folder = Path(data).expanduser()
    out = Path(job.options.get("out") or f"outputs/calibrate/{time.strftime('%Y-%m-%d_%H-%M-%S')}").expanduser()
    if out.exists() and not out.is_dir():
        raise BadInput(f"out={out}: is a file, must be a directory")
    name = job.study.efficiency_id
    if not (job.study.efficiency.get("generations") or fit in ("all", "kernels")):
        raise BadInput(f"efficiency={name}: has no generations to add to; start from efficiency=measured")
    constants: dict[str, Any] = job.study.efficiency
    written = []
    if fit != "serving":
        frame = tables.read(folder)
        for hardware in frame["hardware"].unique().to_list():
            job.study.library.record("hardware", hardware)
        fitted = operators.fit(frame, constants, job.study.library, common=fit != "generations")
        end_to_end = {k: constants[k] for k in END_TO_END if k in constants}
        constants = {**fitted.preset, **end_to_end}
        kept = job.study.efficiency.get("generations") or {}
        for generation, before in kept.items():
            own = constants["generations"].setdefault(generation, {})
            own |= {k: v for k, v in (before or {}).items() if k in END_TO_END}
        print(report(fitted.scores))
        written += [
            (f"{name}.csv", preset.table(fitted.constants).write_csv()),
            (f"{name}_errors.csv", preset.errors(fitted.scores).write_csv()),
        ]
    served = folder / "measured_e2e.csv"
    if fit in ("all", "serving") and served.is_file():
        constants = end_to_end_fit(served, constants, job)
    elif fit == "serving":
        raise BadInput(f"data={folder}: holds no measured_e2e.csv")
    named = {
        g: {"vendor": v, "year": y} for g, v, y in operators.of_generations(job.study.library, constants["generations"])
    }
    order = sorted(constants["generations"], key=lambda g: named[g]["year"])  # of one year, as the fits left them
    constants["generations"] = {g: {**named[g], **constants["generations"][g]} for g in order}
    written.append((f"{name}.yaml", preset.text_of(constants, name)))
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file, content in written:
            preset.write(out / file, content)
    except OSError as error:
        raise BadInput(f"out={out}: {error.strerror or error}") from None
    print("written: " + ", ".join(str(out / file) for file, _ in written))
    return 0


def end_to_end_fit(path: Path, constants: dict[str, Any], job: Job) -> dict[str, Any]:
    """The second stage: overheads, multipliers and serving constants from end-to-end points."""
    from sweep.calibration import endtoend
    from sweep.calibration.validate import read_rows

    found = endtoend.fit(read_rows(path), constants, job.study.library, report=print)
    print(endtoend.scores_table(found))
    return found.efficiency


def report(scores: Sequence[Any]) -> str:
    """Held-out errors per kind of kernel and format, and per machine over all formats."""
    lines = [
        f"{'kind':10} {'format':12} {'machines':14} {'fitted':>7} {'held':>5} {'median':>7} {'p90':>7} {'bias':>7}"
    ]
    for s in map(dataclasses.asdict, scores):
        lines.append(
            f"{s['kind']:10} {s['weights']:12} {s['hardware'][:14]:14} {s['fitted']:7d} {s['held']:5d} "
            f"{100 * s['median']:6.1f}% {100 * s['p90']:6.1f}% {100 * s['bias']:+6.1f}%"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; returns the exit code."""
    return run(task, "calibrate", __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main())
