"""The accuracy proxy against models with published scores: ranks, errors, mixtures of experts, one page.

    python -m pipelines.accuracy

    accuracy=NAME                choose the proxy: ling_besiroglu, geo_mean, log_compute, or your own file
    accuracy.key=value           change one of its settings: accuracy.score=mmlu accuracy.w=0.65 accuracy.kv_term=false
    against=PATH                 your own table, a CSV file, for the one in conf/accuracy/scores.csv
    output=json                  one flat JSON object on standard output, for the page
    out=FILE                     write the page (with output=json the object) into a file as well

More examples:

    python -m pipelines.accuracy accuracy=geo_mean accuracy.w=0.65 accuracy.score=mmlu
    python -m pipelines.accuracy accuracy=log_compute output=json
    python -m pipelines.accuracy --config-dir my_conf accuracy=my_law against=my_scores.csv

A table has the columns model, family, n_tot, n_act, tokens and the score in percent (mmlu_pro, mmlu); and, where
known, harness, n_layers, d_model, n_heads, n_kv_heads, n_experts, top_k, n_shared, d_expert. Numbers are in units of
one: 8.2e9 parameters, 36e12 tokens. A family is the models of one training recipe; a harness is who scored them.

The page tells apart what a proxy must do, order the models of one recipe, from what none can, foresee the level of
another laboratory's score. Each model counts with its own training tokens: accuracy.tokens and accuracy.data change
nothing here. Exit codes: 0, 1 for bad input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines._app import Job, run
from pipelines.explain import quoted
from sweep.config import conf_dir
from sweep.errors import BadInput
from sweep.scoring import compared, flat, page, read_table
from sweep.store import write_atomic

OUTPUTS = ("text", "json")


def task(job: Job) -> int:
    """Score the proxy of a job."""
    output = job.options.get("output") or "text"
    if output not in OUTPUTS:
        raise BadInput(f"output={output}: allowed are {', '.join(OUTPUTS)}")
    settings = job.study.accuracy
    asked = job.options.get("against")
    path = Path(str(asked)).expanduser() if asked else conf_dir() / "accuracy" / "scores.csv"
    if not path.is_file():
        raise BadInput(f"against={path}: no such file")
    out = Path(str(job.options["out"])).expanduser() if job.options.get("out") else None
    if out is not None and not out.absolute().parent.is_dir():
        raise BadInput(f"out={out}: no such directory {out.parent}")
    if settings.table is not None:
        raise BadInput("accuracy.table: measured losses are no proxy; this command scores a law")
    table = read_table(path, settings.score)
    law, found, others = compared(table, settings)
    if output == "json":
        head = {"law": settings.law, "score": settings.score, "table": table.name}
        text = json.dumps(head | flat(found, others), allow_nan=False) + "\n"
    else:
        text = page(table, law, found, others)
    print(text, end="")
    if out is not None:
        write_atomic(out, text)
        print(out, file=sys.stderr)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; returns the exit code."""
    return run(task, "accuracy", __doc__ or "", quoted(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
