"""The detailed cost model: the terms of a step that physics gives and published measurements support.

    step = host + head + body + attention + traffic + launches + links

| term | formula, on one of tp devices |
|---|---|
| body | soft maximum of compute 2 x P x tokens / (FLOP/s x mfu) and weights read / (B/s x mbu); experts: expert_mfu |
| head | the same over the vocabulary's matrix, computed for sampled rows only and read in every step |
| KV read | contexts of decoding sequences x KV bytes / (B/s x kv_mbu), x mixed_kv in a step that has a prompt in it |
| attention | soft maximum of 4 x heads x head_dim x layers x sum q(c + q/2) / (FLOP/s x attention_mfu) and KV read |
| traffic | tokens x layers x 9 vectors x hidden x 2 bytes / (B/s x mbu): norms, rotary, activation, residual |
| launches | layers x layer_us, and layers x eager_layer_us where a prompt keeps the step out of CUDA graphs |
| links | all-reduce 2 x layers x (allreduce_us + 2(tp-1)/tp x tokens x hidden x 2 / bus); experts' all-to-all |
| host | overhead_ms + sequence_us x scheduled requests + request_ms x requests that begin |

The soft maximum is (c^p + m^p)^(1/p): over 40,000 profiled GEMMs of two cards a hard maximum erred by 7.6 % and 4.9 %,
p = 2 by 3.4 % and 3.0 %, and was up to 27 % low between 64 and 512 tokens, where servers live. A mixture's routed
experts are read as far as they are hit: experts x (1 - ((experts - k) / experts)^tokens). `ingest_ms` is time between a
request's send and its place in the queue (HTTP, tokenizer); it delays the request and keeps no device busy, so that it
is not in a step: the simulator adds it. A draft (speculative decoding) is a chunk after which nothing is computed: its
tokens go through layers and head and see the KV that their sequence reads anyway. `terms` gives each term of a step.

What no datasheet has is in `DetailedParameters`. Efficiencies are shares of the datasheet's peaks. A device may carry
its own (`Hardware.detailed`, which `servesim calibrate` writes); what it does not say has the default.

Sources: kernel tables and vLLM logs of LLMServingSim 2.0 (casys-kaist/LLMServingSim, RTX 4090 and RTX PRO 6000), the
formulas of BLIS (inference-sim), NVIDIA's aiconfigurator and inference-lab, and the fits of `servesim validate`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from servesim.catalog.hardware import Hardware
from servesim.catalog.model import Attention, Model
from servesim.errors import InputError
from servesim.units import suggest


@dataclass(slots=True, frozen=True)
class ParameterFacts:
    """What is known of a parameter beside its default.

    An efficiency above 1 is possible: a processor's peaks are round figures, and a fit may ask for it of any device,
    which is warned of.
    """

    low: float
    high: float
    about: str
    evidence: str  # where the default comes from: kernel tables and logs of LLMServingSim 2.0, peers' figures, fits


def _parameter(default: float, low: float, high: float, about: str, evidence: str) -> Any:
    return field(default=default, metadata={"parameter": ParameterFacts(low, high, about, evidence)})


@dataclass(slots=True, frozen=True, kw_only=True)
class DetailedParameters:
    """The numbers of the model that no datasheet has: the default of each, its bounds, what it is, its evidence."""

    mfu: float = _parameter(
        *(0.75, 0.01, 100.0, "share of peak FLOP/s"),
        "GEMM tables: 0.86 (RTX PRO 6000), 0.96 (4090); less once all is counted, as both vLLM runs say",
    )
    mbu: float = _parameter(
        *(0.82, 0.05, 100.0, "share of peak bandwidth, weights"),
        "GEMM tables: 0.80 (RTX PRO 6000), 0.90 (4090); 0.82 for the experts of a mixture",
    )
    overhead_ms: float = _parameter(
        *(1.5, 0.0, 1000.0, "host time of a step"),
        "1.3-2.0 fitted for vLLM 0.19 on desktop processors",
    )
    kv_mbu: float = _parameter(
        *(0.80, 0.001, 100.0, "share of peak bandwidth, KV reads"),
        "attention tables: 0.78 (RTX PRO 6000), 0.87 (4090)",
    )
    attention_mfu: float = _parameter(
        *(0.55, 0.0005, 100.0, "share of peak FLOP/s, prompt attention"),
        "long chunks: 0.43-0.58 (RTX PRO 6000), 0.62-0.84 (4090)",
    )
    expert_mfu: float = _parameter(
        *(0.08, 0.002, 100.0, "share of peak FLOP/s, routed experts"),
        "157 groups of the silicon table: 0.04-0.13 under vLLM, 0.01-0.19 elsewhere; dense: 0.4-1",
    )
    mixed_kv: float = _parameter(
        *(1.9, 1.0, 8.0, "KV reads beside a prompt, times"),
        "27,408 profiled steps: 1.5-1.8 (RTX PRO 6000), 1.9-2.7 (4090)",
    )
    decode_work: float = _parameter(
        *(1.0, 0.2, 50.0, "compute of a decoding token over a prompt's"),
        "1 on GPUs; 2.3 seen on two cores under llama.cpp",
    )
    softness: float = _parameter(
        *(2.0, 1.0, 20.0, "p of the soft maximum"),
        "40,000 GEMMs: 1.5-2.5 fit equally well, a hard corner twice as badly",
    )
    traffic_vectors: float = _parameter(
        *(9.0, 0.0, 100.0, "vectors moved per token and layer"),
        "token-wise kernels: 106 us a layer at 2,048 tokens (RTX PRO 6000)",
    )
    layer_us: float = _parameter(
        *(12.0, 0.0, 1000.0, "small kernels of a layer"),
        "attention launches of both cards",
    )
    eager_layer_us: float = _parameter(
        *(300.0, 0.0, 5000.0, "the same beside a prompt"),
        "330-490 in a joint fit of both vLLM runs; aiconfigurator has 800",
    )
    sequence_us: float = _parameter(
        *(25.0, 0.0, 10000.0, "host time of a scheduled request"),
        "14-27 in that fit; BLIS has 4.4, and 46 a streamed token",
    )
    request_ms: float = _parameter(
        *(0.5, 0.0, 10000.0, "host time of a request's first step"),
        "a guess that both vLLM runs bear",
    )
    ingest_ms: float = _parameter(
        *(4.0, 0.0, 60000.0, "from send to queue"),
        "a guess for one machine; BLIS has 15.6 on an H100 at low load",
    )
    allreduce_us: float = _parameter(
        *(12.0, 0.0, 10000.0, "latency of an all-reduce"),
        "10-20: LLMServingSim, aiconfigurator",
    )
    bus_share: float = _parameter(
        *(0.75, 0.02, 1.5, "share of the link's bandwidth"),
        "three quarters of NVLink's peak: BLIS, aiconfigurator",
    )
    graph_limit: float = _parameter(
        *(512.0, 0.0, 4096.0, "largest CUDA graph"),
        "vLLM's largest captured batch",
    )

    def __post_init__(self) -> None:
        for name, known in PARAMETERS.items():
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not known.low <= value <= known.high:
                raise InputError(
                    f"{name} of the detailed cost model is {value!r}, must be {known.low:g} to {known.high:g}"
                )

    @classmethod
    def of(cls, hardware: Hardware) -> DetailedParameters:
        """Return the parameters of a device: those it carries, else the defaults of its kind.

        Processors and unified memory keep their preset's own mfu, mbu and overhead, and have no CUDA graphs.
        """
        known: dict[str, float] = {}
        if hardware.kind != "gpu":
            known = {
                "mfu": hardware.mfu,
                "mbu": hardware.mbu,
                "kv_mbu": hardware.mbu,
                "attention_mfu": hardware.mfu,
                "expert_mfu": hardware.mfu,
                "overhead_ms": hardware.overhead_ms,
                "mixed_kv": 1.0,
                "layer_us": 0.0,
                "eager_layer_us": 0.0,
                "graph_limit": 0.0,
            }
        return cls.from_mapping({**known, **(hardware.detailed or {})})

    @classmethod
    def from_mapping(cls, values: Mapping[str, float]) -> DetailedParameters:
        """Return the defaults with `values` in their places; refuse names that are no parameter."""
        for name in values:
            if name not in PARAMETERS:
                raise suggest("parameter of the detailed cost model", str(name), PARAMETERS)
        return cls(**values)

    def as_dict(self) -> dict[str, float]:
        """Return every parameter by name."""
        return {name: getattr(self, name) for name in PARAMETERS}


PARAMETERS: dict[str, ParameterFacts] = {each.name: each.metadata["parameter"] for each in fields(DetailedParameters)}


_LEAST_BODY = 0.001  # of all weights; the sparsest mixtures have a body of a hundredth


@dataclass(slots=True, frozen=True, kw_only=True)
class Split:
    """A model's weights by how a step uses them. Bytes and parameters are the whole model's, not one device's."""

    body_params: float  # that compute every token: all but routed experts and the vocabulary
    body_bytes: float
    routed_params: float  # of all routed experts
    routed_bytes: float
    routed_share: float  # of them that computes one token: top_k / experts
    head_params: float
    head_bytes: float

    @classmethod
    def of(cls, model: Model) -> Split:
        """Split the weights of `model`. An input embedding is looked up, not read; a tied one is read as the head.

        Where shapes claim more than the parameters that there are, a thousandth of them is left to the body.
        """
        outer = model.head_params + model.embedding_params
        body = max(model.params - model.expert_params - outer, _LEAST_BODY * model.params)
        outer_bytes = model.head_bytes + model.embedding_bytes
        body_bytes = max(model.weights_bytes - model.expert_bytes - outer_bytes, _LEAST_BODY * model.weights_bytes)
        return cls(
            body_params=body,
            body_bytes=body_bytes,
            routed_params=model.expert_params,
            routed_bytes=model.expert_bytes,
            routed_share=model.experts.top_k / model.experts.count if model.experts else 0.0,
            head_params=model.head_params,
            head_bytes=model.head_bytes,
        )


# vLLM's list of captured batch sizes: 1, 2, 4, then every 8 up to 256, every 16 beyond (vllm/config/vllm.py).
_CAPTURED: list[int] = [1, 2, 4, *range(8, 257, 8), *range(272, 4097, 16)]

_HALF_CHUNK = 512.0  # tokens of a chunk at which prompt attention reaches half of its efficiency, RTX PRO 6000's table
_EIGHT_BITS = ("fp8", "int8", "fp4")  # computed at the FP8 rate where the device has one; FP4 may be faster still

TERMS: dict[str, str] = {
    "weights": "reading the layers' weights",
    "compute": "matrix products of the layers",
    "head": "the vocabulary matrix, for sampled rows",
    "kv": "reading the KV cache of decoding sequences",
    "mixed": "the same, slower beside a prompt",
    "attention": "attention of prompts over themselves",
    "traffic": "norms, rotary, activations, residuals",
    "launches": "small kernels of every layer",
    "links": "all-reduces, all-to-alls, sends between stages",
    "host": "scheduler, sampler, detokenizer",
}
"""Every term of a step by name, and what it is."""


class Detailed:
    """Seconds of a step under `DetailedParameters`; `decode` and `step` are how an engine asks, `terms` explains.

    Where KV is not one figure per token (sliding windows, recurrent layers) a decoding batch is taken at its mean
    context. `kv_bytes_per_token`, the figure of a memory plan, is not needed for that and ignored.
    """

    __slots__ = ("_attention_s", "_flop_per_s", "_kv_s", "_mixed_kv_s", "_of_batch", "_split", "_windowed", "byte_s",
                 "can_beat_floor", "experts_over", "hardware", "ingest_s", "model", "parallel", "parameters", "ranks",
                 "stages")  # fmt: skip

    def __init__(
        self,
        model: Model,
        hardware: Hardware,
        tensor_parallel: int = 1,
        *,
        kv_bytes_per_token: int | None = None,
        pipeline_parallel: int = 1,
        expert_parallel: int = 1,
        data_parallel: int = 1,
        parameters: DetailedParameters | None = None,
    ) -> None:
        """Prepare the model on `tensor_parallel` x `pipeline_parallel` devices; `parameters` None takes the device's.

        A pipeline divides what grows with the batch, not the weight read: a batch goes through in as many parts as
        there are stages, and each part reads the weights of every stage. `expert_parallel` devices have whole experts;
        `data_parallel` ranks, each as busy as this one, share the experts and send each other their tokens.
        """
        for name, value in (
            ("tensor_parallel_size", tensor_parallel),
            ("pipeline_parallel_size", pipeline_parallel),
            ("expert_parallel_size", expert_parallel),
            ("data_parallel_size", data_parallel),
        ):
            if value < 1:
                raise InputError(f"{name} is {value}, must be 1 or more")
        self.model, self.hardware = model, hardware
        self.parallel, self.stages, self.experts_over = tensor_parallel, pipeline_parallel, expert_parallel
        self.ranks = data_parallel if model.experts is not None else 1
        p = self.parameters = DetailedParameters.of(hardware) if parameters is None else parameters
        self._split = Split.of(model)
        rate = hardware.fp8_tflops if model.compute_dtype in _EIGHT_BITS else None
        self._flop_per_s = (rate or hardware.tflops) * 1e12 * tensor_parallel * pipeline_parallel
        self.byte_s = 1 / (hardware.bandwidth_gb_s * 1e9)
        # Layers that keep every token, as one figure, and the others by group.
        whole = [group for group in model.attention if group.window is None]
        self._windowed = tuple(
            (group, group.bytes_per_token(model.kv_dtype, tensor_parallel))
            for group in model.attention
            if group.window is not None or group.state_bytes
        )
        kv_bytes = sum(group.bytes_per_token(model.kv_dtype, tensor_parallel) for group in whole)
        self._kv_s = kv_bytes * self.byte_s / p.kv_mbu / pipeline_parallel
        self._mixed_kv_s = self._kv_s * p.mixed_kv
        self._attention_s = [
            (_attention_flop(group, model) / (hardware.tflops * 1e12 * p.attention_mfu * tensor_parallel), group.window)
            for group in model.attention
            if group.kv_heads or group.latent_dim
        ]
        self._of_batch: list[float] = []  # seconds of a decode-only step beside its KV reads, by number of sequences
        self.ingest_s: float = p.ingest_ms / 1e3
        self.can_beat_floor: bool = False  # its own bounds and its own bytes: the roofline's floor is not its floor

    def decode(self, sequences: int, context_tokens: int) -> float:
        """Return the seconds of a step in which `sequences` requests decode, with `context_tokens` behind them."""
        of_batch = self._of_batch
        if sequences >= len(of_batch):
            for batch in range(len(of_batch), sequences + 1):
                of_batch.append(self._gemms(self._padded(batch), batch, batch, 0) + self._host(batch, 0))
        seconds = of_batch[sequences] + context_tokens * self._kv_s
        return seconds + self._window_s(sequences, context_tokens) if self._windowed else seconds

    def step(self, sequences: int, context_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Return the seconds of a step that decodes `sequences` and computes `chunks` of (new tokens, computed)."""
        if not chunks:
            return self.decode(sequences, context_tokens)
        new = begun = drafted = prompts = 0
        for tokens, computed in chunks:
            if not computed:
                drafted += tokens
                continue
            new += tokens
            prompts += 1
            if tokens == computed:
                begun += 1
        verified = sequences + drafted
        if not new:
            tokens = self._padded(verified)
            seconds = self._gemms(tokens, tokens, verified, 0) + self._host(sequences, 0) + context_tokens * self._kv_s
            return seconds + self._window_s(sequences, context_tokens) if self._windowed else seconds
        seconds = self._gemms(verified + new, verified, verified + prompts, new)
        seconds += self._host(sequences + prompts, begun)
        seconds += context_tokens * self._mixed_kv_s + self._prompt_attention(chunks)
        if self._windowed and sequences:
            seconds += self._window_s(sequences, context_tokens) * self.parameters.mixed_kv
        return seconds

    def terms(self, sequences: int, context_tokens: int, chunks: Sequence[tuple[int, int]] = ()) -> dict[str, float]:
        """Return the seconds of each of `TERMS` in a step; they add up to what `step` returns.

        Of a soft maximum each side has its share of c^p + m^p.
        """
        p = self.parameters
        verified = sequences + sum(tokens for tokens, computed in chunks if not computed)
        prompts = [chunk for chunk in chunks if chunk[1]]
        begun = sum(tokens == computed for tokens, computed in prompts)
        tokens = verified + sum(new for new, _ in prompts) if prompts else self._padded(verified)
        decoding = verified if prompts else tokens
        compute, read = self._body(tokens, decoding)
        body = _soft_maximum(compute, read, p.softness)
        share = _share(compute, read, p.softness)
        kv = context_tokens * self._kv_s + (self._window_s(sequences, context_tokens) if sequences else 0.0)
        terms = {
            "weights": body * (1 - share),
            "compute": body * share,
            "head": self._head(verified + len(prompts)),
            "kv": kv,
            "mixed": kv * (p.mixed_kv - 1) if prompts else 0.0,
            "attention": self._prompt_attention(prompts),
            "traffic": self._traffic(tokens),
            "launches": self._launches(bool(prompts)),
            "links": self._links(tokens),
            "host": self._host(sequences + len(prompts), begun),
        }
        assert terms.keys() == TERMS.keys()
        return terms

    def floor_seconds(self, sequences: int, context_tokens: int, chunks: Sequence[tuple[int, int]] = ()) -> float:
        """Return the least seconds that the datasheet allows: all efficiencies 1, perfect overlap, nothing else."""
        tokens = sequences + sum(new for new, _ in chunks)
        split = self._split
        flop = 2 * tokens * (split.body_params + split.routed_params * split.routed_share)
        read_s = split.body_bytes * self.byte_s / self.parallel + context_tokens * self._kv_s * self.parameters.kv_mbu
        return max(flop / self._flop_per_s, read_s)

    # The terms, each in seconds

    def _gemms(self, tokens: int, decoding: int, rows: int, new: int) -> float:
        """Return everything beside attention and host: what depends on numbers of tokens alone."""
        compute, read = self._body(tokens, tokens if not new else decoding)
        return (
            _soft_maximum(compute, read, self.parameters.softness)
            + self._head(rows)
            + self._traffic(tokens)
            + self._launches(new > 0)
            + self._links(tokens)
        )

    def _body(self, tokens: int, decoding: int) -> tuple[float, float]:
        """Return (compute, weights read) of the layers for `tokens`, of which `decoding` are single ones."""
        p, split = self.parameters, self._split
        flop = 2 * (tokens + (p.decode_work - 1) * decoding)
        busiest = self._busiest(tokens)
        work = split.body_params / p.mfu + split.routed_params * split.routed_share * busiest / p.expert_mfu
        hit = 1 - (1 - split.routed_share) ** (tokens * self.ranks) if split.routed_params else 0.0
        read = split.body_bytes + split.routed_bytes * min(1.0, hit * busiest) / self.ranks
        return flop * work / self._flop_per_s, read * self.byte_s / (p.mbu * self.parallel)

    def _busiest(self, tokens: int) -> float:
        """Return the load of the busiest of the devices that share the experts, over the mean.

        The largest of `n` counts of mean m is about m + sqrt(2 m ln n) (Raab and Steger, "Balls into bins", 1998).
        """
        if self.experts_over == 1 or self.model.experts is None:
            return 1.0
        mean = max(tokens, 1) * self.ranks * self.model.experts.top_k / self.experts_over
        return min(1 + math.sqrt(2 * math.log(self.experts_over) / mean), float(self.experts_over))

    def _head(self, rows: int) -> float:
        p, split = self.parameters, self._split
        compute = 2 * split.head_params * rows / (self._flop_per_s * self.stages**-1 * p.mfu)
        return _soft_maximum(compute, split.head_bytes * self.byte_s / (p.mbu * self.parallel), p.softness)

    def _traffic(self, tokens: int) -> float:
        """Return the time of token-wise kernels; every device of a tensor-parallel group does all of it."""
        p, model = self.parameters, self.model
        return tokens * model.layers * p.traffic_vectors * model.hidden * 2 * self.byte_s / p.mbu / self.stages

    def _launches(self, eager: bool) -> float:
        p = self.parameters
        return self.model.layers * (p.layer_us + (p.eager_layer_us if eager else 0.0)) / 1e6

    def _links(self, tokens: int) -> float:
        """Return the time of all-reduces (two a layer), of the experts' tokens, and of sends between stages.

        Whole experts are sent the tokens that chose them, and send them back (all-to-all); where each rank has a part
        of every expert, all tokens go to all ranks and back (all-gather, reduce-scatter).
        """
        p, model, seconds = self.parameters, self.model, 0.0
        message = tokens * model.hidden * 2
        bus = (self.hardware.bus_gb_s or self.hardware.bandwidth_gb_s) * 1e9 * p.bus_share
        if self.parallel > 1:
            ring = 2 * (self.parallel - 1) / self.parallel
            seconds += 2 * model.layers * (p.allreduce_us / 1e6 + ring * message / bus / self.stages)
        if self.experts_over > 1 and model.experts is not None:
            away = (self.experts_over - 1) / self.experts_over
            sent = message * model.experts.top_k / self.parallel * away
            seconds += 2 * model.experts.layers * (p.allreduce_us / 1e6 + sent / bus)
        elif self.ranks > 1 and model.experts is not None:
            sent = message * (self.ranks - 1) / self.parallel
            seconds += 2 * model.experts.layers * (p.allreduce_us / 1e6 + sent / bus)
        if self.stages > 1:
            seconds += (self.stages - 1) * (p.allreduce_us / 1e6 + message / bus / self.stages)
        return seconds

    def _host(self, rows: int, begun: int) -> float:
        p = self.parameters
        return (p.overhead_ms + p.request_ms * begun) / 1e3 + p.sequence_us * rows / 1e6

    def _window_s(self, sequences: int, context_tokens: int) -> float:
        """Return the KV read of layers that keep a part of the context, or a state that is read and written."""
        if not sequences:
            return 0.0
        mean, read = context_tokens / sequences, 0.0
        for group, token_bytes in self._windowed:
            if group.window is not None:
                read += min(mean, group.window) * token_bytes
            read += 2 * group.layers * group.state_bytes / self.parallel
        return sequences * read * self.byte_s / self.parameters.kv_mbu / self.stages

    def _prompt_attention(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Return the attention of chunks of q new tokens after c: causal FLOPs, or the KV that they read.

        A short chunk fills the device badly: q + 512 rows' time for q rows.
        """
        seconds, softness = 0.0, self.parameters.softness
        for new, computed in chunks:
            if not computed:
                continue
            compute = 0.0
            for flop_s, window in self._attention_s:
                seen = computed - new / 2
                if window is not None and seen > window:
                    seen = window
                compute += flop_s * (new + _HALF_CHUNK) * seen
            seconds += _soft_maximum(compute / self.stages, computed * self._kv_s, softness)
        return seconds

    def _padded(self, batch: int) -> int:
        """Return the size of the CUDA graph that a decode-only step of `batch` sequences runs in."""
        if not 0 < batch <= self.parameters.graph_limit:
            return batch
        return _CAPTURED[bisect_left(_CAPTURED, batch)]


def _attention_flop(group: Attention, model: Model) -> float:
    """Return FLOPs of attention per pair of tokens over a group's layers: 4 x heads x head_dim, scores and values.

    A latent (MLA) is expanded for prompts: keys of 192, values of 128 per head in DeepSeek's shape.
    """
    pair = 192 + 128 if group.latent_dim else group.head_dim + (group.value_dim or group.head_dim)
    per_layer = 2 * model.heads * pair
    return float(per_layer * group.layers)


def _soft_maximum(a: float, b: float, p: float) -> float:
    """Return (a^p + b^p)^(1/p) without losing small numbers."""
    high, low = (a, b) if a > b else (b, a)
    if p == 2.0:
        return math.sqrt(high * high + low * low)
    return high * (1 + (low / high) ** p) ** (1 / p) if high > 0 else 0.0


def _share(a: float, b: float, p: float) -> float:
    """Return the share of `a` in the soft maximum of `a` and `b`."""
    return 1 / (1 + (b / a) ** p) if a > 0 else 0.0
