"""Helix: cache shards by sequence and layouts that differ between attention and FFN, against layouts without it."""

from __future__ import annotations

import polars as pl

from sweep.claims.charts import lines
from sweep.claims.study import PRESETS, Finding, Lab
from sweep.report.markdown import grid, integer, number, tokens
from sweep.report.selection import envelope

MODELS = {"deepseek_r1": "DeepSeek-R1", "llama_3_1_405b": "Llama-3.1-405B"}
PUBLISHED = {"deepseek_r1": (1.5, 32.0), "llama_3_1_405b": (1.13, 4.0)}  # interactivity, users at a latency budget
LONG = 1_000_000
PAYS = 1.05
CLASSES = {
    "TP, PP, EP, DP": pl.col("layout.kvp") == 1,
    "with Medha's KVP": (pl.col("layout.kvp") == 1) | pl.col("layout.ffn_tied").cast(pl.Boolean),
    "Helix": pl.lit(True),
}


def frontier(points: pl.DataFrame) -> pl.DataFrame:
    """The upper-right envelope in (tok_s_user, tok_s_gpu)."""
    return envelope(points, "tok_s_user", "tok_s_gpu")


def throughput_at(front: pl.DataFrame, speed: float) -> float:
    """Most tokens/s/GPU at a speed or faster; 0 where nothing is that fast."""
    fast = front.filter(pl.col("tok_s_user") >= speed)
    return float(fast["tok_s_gpu"].max() or 0.0)  # type: ignore[arg-type]


def gains(with_it: pl.DataFrame, without: pl.DataFrame) -> tuple[float, float, float]:
    """Interactivity ratio, users at the baseline's tightest budget, and the most over all budgets."""
    fastest, before = float(with_it["tok_s_user"].max()), float(without["tok_s_user"].max())  # type: ignore[arg-type]
    tight = throughput_at(with_it, before) / throughput_at(without, before)
    most = max(throughput_at(with_it, s) / throughput_at(without, s) for s in without["tok_s_user"].to_list())
    return fastest / before, tight, most


def measure(lab: Lab) -> Finding:
    """Frontiers at 64k to 1M tokens of context on up to 64 GPUs, three classes of layouts, both presets."""
    finding = Finding()
    points = lab.sweep("points").select(
        "model", "efficiency", "workload.context", "workload.batch", "tok_s_user", "tok_s_gpu",
        "layout.kvp", "layout.ffn_tied", "layout.tpa", "layout.dpa", "layout.tpf", "layout.ep", "layout.pp", "layout.gpus",
    ).collect()  # fmt: skip
    rows: list[list[str]] = []
    drawn: list[pl.DataFrame] = []
    pays: dict[tuple[str, str], float] = {}
    for model, label in MODELS.items():
        for preset in PRESETS:
            mine = points.filter((pl.col("model") == model) & (pl.col("efficiency") == preset))
            for context in sorted(mine["workload.context"].unique().to_list()):
                at = mine.filter(pl.col("workload.context") == context)
                fronts = {name: frontier(at.filter(keep)) for name, keep in CLASSES.items()}
                if any(f.is_empty() for f in fronts.values()):
                    continue
                plain = gains(fronts["Helix"], fronts["TP, PP, EP, DP"])
                medha = gains(fronts["Helix"], fronts["with Medha's KVP"])
                if medha[0] >= PAYS and (model, preset) not in pays:
                    pays[model, preset] = context
                rows.append([label, preset, tokens(context), *(number(g) for g in (*plain, *medha))])
                if context == LONG:
                    for base, g in (("plain", plain), ("medha", medha)):
                        finding.add(
                            f"{preset}.{model}.speed_{base}",
                            g[0],
                            f"fastest tok/s/user with Helix over without, "
                            f"1M context, {label}, baseline {'TP, PP, EP, DP' if base == 'plain' else 'with Medha KVP'}",
                        )
                        finding.add(
                            f"{preset}.{model}.users_{base}",
                            g[1],
                            "users per GPU at the baseline's tightest budget, likewise",
                        )
                        finding.add(
                            f"{preset}.{model}.most_{base}", g[2], "most users per GPU over all budgets, likewise"
                        )
                    for name, front in fronts.items():
                        drawn.append(
                            front.select("tok_s_user", "tok_s_gpu").with_columns(
                                layouts=pl.lit(name), panel=pl.lit(f"{label}, {preset}")
                            )
                        )
            finding.add(
                f"{preset}.{model}.pays_from",
                pays.get((model, preset), float("inf")),
                f"shortest context of those tried at which Helix is {PAYS:g} times as fast, {label}, against Medha",
                "tok",
            )
    base = "model=llama_3_1_405b efficiency=ideal workload.batch=8 workload.context=1000000 precision=nvfp4"
    kv: dict[str, float] = {}
    for name, words in {"tp8": "layout.tpa=8", "tp64": "layout.tpa=64", "kvp8": "layout.tpa=8 layout.kvp=8"}.items():
        ops = lab.point(f"{base} {words}").ops
        kv[name] = sum(o["count"] * o["kv_bytes"] for o in ops if o["phase"] == "decode")
    finding.add(
        "kv_tp64_over_tp8", kv["tp64"] / kv["tp8"], "cache bytes a GPU reads at TP64 over TP8 (8 KV heads), Llama-405B"
    )
    finding.add("kv_kvp8_over_tp8", kv["kvp8"] / kv["tp8"], "at TP8 x KVP8 over TP8")
    finding.charts.append(
        ("helix", "Frontiers at 1M tokens of context, up to 64 GPUs of GB200 NVL72, FP4.",
         lines(pl.concat(drawn), x="tok_s_user", y="tok_s_gpu", line="layouts", panel="panel",
               title="What Helix adds at 1M tokens", subtitle=["GB200 NVL72, FP4, up to 64 GPUs; each line holds the one before it"],
               x_title="interactivity [tok/s/user]", y_title="output tok/s/GPU"))
    )  # fmt: skip
    finding.tables.append(
        ("Helix over layouts without it: fastest speed, users per GPU at the baseline's fastest speed, and the most over all "
         "speeds. Two baselines: TP, PP, EP, DP alone; and with Medha-style KVP, whose FFN stays on the TP group.",
         grid(["model", "preset", "context", "speed, plain", "users, plain", "most, plain", "speed, Medha", "users, Medha",
               "most, Medha"], rows, left=[True, True] + [False] * 7))
    )  # fmt: skip
    distance = []
    for model, label in MODELS.items():
        speed, users = PUBLISHED[model]
        distance.append(
            [label, f"{speed:g}", f"{users:g}"]
            + [number(finding.numbers[f"{p}.{model}.{k}"].value) for p in PRESETS for k in ("speed_medha", "most_medha", "speed_plain", "most_plain")]
        )  # fmt: skip
    finding.tables.append(
        ("How far from the published gains (simulated GB200, FP4, 1M tokens, best of TP/PP/EP/KVP without Helix as baseline; "
         "latencies and drafting not published, none drafted here): speed and most users per GPU.",
         grid(["model", "published speed", "published users", *(f"{k}, {p}" for p in PRESETS for k in
               ("speed, Medha", "users, Medha", "speed, plain", "users, plain"))], distance, left=[True] + [False] * 10))
    )  # fmt: skip
    finding.add(
        "layouts",
        points.select(
            "layout.tpa", "layout.kvp", "layout.dpa", "layout.tpf", "layout.ep", "layout.pp", "layout.ffn_tied"
        ).n_unique(),
        "layouts with feasible points",
    )
    finding.add("points", points.height, "feasible points evaluated")
    finding.notes.append(
        "Helix points may hide their exchange request by request (HOP-B); Medha's and plain ones have none to hide. "
        f"{integer(points.height)} feasible points."
    )
    finding.widen(lab.sigma(2), "measured.*.speed_*", "measured.*.users_*", "measured.*.most_*")
    return finding
