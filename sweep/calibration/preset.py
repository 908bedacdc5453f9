"""A fitted preset as files: the YAML that a sweep reads, and beside it what every constant rests on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from sweep.calibration.operators import Constant, Score

HEAD = """\
# What silicon makes of the roofline. Written by `python -m pipelines.calibrate`: edit nothing here, fit again.
# Kernels and links: fitted on public operator timings of ten systems (aiconfigurator-core 0.12.0, Apache-2.0;
# TensorRT-LLM, SGLang, vLLM). What no kernel accounts for, the multipliers, and `serving`: fitted on public end-to-end
# serving points (InferenceX, Apache-2.0, attribution to SemiAnalysis InferenceX). Every constant, its uncertainty and
# its rows stand in {name}.csv, errors on rows that were not fitted in {name}_errors.csv.
"""
ABOUT = {
    "tiles": "output tiles [rows, columns, share of the best rate]: the library takes the fastest. The two large ones\n"
    "# give back the measured steps of GB300 at N = K = 8192; the rate of the small one is an estimate. Timings at\n"
    "# powers of two cannot tell tiles apart (errors differ by less than 0.3 points)",
    "kernels": "shares of the dense peak, and of the bandwidth for weights and cache, inputs (their quantization\n"
    "# included), outputs; the floor; seconds per step of the inner dimension that one processor walks in order (K of\n"
    "# a GEMM, keys of attention); how much of the shorter of two hides. Per math format, and where it differs per\n"
    "# weight format. What a format does not say is the kind's, inputs and outputs move as weights do, an int8 unit\n"
    "# is as the fp8 one. `served`: times longer in a service than timed alone (end-to-end points)",
    "links": "share of the link's bandwidth, start-up, more per rank; one-shot all-reduce; the same on the network.\n"
    "# What a link does not say is that of `reduce`. Not measured, estimates: `hop`, and scale-out figures but those\n"
    "# of `experts`",
    "layer_s": "per layer and step: what no kernel accounts for",
    "host_s": "per step: scheduling, sampling",
    "request_s": "per step and request of the busiest attention group",
    "elementwise": "reads and writes of the residual stream per layer",
    "reserve_fraction": "of the capacity, kept free",
    "imbalance": "slowest over mean GPU in expert tokens, less 1, with expert load balancing",
    "imbalance_off": "and without: share of the simulated excess (Zipf popularity, random placement) that shows",
    "generations": "what a chip generation changes. `factors` multiply a kind's rates and floor (operator timings),\n"
    "# `memory`, `floor` all of them (end-to-end points). A generation that is not here takes the newest of\n"
    "# its vendor, by year and then as listed; a vendor that is not here takes the common constants",
    "serving": "how a service is run: prefill in mixed steps (`phi`), acceptance of drafted tokens, prompts side by\n"
    "# side in a prefill pool; the first token: share of the GPU time, frontend (`handoff` times longer between\n"
    "# pools), launches per layer (`experts` times more with experts), waiting for others (`bunching`); error bands",
}


def scalar(value: Any) -> str:
    """A value as YAML writes it in one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"a constant is {value}")
        text = f"{value:.6g}"
        mantissa, e, exponent = text.partition("e")
        if e:
            return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent)}"
        return text if "." in text else f"{text}.0"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {scalar(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(scalar(v) for v in value) + "]"
    text = str(value)
    plain = text.replace("_", "").replace("-", "").replace(" ", "").isalnum() and not text[0].isdigit()
    return text if plain and text.lower() not in ("null", "true", "false", "yes", "no", "on", "off") else repr(text)


def block(value: Mapping[str, Any], indent: int = 0, width: int = 118) -> list[str]:
    """A mapping as YAML, one line per entry where it fits, nested where it does not."""
    out: list[str] = []
    for key, inner in value.items():
        line = f"{' ' * indent}{key}: {scalar(inner)}"
        if isinstance(inner, Mapping) and inner and (len(line) > width or indent == 0):
            out.append(f"{' ' * indent}{key}:")
            out += block(inner, indent + 2, width)
        else:
            out.append(line)
    return out


def text_of(preset: Mapping[str, Any], name: str) -> str:
    """A preset as the YAML that is shipped."""
    order = ["name", *ABOUT]
    keys = [k for k in order if k in preset or k == "name"] + [k for k in preset if k not in order]
    lines = [HEAD.format(name=name)]
    for key in keys:
        if key in ABOUT:
            lines.append(f"# {ABOUT[key]}\n")
        lines += [line + "\n" for line in block({key: name if key == "name" else preset[key]})]
    return "".join(lines)


def table(constants: Sequence[Constant], before: pl.DataFrame | None = None) -> pl.DataFrame:
    """Constants with what they rest on, and those of a table before them that they do not replace."""
    frame = pl.DataFrame([dataclasses.asdict(c) for c in constants], schema_overrides={"sigma": pl.Float64})
    if before is None:
        return frame
    served = frame["kind"].is_in(["end_to_end"]).any()
    kept = before.filter(~pl.col("name").is_in(frame["name"].to_list()))
    kept = kept.filter(pl.col("kind") != "end_to_end") if served else kept
    return pl.concat([kept.cast(frame.schema), frame])


def errors(scores: Sequence[Score]) -> pl.DataFrame:
    """Errors on rows that were not fitted."""
    frame = pl.DataFrame([dataclasses.asdict(s) for s in scores])
    return frame.with_columns(pl.col(pl.Float64).round(4))
