r"""How much of what a machine could do does it do, and what takes the rest?

    python -m pipelines.gap experiment=achieved_vs_possible
    python -m pipelines.gap model=llama_3_1_70b hardware=h100_sxm_80gb 'grid.workload.batch=[1,8,64]' gap.low_batch=1

Achieved (the efficiency preset) against possible (every byte once at full bandwidth, every FLOP at peak), divided among
its causes: host, kernel floors, synchronisation, bytes between GPUs, load imbalance, tiles and waves, math and memory
below their rates, slower tiers, copies. The parts add up to the gap. Of each model, machine and context of the grid it
looks at the fastest layout for few requests and at the most tokens/s/GPU at given speeds.

    gap.low_batch=1  gap.min_tok_s_user=[60,20]   which points
    gap.prefill=gb300_nvl72                       prompts on this machine, answers on each: matched rates
    gap.also=synchronized                         a second preset for the comparison of machines
    output=json                                   one JSON object on standard output instead
    output=DIRECTORY                              where gap.md, gap.svg and gap.png go (default outputs/gap/TIME)

Exit codes: 0, 1 for bad input.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines import _app
from sweep.config import Study
from sweep.errors import BadInput
from sweep.gap import Answer, answer


def task(job: _app.Job) -> int:
    """Divide the gap of a job's grid and write the report."""
    study = job.study
    answers = [answer(study)]
    also = (study.resolved.get("gap") or {}).get("also")
    if also and also != study.efficiency_id:
        answers.append(answer(_under(study, str(also))))
    if not answers[0].gaps:
        reasons = sorted({r for m in answers[0].missing for r in m["reasons"]})
        raise BadInput(f"grid: no point is feasible; reasons: {', '.join(reasons) or 'none is fast enough'}")
    if job.options.get("output") == "json":
        print(json.dumps([as_json(a) for a in answers], allow_nan=False))
        return 0
    from sweep.report.charts import save
    from sweep.report.gap import chart, document, verdict

    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    directory = Path(job.options.get("output") or f"outputs/gap/{stamp}").expanduser()
    directory.mkdir(parents=True, exist_ok=True)
    generations = list(study.efficiency.get("generations") or {})
    command = " ".join(["python -m pipelines.gap", *(o for o in job.overrides if not o.startswith("output="))])
    first = answers[0].gaps[0].labels["context"]
    shown = [g for g in answers[0].gaps if g.labels["context"] == first]
    save(chart(shown, f"{study.title}, {study.efficiency_id}"), directory / "gap")
    text = document(answers, generations, title=study.title, command=command, image="gap.svg")
    draft = directory / f".gap.md.{os.getpid()}"
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, directory / "gap.md")
    print("\n".join(verdict(answers, generations)))
    print(f"report: {directory / 'gap.md'}", file=sys.stderr)
    return 0


def _under(study: Study, preset: str) -> Study:
    """The same study under another preset."""
    return dataclasses.replace(study, efficiency=study.library.raw("efficiency", preset), efficiency_id=preset)


def as_json(found: Answer) -> dict[str, Any]:
    """An answer as plain data."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(k): plain(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    data: dict[str, Any] = plain(dataclasses.asdict(found))
    for entry, gap in zip(data["gaps"], found.gaps, strict=True):
        entry |= {"share": gap.share, "share_of_best": gap.share_of_best, "gpus": gap.gpus}
    return data


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; returns the exit code."""
    return _app.run(task, "gap", __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main())
