r"""Match a prefill pool with a decode pool anew: another fleet, another limit, pools of different sweeps.

  python -m pipelines.sweep serving=disaggregated model=llama_3_1_70b hardware=gb300_nvl72 precision=nvfp4 workload=rag
  python -m pipelines.match outputs/sweep/<time> --gpus 16 --ttft 0.5
  python -m pipelines.match PREFILL_SWEEP DECODE_SWEEP --gpus 72 --per usd --out outputs/mixed

One PATH is a sweep with serving=disaggregated: both of its pools. Two PATHs are two such sweeps (or their pools): the
prefill pool of the first with the decode pool of the second, whatever machines they are on; model, formats and load
must agree. Written to --out: points (every match worth having), their frontier, a manifest, as any sweep has them, so
that frontier, query, sla and report read it.

For every decode layout and batch the match tries all prefill layouts, and finds the whole numbers of replicas of both
that give most output tokens per GPU (--per usd: per dollar; --per watt: per watt) over all GPUs of both pools.

Exit codes: 0; 1 for bad input; 2 for bad usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pipelines.query import Parser, guarded, note
from sweep import disaggregate, store
from sweep.errors import BadInput
from sweep.report import table

SHOWN = (
    "model", "hardware", "prefill.hardware", "prefill.layout", "layout", "n_prefill", "n_decode", "workload.batch",
    "gpus", "accuracy", "tok_s_gpu", "tok_s_user", "ttft_s", "kv_link_share", "usd_per_mtok",
)  # fmt: skip


def pool(path: Path, name: str) -> Path:
    """The directory of one pool: that of a disaggregated sweep, or the path itself."""
    inside = path / name
    return inside if inside.is_dir() else path


def task(arguments: argparse.Namespace) -> int:
    """Match, write, print."""
    paths: list[Path] = arguments.paths
    if len(paths) > 2:
        raise BadInput(f"{len(paths)} paths: give one disaggregated sweep, or a prefill and a decode sweep")
    if arguments.gpus < 2:
        raise BadInput(f"--gpus={arguments.gpus}: two pools need at least 2 GPUs; nearest: 2")
    for option in ("ttft", "speed"):
        given = getattr(arguments, option)
        if given is not None and not given > 0:
            raise BadInput(f"--{option}={given:g}: must be greater than 0")
    prefill, decode = pool(paths[0], "prefill"), pool(paths[-1], "decode")
    out: Path | None = arguments.out
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"--out={out}: exists; name a new directory")
    started = time.perf_counter()
    points = disaggregate.paired(
        prefill,
        decode,
        gpus=arguments.gpus,
        per=arguments.per,
        ttft_max_s=float("inf") if arguments.ttft is None else arguments.ttft,
        same_hardware=len(paths) == 1 and not arguments.mix_hardware,
    )
    if arguments.speed is not None:
        points = points.filter(points["tok_s_user"] >= arguments.speed)
    if points.is_empty():
        note("no match: no pair of layouts keeps the limits within these GPUs")
        return 0
    objectives = arguments.objectives.split(",")
    manifests = {"prefill": store.manifest(prefill), "decode": store.manifest(decode)}
    found = disaggregate.found(points, objectives, arguments.by.split(",") if arguments.by else [])
    if out is not None:
        disaggregate.write(
            points,
            found,
            out,
            decode=decode,
            seconds=time.perf_counter() - started,
            manifests=manifests,
            more={
                "title": f"{prefill} with {decode}",
                "config_sha256": manifests["decode"].get("config_sha256"),
                "efficiency": manifests["decode"].get("efficiency"),
                "choices": manifests["decode"].get("choices"),
                "gpus_at_most": arguments.gpus,
            },
        )
    print(f"{points.height:,} matches, {found.frame.height:,} on the frontier of {', '.join(found.objectives)}")
    top = store.completed(found.frame.sort("tok_s_gpu", descending=True).head(arguments.top))
    print(table(top, [c for c in SHOWN if c != "prefill.hardware" or len(paths) == 2 or arguments.mix_hardware]))
    if out is not None:
        print(out / "frontier.parquet")
    else:
        note("not written: --out DIR writes points and frontier")
    return 0


def parser() -> Parser:
    """The command line."""
    line = Parser("match", __doc__ or "")
    line.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a disaggregated sweep; or prefill, decode")
    line.add_argument("--gpus", type=int, default=72, metavar="N", help="that both pools may have together (72)")
    line.add_argument("--ttft", type=float, metavar="S", help="longest time to the first token, cache moved")
    line.add_argument("--speed", type=float, metavar="T", help="least tokens/s/user")
    line.add_argument("--per", choices=("gpu", "usd", "watt"), default="gpu", help="what output is counted against")
    line.add_argument("--mix-hardware", action="store_true", help="pair pools on different machines of one sweep too")
    line.add_argument("--objectives", default="accuracy,tok_s_gpu,tok_s_user", metavar="A,B,...")
    line.add_argument("--by", default="hardware", metavar="A,B,...", help="a frontier per value of these (hardware)")
    line.add_argument("--top", type=int, default=10, metavar="N", help="rows to show (10)")
    line.add_argument("--out", type=Path, metavar="DIR", help="a new directory to write to")
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    return guarded(task, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
