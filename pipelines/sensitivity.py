r"""What one more of something is worth at one point: slopes of every lever, round amounts, and whole steps.

    python -m pipelines.sensitivity model=llama_3_1_70b hardware=h200_sxm_141gb layout=tp8 workload.batch=64

    model= hardware= precision= layout= workload= efficiency=   choose a record of each group
    group.key=value              changes one figure of it: model.n_layers=48, hardware.hbm_bytes_per_s=1.6e13
    output=json                  one JSON object on standard output
    chart=PATH                   the tornado chart, as PATH.svg and PATH.png

Names between commas compare points: what one more TB/s is worth to each machine and model.

    python -m pipelines.sensitivity model=llama_3_1_70b,deepseek_v3 hardware=h200_sxm_141gb,gb300_nvl72 layout=tp8

Slopes are exponents, d ln(result) / d ln(lever), found by automatic differentiation of the cost model in float64.
Rates, latencies and bytes: the derivative as it is. Model sizes and loads: roundings up (tiles, waves, shards) keep
their value and pass the derivative of what they round. Steps are evaluated again, accuracy and memory included.
Exit codes: 0, 1 for bad input.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines._app import Job, run
from pipelines.explain import OUTPUTS, _job
from sweep.config import GROUPS
from sweep.errors import BadInput
from sweep.sensitivity import sensitivity

SEVERAL = (*GROUPS, "efficiency")  # groups that may name several records
MOST = 64  # points of one comparison


def several(overrides: Sequence[str]) -> list[list[str]]:
    """The command lines behind one with names between commas: every combination, in order."""
    choices = []
    for word in overrides:
        key, equals, value = word.partition("=")
        names = value.split(",") if key in SEVERAL and equals and value[:1] not in "[{'\"" else [value]
        choices.append([f"{key}{equals}{name}" for name in names])
    found = [list(words) for words in itertools.product(*choices)]
    if len(found) > MOST:
        raise BadInput(f"{len(found)} points to compare: at most {MOST}")
    return found


def task(job: Job) -> int:
    """The sensitivities of the point of a job."""
    return answer([job])


def answer(jobs: Sequence[Job]) -> int:
    """Print the sensitivities of one point, or of several side by side."""
    from sweep.report.tornado import comparison_text, sensitivity_text

    options = jobs[0].options
    output, chart = options.get("output") or "text", options.get("chart")
    if output not in OUTPUTS:
        raise BadInput(f"output={output}: allowed are {', '.join(OUTPUTS)}")
    if chart and len(jobs) > 1:
        raise BadInput(f"chart={chart}: takes one point, not {len(jobs)}")
    if chart and not Path(chart).expanduser().absolute().parent.is_dir():
        raise BadInput(f"chart={chart}: no such directory {Path(chart).parent}")
    found = []
    for job in jobs:
        try:
            found.append(sensitivity(job.study))
        except BadInput as error:
            if len(jobs) == 1:
                raise
            raise BadInput(f"{' '.join(job.overrides)}: {error}") from None
    if output == "json":
        print(json.dumps(found[0].as_dict() if len(found) == 1 else [s.as_dict() for s in found], allow_nan=False))
    else:
        print(sensitivity_text(found[0]) if len(found) == 1 else comparison_text(found), end="")
    if chart:
        from sweep.report.charts import save
        from sweep.report.tornado import tornado_chart

        path = Path(chart).expanduser()
        base = path.with_suffix("") if path.suffix in (".svg", ".png") else path
        for written in save(tornado_chart(found[0]), base):
            print(f"chart: {written}", file=sys.stderr)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    plain = [w for w in words if not w.startswith("-")]
    try:
        lines = several(plain)
        if len(lines) > 1 and not any(w in ("-h", "--help") for w in words):
            return answer([_job(line, [], "sensitivity") for line in lines])
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    return run(task, "sensitivity", __doc__ or "", words)


if __name__ == "__main__":
    sys.exit(main())
