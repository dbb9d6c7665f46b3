"""What an engine's limits make of the requests of a run: what each may produce, and which can never be served."""

from __future__ import annotations

from array import array
from operator import add

from servesim.config.engine import EngineConfig
from servesim.workload.requests import Requests


class RequestLimits:
    """One server's limits against one run's requests; engines of one kind share it.

    `targets` are the output tokens that each request may produce: what it asks for, up to the length limit.
    `may_refuse` tells whether there is any request that can never be served.
    """

    def __init__(self, config: EngineConfig, requests: Requests, targets: array[int] | None = None) -> None:
        self._config = config
        self.targets = requests.output_tokens
        if targets is not None:
            self.targets = targets
        elif config.max_model_len is not None:
            longest = config.max_model_len
            asked = zip(requests.prompt_tokens, requests.output_tokens, strict=True)
            self.targets = array("q", [min(output, longest - prompt) for prompt, output in asked])
        self.may_refuse = False
        if len(requests):
            longest_total = max(map(add, requests.prompt_tokens, self.targets))
            self.may_refuse = self.refusal(max(requests.prompt_tokens), longest_total) is not None

    def refusal(self, prompt: int, total: int) -> str | None:
        """Return why a request can never be served, or None. `total` is prompt + output, capped."""
        config = self._config
        if config.max_model_len is not None and prompt >= config.max_model_len:
            return "prompt_too_long"
        if config.max_tokens_in_flight and total > config.max_tokens_in_flight:
            return "over_max_tokens_in_flight"
        if -(-(total - 1) // config.block_size) > config.num_blocks:
            return "over_kv_cache"
        if not config.chunked_prefill and total - 1 > config.max_num_batched_tokens:
            return "over_token_budget"
        return None
