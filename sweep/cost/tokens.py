"""Who works on how many tokens: every share of requests or tokens is rounded up, the busiest GPU sets the pace."""

from __future__ import annotations

from sweep.cost.arith import ceil_div, maximum, minimum, where
from sweep.point import Layout, Num, Tokens


def stage_gpus(layout: Layout) -> Num:
    """GPUs of one pipeline stage: tpa kvp dpa."""
    return layout.tpa * layout.kvp * layout.dpa


def ffn_gpus(layout: Layout) -> Num:
    """GPUs that a dense FFN is cut over when dpa = 1: all of the stage; Medha's tied FFN only over tpa."""
    return where(layout.ffn_tied > 0, layout.tpa, stage_gpus(layout))


def microbatches(layout: Layout, batch: Num) -> Num:
    """Microbatches in flight: as asked, but no more than requests; min(pp, batch) where not asked (0)."""
    return minimum(where(layout.microbatches > 0, layout.microbatches, layout.pp), maximum(batch, 1.0))


def _shares(layout: Layout, total: Num, group_tokens: Num) -> tuple[Num, Num]:
    """Tokens of the dense FFN and owned tokens: all of them when dpa = 1, else shares rounded up."""
    alone = layout.dpa <= 1.0
    ffn = where(alone, total, ceil_div(total, layout.ep))
    owned = where(alone, total, ceil_div(total, stage_gpus(layout)))
    return ffn, owned


def decode_tokens(layout: Layout, batch: Num, drafted: Num) -> Tokens:
    """Tokens of one decode step of one microbatch; `drafted` tokens per request are verified along with the next."""
    per_microbatch = ceil_div(batch, microbatches(layout, batch))
    per_request = 1.0 + drafted
    total = per_microbatch * per_request
    requests = ceil_div(per_microbatch, layout.dpa)
    group = requests * per_request
    ffn, owned = _shares(layout, total, group)
    return Tokens(total=total, requests=requests, project=group, attend=group, ffn=ffn, owned=owned, head=group)


def prefill_tokens(layout: Layout, chunk: Num) -> Tokens:
    """Tokens of one prefill chunk: one request per attention group, so T = chunk x dpa in the experts.

    Under kvp each rank projects its share of the chunk.
    """
    total = chunk * layout.dpa
    ffn, owned = _shares(layout, total, chunk)
    return Tokens(
        total=total, requests=1.0, project=ceil_div(chunk, layout.kvp), attend=chunk, ffn=ffn, owned=owned, head=1.0
    )
