r"""One point, op by op: where its time goes, what it holds, what would have to change for the bound to move.

    python -m pipelines.explain model=deepseek_v3 hardware=gb300_nvl72 precision=nvfp4 \
        layout.dpa=32 layout.ep=32 workload.batch=512 workload.context=8192

    model= hardware= precision= layout= workload= efficiency=   choose a record of each group
    group.key=value              changes one figure of it: model.n_layers=48, hardware.hbm_bytes_per_s=1.6e13
    output=json                  one JSON object on standard output: all columns, and `ops`
    against='OVERRIDES'          a second point beside the first: the same command line with these changes
    chart=PATH                   the roofline chart, as PATH.svg and PATH.png

More examples:

    python -m pipelines.explain model=llama_3_1_70b hardware=h100_sxm_80gb layout=tp8 workload.batch=64 efficiency=ideal
    python -m pipelines.explain model=dense model.d_model=8192 model.d_ff=28672 layout.tpa=8 output=json
    python -m pipelines.explain model=qwen3_235b_a22b layout=dp8_ep8 against='hardware=h200_sxm_141gb workload.batch=9'
    python -m pipelines.explain model=llama_3_1_405b layout=helix_8x8 workload=long_context against='layout=tp8'

The point is that of the configuration without its grid. A layout that cannot be is an error; a point that does not
fit, or lacks a figure, is printed in full with its reasons. Exit codes: 0, 1 for bad input.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines._app import Job, check_overrides, compose_config, make_job, parse, run
from sweep.config import conf_dir
from sweep.errors import BadInput
from sweep.explain import Explanation, compare, explain

OUTPUTS = ("text", "json")


def task(job: Job) -> int:
    """Explain the point of a job, and the one against it."""
    output = job.options.get("output") or "text"
    if output not in OUTPUTS:
        raise BadInput(f"output={output}: allowed are {', '.join(OUTPUTS)}")
    chart = job.options.get("chart")
    if chart and not Path(chart).expanduser().absolute().parent.is_dir():
        raise BadInput(f"chart={chart}: no such directory {Path(chart).parent}")
    first = explain(job.study)
    second = _against(job)
    written = _draw(first, Path(chart).expanduser()) if chart else []
    if output == "json":
        answer = first.as_dict()
        if second is not None:
            answer["against"] = second.as_dict()
            answer["differences"] = compare(first, second)
        print(json.dumps(answer, allow_nan=False))
    else:
        from sweep.report.roofline import roofline_text

        print(roofline_text(first, against=second), end="")
    for path in written:
        print(f"chart: {path}", file=sys.stderr)
    return 0


def _against(job: Job) -> Explanation | None:
    """The second point: the overrides of the first, with those of `against` on top."""
    asked = job.options.get("against")
    if not asked:
        return None
    words = shlex.split(asked) if isinstance(asked, str) else [str(word) for word in asked]
    if not all("=" in word for word in words):
        raise BadInput(f"against={asked}: must be overrides like layout.tpa=16 workload.batch=32")
    changed = [word.partition("=")[0].lstrip("+~") for word in words]

    def replaced(word: str) -> bool:
        key = word.partition("=")[0].lstrip("+~")
        # a record chosen anew brings its own figures
        return key in ("against", *changed) or key.partition(".")[0] in changed

    overrides = [word for word in job.overrides if not replaced(word)] + words
    directories = [d for d in job.study.library.directories if d != conf_dir()]
    try:
        return explain(_job(overrides, directories, job.name).study)
    except BadInput as error:
        raise BadInput(f"against: {error}") from None


def _job(overrides: Sequence[str], directories: Sequence[Path], name: str) -> Job:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from pipelines._app import as_bad_input

    check_overrides(parse(overrides))
    try:
        config, choices = compose_config(overrides, directories, name)
    except (HydraException, OmegaConfBaseException) as error:
        raise as_bad_input(error) from None
    return make_job(config, choices, directories, overrides, name)


def _draw(explanation: Explanation, path: Path) -> list[Path]:
    from sweep.report.charts import save
    from sweep.report.roofline import roofline_chart

    base = path.with_suffix("") if path.suffix in (".svg", ".png") else path
    return save(roofline_chart(explanation), base)


def quoted(words: Sequence[str]) -> list[str]:
    """The command line with `against=a=1 b=2` quoted as Hydra wants it: the shell has taken the quotes off."""
    out = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "against" and value and value[0] not in "'\"[":
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            word = f"against='{escaped}'"
        out.append(word)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; returns the exit code."""
    return run(task, "explain", __doc__ or "", quoted(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
