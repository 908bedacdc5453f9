r"""Points per second of the full cost model, against the limits of this machine and against plain NumPy.

    python -m pipelines.bench
    python -m pipelines.bench output=json efficiency=ideal
    python -m pipelines.bench check=true

    output=json      one flat JSON object on standard output; figures of the second grid start with rows_
    experiment=NAME  this grid only; otherwise `bench` (16 batches x 32 contexts) and `bench_rows` (no context axis)
    check=true       compare ratios with conf/bench_baseline.json: exit code 1 where one is worse by a factor of two
    check=update     write what was measured there
    against=FILE     another baseline; one of your own machine, as ratios depend on the number of cores
    group.key=value  anything a sweep takes, on both grids: efficiency=ideal, store.compression=lz4

Measured on each grid: operations per point; the kernel alone, with the exact frontier, with Parquet (every point, with
and without axis columns, in a temporary directory that is removed); bytes per row; peak memory; compilation and the
time to a first result; the share of two physical ceilings measured in the same run (bytes stored, exponentials); and a
sample of the grid through the same cost functions under NumPy. Takes about a minute on two cores. Speeds are of this
run on this machine; ratios are what to compare. Exit codes: 0, 1 for bad input and for a ratio that fell.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines import _app
from sweep import bench, run
from sweep.config import conf_dir
from sweep.errors import BadInput

OUTPUTS = ("text", "json")
CHECKS = ("false", "true", "update")
GRIDS = ("bench", "bench_rows")
SECOND = "rows_"  # before the keys of the grid without contexts


def task(job: _app.Job) -> int:
    """Measure the grid of a job, and its companion unless the grid was chosen by name."""
    output = job.options.get("output") or "text"
    if output not in OUTPUTS:
        raise BadInput(f"output={output}: allowed are {', '.join(OUTPUTS)}")
    chosen = [o.partition("=")[2] for o in job.overrides if o.startswith("experiment=")]
    check = str(job.options.get("check") or "false").lower()
    if check not in CHECKS:
        raise BadInput(f"check={job.options['check']}: allowed are {', '.join(CHECKS)}")
    path = Path(str(job.options.get("against") or bench.baseline_path()))
    jobs = {chosen[0]: job} if chosen else {name: _with_experiment(job, name) for name in GRIDS}
    known = bench.read_baseline(path, list(jobs)) if check == "true" else {}
    measured = []
    for name, one in jobs.items():
        study = one.study

        def say(text: str, name: str = name) -> None:
            print(f"{name}: {text}", file=sys.stderr, flush=True)

        measured.append(
            bench.measure(lambda study=study: run.plan(study), name=name, config_yaml=one.config_yaml, say=say)  # type: ignore[misc]
        )
    if output == "json":
        print(json.dumps(flat(measured), allow_nan=False))
    else:
        print(bench.text(measured), end="")
    if check == "update":
        bench.write_baseline(path, measured)
        print(f"check: {path} written", file=sys.stderr)
    return checked(measured, known) if check == "true" else 0


def checked(measured: Sequence[bench.Measured], known: Mapping[str, dict[str, Any]]) -> int:
    """Print each figure beside that of the baseline; 1 if one is worse than it may be."""
    worse = 0
    for one in measured:
        for check in bench.compare(one, known[one.grid]):
            print(f"check: {one.grid}: {check}", file=sys.stderr)
            worse += not check.passed
    if worse:
        print(f"check: {worse} figures are worse than the baseline by more than {bench.TOLERANCE:g}x", file=sys.stderr)
    return int(worse > 0)


def flat(measured: Sequence[bench.Measured]) -> dict[str, Any]:
    """One object: the first grid's figures, and the second's under names of their own."""
    out = measured[0].as_dict()
    for other in measured[1:]:
        out |= {f"{SECOND}{k}": v for k, v in other.as_dict().items() if k not in bench.COMMON}
    return out


def _with_experiment(job: _app.Job, experiment: str) -> _app.Job:
    """The same job on another experiment."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    overrides = [f"experiment={experiment}", *job.overrides]
    directories = [d for d in job.study.library.directories if d != conf_dir()]
    try:
        config, choices = _app.compose_config(overrides, directories, job.name)
    except (HydraException, OmegaConfBaseException) as error:
        raise _app.as_bad_input(error) from None
    return _app.make_job(config, choices, directories, overrides, job.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; returns the exit code."""
    return _app.run(task, "bench", __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main())
