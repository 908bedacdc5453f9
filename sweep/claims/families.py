"""Accuracy per cost: dense, MoE and LatentMoE at equal loss, the best shape for a machine, next to real models."""

from __future__ import annotations

from typing import Any

import polars as pl

from sweep.accuracy import TIE_MOE_NATS
from sweep.claims.charts import lines
from sweep.claims.study import PRESETS, Finding, Lab
from sweep.report.markdown import grid, integer, number, percent

SPEED = 50.0
MACHINES = {"h100_sxm_80gb": "H100", "gb300_nvl72": "GB300", "rubin_vr200_nvl72_ex_nvl144": "Rubin (announced)"}
FAMILIES = ("dense", "MoE", "LatentMoE")
SHAPE = ("model.n_layers", "model.d_model", "model.n_experts", "model.top_k", "model.d_expert", "model.n_kv_heads")


def family_of() -> pl.Expr:
    """Which family a point belongs to: an invented one, or `real`."""
    return (
        pl.when(pl.col("model") == "dense").then(pl.lit("dense"))
        .when((pl.col("model") == "moe") & (pl.col("model.latent_ratio") > 1)).then(pl.lit("LatentMoE"))
        .when(pl.col("model") == "moe").then(pl.lit("MoE"))
        .otherwise(pl.lit("real"))
    )  # fmt: skip


def best_of(points: pl.DataFrame, loss: float) -> dict[str, Any] | None:
    """The point of most tokens/s/GPU among those of at most this loss."""
    good = points.filter(pl.col("loss") <= loss)
    return None if good.is_empty() else good.sort("tok_s_gpu", descending=True).row(0, named=True)


def shape(row: dict[str, Any]) -> str:
    """A shape in a few words."""
    text = f"L{row['model.n_layers']:g} d{row['model.d_model']:g} kv{row['model.n_kv_heads']:g}"
    if row["family"] != "dense":
        text += f" E{row['model.n_experts']:g} k{row['model.top_k']:g} x {row['model.d_expert']:g}"
    return text


def measure(lab: Lab) -> Finding:
    """Most tokens/s/GPU at a speed per user, over the loss, per family, machine and preset."""
    finding = Finding()
    points = (
        lab.sweep("points").filter(pl.col("tok_s_user") >= SPEED).with_columns(pl.col("model").cast(pl.String))
        .with_columns(family=family_of())
        .select("family", "model", "hardware", "precision", "efficiency", *SHAPE, "model.latent_ratio", "layout.gpus",
                "workload.batch", "loss", "accuracy", "tok_s_gpu", "tok_s_user", "params_total", "params_active")
        .collect()
    )  # fmt: skip
    drawn: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    real_rows: list[list[str]] = []
    for preset in PRESETS:
        for machine, label in MACHINES.items():
            mine = points.filter((pl.col("efficiency") == preset) & (pl.col("hardware").cast(pl.String) == machine))
            of = {f: mine.filter(pl.col("family") == f) for f in (*FAMILIES, "real")}
            if any(of[f].is_empty() for f in FAMILIES):
                continue
            low = max(float(of[f]["loss"].min()) for f in FAMILIES)  # type: ignore[arg-type]
            high = min(float(of[f]["loss"].max()) for f in FAMILIES)  # type: ignore[arg-type]
            levels = [low + (high - low) * i / 11 for i in range(12)]
            best = {f: [best_of(of[f], level) for level in levels] for f in FAMILIES}
            for f in FAMILIES:
                for level, row in zip(levels, best[f], strict=True):
                    if row is not None and preset == "measured":
                        drawn.append({"loss": level, "tok_s_gpu": row["tok_s_gpu"], "family": f, "machine": label})
            if machine == "gb300_nvl72":
                for name, a, b in (("moe_over_dense", "MoE", "dense"), ("latent_over_moe", "LatentMoE", "MoE")):
                    ratios = [x["tok_s_gpu"] / y["tok_s_gpu"] for x, y in zip(best[a], best[b], strict=True) if x and y]
                    for word, pick in (("least", min), ("most", max)):
                        finding.add(
                            f"{preset}.{name}_{word}",
                            pick(ratios),
                            f"{word} tok/s/GPU of {a} over {b} at equal loss, GB300, {SPEED:g} tok/s/user",
                        )
                invented = pl.concat([of[f] for f in FAMILIES])
                gains = []
                for (model,), group in of["real"].group_by(["model"], maintain_order=True):
                    own = group.sort("tok_s_gpu", descending=True).row(0, named=True)
                    rival = best_of(invented, own["loss"])
                    if rival is None:
                        continue
                    gains.append(rival["tok_s_gpu"] / own["tok_s_gpu"])
                    if preset == "measured":
                        real_rows.append(
                            [
                                str(model),
                                number(own["loss"], 4),
                                percent(own["accuracy"]),
                                own["precision"],
                                number(own["tok_s_gpu"]),
                                rival["family"],
                                shape(rival),
                                rival["precision"],
                                number(rival["loss"], 4),
                                number(rival["tok_s_gpu"]),
                                number(gains[-1]),
                            ]
                        )
                finding.add(
                    f"{preset}.over_real",
                    sum(gains) / len(gains),
                    "best invented shape over the real model of equal loss, tok/s/GPU on GB300, mean over models",
                )
            if preset == "measured":
                for level in (levels[2], levels[5], levels[8]):
                    for f in FAMILIES:
                        row = best_of(of[f], level)
                        if row is not None:
                            rows.append(
                                [
                                    label,
                                    number(level, 4),
                                    f,
                                    shape(row),
                                    row["precision"],
                                    number(row["params_total"] / 1e9),
                                    number(row["params_active"] / 1e9),
                                    integer(row["layout.gpus"]),
                                    integer(row["workload.batch"]),
                                    number(row["tok_s_gpu"]),
                                ]
                            )
    finding.charts.append(
        ("families", f"Most tokens/s/GPU at {SPEED:g} tok/s/user against loss, per family and machine; `measured`.",
         lines(pl.DataFrame(drawn), x="loss", y="tok_s_gpu", line="family", panel="machine", log_x=False,
               title="Throughput at equal loss", subtitle=[f"{SPEED:g} tok/s/user or more, 8k context, measured; loss by the accuracy proxy, lower is better"],
               x_title="loss [nats/tok]", y_title="output tok/s/GPU"))
    )  # fmt: skip
    finding.tables.append(
        (f"The best shape per family at three losses (`measured`, {SPEED:g} tok/s/user or more, 8k context). Families within "
         f"{TIE_MOE_NATS:g} nats of one another are a tie of the accuracy proxy.",
         grid(["machine", "loss", "family", "shape", "format", "parameters [B]", "active [B]", "GPUs", "batch", "tok/s/GPU"],
              rows, left=[True, False, True, True, True] + [False] * 5))
    )  # fmt: skip
    finding.tables.append(
        ("Real models and the best invented shape of no more loss on GB300 (`measured`). The proxy knows shape and size, not "
         "data or training: a real model's own score may differ.",
         grid(["model", "loss", "proxy score [%]", "format", "tok/s/GPU", "family", "shape", "format", "loss", "tok/s/GPU", "ratio"],
              real_rows, left=[True, False, False, True, False, True, True, True, False, False, False]))
    )  # fmt: skip
    finding.widen(lab.sigma(2, "hardware=gb300_nvl72"), "measured.*")
    return finding
