"""Closed forms of single papers, as their authors wrote them: yardsticks to hold the cost model against.

None of them is part of a step of the cost model, which counts more and differently; each says what it leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence

from sweep.cost.arith import maximum, minimum
from sweep.point import Num


def liminal_tok_s(
    *,
    weight_bytes: Num,
    kv_bytes_per_tok: Num,
    context: Num,
    chips: Num,
    bytes_per_s: Num,
    layers: Num,
    sync_s: Num,
) -> Num:
    """Tokens per second and user of one request on many chips that read everything once and wait once per layer.

        1 / ((weights + S kv) / (n bw) + layers sync)

    Args:
        weight_bytes: weights read per token [B].
        kv_bytes_per_tok: cache of one token of context over all layers [B].
        context: S, tokens in the cache.
        chips: n, chips that weights and cache are spread over evenly.
        bytes_per_s: memory bandwidth of one chip [B/s].
        layers: layers of the model.
        sync_s: all waiting of the chips for each other in one layer [s].
    Source: LIMINAL (arXiv 2507.14397). It spreads the cache over all chips, which head parallelism beyond the number
        of KV heads does not; compute is free.
    """
    return 1.0 / ((weight_bytes + context * kv_bytes_per_tok) / (chips * bytes_per_s) + layers * sync_s)


def expert_exchange_bound_s(
    *,
    tokens: Num,
    copies: Num,
    width: Num,
    bytes_per_s: Num,
    dispatch_bytes: Num = 1.0,
    combine_bytes: Num = 2.0,
) -> Num:
    """Seconds that dispatch and combine of one layer keep a GPU's network busy at the least.

        (dispatch + combine) tokens copies width / bw

    Args:
        tokens: tokens that a GPU sends.
        copies: experts per token, the shared one included: 8 + 1.
        width: elements of a token; the paper rounds 7168 to 7000.
        bytes_per_s: network bandwidth of a GPU [B/s].
        dispatch_bytes, combine_bytes: bytes per element on the way there (fp8) and back (bf16).
    Source: DeepSeek-V3 at ISCA'25 (arXiv 2505.09343), section 2.3.2. Every copy is sent, even two to the same GPU.
    """
    return (dispatch_bytes + combine_bytes) * tokens * copies * width / bytes_per_s


def expert_bound_tok_s(exchange_s: Num, *, layers: Num) -> Num:
    """Tokens per second and user when nothing but the exchange takes time and two batches take turns on the network.

        1 / (2 t layers)
    Source: DeepSeek-V3 at ISCA'25 (arXiv 2505.09343), section 2.3.2.
    """
    return 1.0 / (2.0 * exchange_s * layers)


def measured_exchange_s(
    tokens: Num, *, ep: Num, top_k: Num, payload_bytes: Num, t0_s: Num = 18e-6, bytes_per_s: Num = 807e9
) -> Num:
    """Dispatch of `tokens` tokens of one GPU inside a scale-up domain: start-up and bytes.

        t0 + tokens min(EP, k) payload / bw

    Args:
        tokens: tokens of one GPU.
        ep: expert groups.
        top_k: experts per token.
        payload_bytes: bytes of one token.
        t0_s: start-up [s]; 18 us on GB200.
        bytes_per_s: bandwidth reached [B/s]; 807 GB/s on GB200.
    Source: TensorRT-LLM tech blog 18, table for GB200, within 25 %. It counts min(EP, k) copies, the blog's own
        count, where the cost model counts expected distinct ranks.
    """
    return t0_s + tokens * minimum(ep, top_k) * payload_bytes / bytes_per_s


def pipeline_efficiency(chunks: Num, stages: Num) -> Num:
    """Share of the stages' time that is work when M chunks of equal time pass P stages: M / (P - 1 + M).

    Source: LMSYS chunked pipeline parallelism (2026-01-15). Chunks of equal length are not of equal time, which the
        measured values (82.8 % at PP4, 69.6 % at PP8) lie below for.
    """
    return chunks / (stages - 1.0 + chunks)


def prefill_curve(short: tuple[Num, Num], long: tuple[Num, Num]) -> tuple[Num, Num]:
    """The a [s/token] and b [s/token^2] of t = a L + b L^2 through two (tokens, seconds).

    Source: attention grows with the square of a prompt, all else with its length; fits the times to the first token
        of LMSYS chunked pipeline parallelism (2026-01-15).
    """
    (l1, t1), (l2, t2) = short, long
    b = (t2 / l2 - t1 / l1) / (l2 - l1)
    return t1 / l1 - b * l1, b


def tier_s(tier_bytes: Sequence[Num], tier_bytes_per_s: Sequence[Num], *, overlapped: bool = False) -> Num:
    """Seconds to read what lies in several tiers of memory, one after the other or all at once.

        sum of bytes_i / bw_i;   overlapped: the largest of them

    Args:
        tier_bytes: bytes in each tier.
        tier_bytes_per_s: bandwidth of each tier [B/s].
        overlapped: all tiers deliver at the same time.
    Returns: seconds; with all bytes in one tier this is the roofline of that tier.
    Source: section "tiers" of LIMINAL (arXiv 2507.14397) and SRAM-first machines' data sheets.
    """
    total: Num = 0.0
    for size, rate in zip(tier_bytes, tier_bytes_per_s, strict=True):
        seconds = size / rate
        total = maximum(total, seconds) if overlapped else total + seconds
    return total
