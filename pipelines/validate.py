r"""Predictions beside measurements: an error page, charts, and a prediction for every row of a CSV.

    python -m pipelines.validate data=rows.csv out=validation

    data=FILE                    measured rows: columns model, hardware, n_gpus, precision, framework, tp, pp, ep, dp,
                                 isl, osl, concurrency_or_batch, disaggregated, prefill_layout, decode_layout,
                                 mtp_speculative, tpot_ms, ttft_ms, throughput_tok_s_gpu, trust, ...; what is missing is
                                 taken as unknown
    out=DIR                      where the page goes (default: outputs/validate/<time>)
    efficiency=measured          the constants that predict; the roofline floor is always that of `ideal`
    output=json                  the headline scores as one JSON object on standard output

Written: `predictions.csv` (one line per input row: row_id, answered, reason, tpot_s, tpot_low_s, tpot_high_s, ttft_s,
tok_s_gpu, floor_tpot_s, ttft_low_s, ttft_high_s, tok_s_gpu_low, tok_s_gpu_high; numbers empty where not answered, low
and high also where the preset has no bands), `validation.md` and its charts (SVG, PNG). Rows need no measurement to be
predicted. Exit codes: 0, 1 for bad input.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines._app import Job, out_directory, run
from sweep import store
from sweep.errors import BadInput

OUTPUTS = ("text", "json")


def task(job: Job) -> int:
    """Predict the rows of a job's file and write the page."""
    from sweep.calibration.validate import predict_rows, read_rows
    from sweep.report.charts import save
    from sweep.report.validation import charts, find, headline, page

    data, output = job.options.get("data"), job.options.get("output") or "text"
    if not data:
        raise BadInput("data=: give a CSV of measured rows, data=rows.csv")
    if output not in OUTPUTS:
        raise BadInput(f"output={output}: allowed are {', '.join(OUTPUTS)}")
    rows = read_rows(Path(data).expanduser())
    out = out_directory(job, "validate")
    results = predict_rows(rows, job.study.library, job.study.efficiency)
    found = find(results)
    try:
        out.mkdir(parents=True, exist_ok=True)
        store.write_atomic(out / "predictions.csv", results.frame().write_csv())
        drawn = charts(results, found)
        for name, chart in drawn.items():
            save(chart, out / name)
        names = [f"{name}.svg" for name in drawn]
        preset = job.study.efficiency_id
        store.write_atomic(
            out / "validation.md", page(results, found, source=Path(data).name, preset=preset, charts=names)
        )
    except OSError as error:
        raise BadInput(f"out={out}: {error.strerror or error}") from None
    top = headline(results, found)
    if output == "json":
        print(json.dumps(_plain(top)))
    else:
        _say(top, out)
    return 0


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _say(top: dict[str, Any], out: Path) -> None:
    def share(value: float) -> str:
        return "none" if not math.isfinite(value) else f"{100 * value:.1f} %"

    asked = share(top["complete_trusted_answered"])
    print(f"{top['answered']} of {top['rows']} rows answered; {asked} of the complete ones of trust A")
    for name, key in (
        ("TPOT", "tpot"),
        ("tok/s/GPU, aggregated", "rate_aggregated"),
        ("tok/s/GPU, disaggregated", "rate_disaggregated"),
        ("TTFT, light load", "ttft_light"),
    ):
        s = top[key]
        print(f"{name:26s} median {share(s.median):>7s}  p90 {share(s.p90):>7s}  bias {share(s.bias):>7s}  {s.n} rows")
    inside = (("TPOT", "in_band"), ("tok/s/GPU", "in_band_tok_s_gpu"), ("TTFT", "in_band_ttft"))
    print(f"inside the 80 % band: {', '.join(f'{name} {share(top[key])}' for name, key in inside)}")
    print(f"faster than the roofline: {share(top['below_floor'])}")
    print(f"written: {out / 'validation.md'}, {out / 'predictions.csv'}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; returns the exit code."""
    return run(task, "validate", __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main())
