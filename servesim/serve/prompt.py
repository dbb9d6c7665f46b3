"""From what is asked to what will be said: a prompt's tokens, how many an answer may have, which ones, why it ends.

What the prefix cache knows prompts and answers by is kept here too.

It does not know connections, and it submits nothing to the engine.
"""

from __future__ import annotations

from array import array
from random import Random

from servesim.config.serve import ServeSpec
from servesim.serve.answer import Choice, Context
from servesim.serve.api_request import ApiRequest, Messages
from servesim.serve.engine_clock import EngineClock
from servesim.serve.errors import bad_request, max_tokens_too_large, prompt_too_long
from servesim.serve.generation import Generation
from servesim.serve.tokenizer import Prefixes, PretendedText, Tokenizer
from servesim.workload.seeds import random_stream


class PromptBuilder:
    """Makes the generations of a request, for one engine."""

    def __init__(
        self, clock: EngineClock, spec: ServeSpec, tokenizer: Tokenizer, random: Random, *, max_model_len: int
    ) -> None:
        config = clock.config
        self.prefixes = Prefixes(config.block_size) if config.prefix_caching else None
        self._clock = clock
        self._spec = spec
        self._tokenizer = tokenizer
        self._random = random
        self._max_model_len = max_model_len
        self._tails: dict[Generation, tuple[bytes, array[int]]] = {}  # what answers go on from, for the prefix cache

    def tokens_of(self, prompt: str | array[int] | Messages) -> array[int]:
        """Return a prompt's tokens. Raises ApiError if it is too long, without looking at all of it."""
        limit = self._max_model_len + 1
        if isinstance(prompt, array):
            tokens = prompt
        elif isinstance(prompt, str):
            tokens = self._tokenizer.encode(prompt, limit)
        else:
            tokens = self._tokenizer.encode_chat(prompt, limit)
        if len(tokens) > self._max_model_len:
            exact = isinstance(prompt, array)
            raise prompt_too_long(self._max_model_len, len(tokens) if exact else limit, at_least=not exact)
        return tokens

    def limit(self, api_request: ApiRequest, prompt: int) -> int:
        """Return the most output tokens that a prompt can have. Raises ApiError if that is none."""
        longest = self._max_model_len
        if api_request.max_tokens is not None and api_request.max_tokens > longest:
            raise max_tokens_too_large(api_request.max_tokens, longest)
        room = longest - prompt
        limit = room if api_request.max_tokens is None else min(api_request.max_tokens, room)
        if limit < 1:
            raise bad_request(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
        reason = self._clock.limits.refusal(prompt, prompt + limit)
        if reason is not None and api_request.max_tokens is None:
            limit = max(1, self._room(prompt))
            reason = self._clock.limits.refusal(prompt, prompt + limit)
        if reason is not None:
            raise bad_request(f"The request can never be served: {reason.replace('_', ' ')}.")
        return limit

    def _room(self, prompt: int) -> int:
        """Return how many output tokens a request without a limit of its own can have within those of the engine."""
        config = self._clock.config
        total = config.num_blocks * config.block_size + 1
        if config.max_tokens_in_flight:
            total = min(total, config.max_tokens_in_flight)
        if not config.chunked_prefill and config.max_model_len is None:
            total = min(total, config.max_num_batched_tokens + 1)
        return total - prompt

    def generations(
        self, context: Context, api_request: ApiRequest, prompts: list[array[int]], limits: list[int], arrived_s: float
    ) -> list[Generation]:
        made: list[Generation] = []
        for tokens, limit in zip(prompts, limits, strict=True):
            for choice in range(api_request.n):
                speech, target, reason = self._speech(api_request, limit, choice)
                generation = Generation(number=len(made), prompt=len(tokens), target=target, arrived_s=arrived_s)
                generation.reason = reason
                generation.priority = api_request.priority
                if self.prefixes is not None:
                    generation.content, parent = self.prefixes.content(tokens)
                    whole = len(tokens) // self.prefixes.block_size * self.prefixes.block_size
                    self._tails[generation] = parent, tokens[whole:]
                context.choices.append(Choice(len(made), generation, speech))
                made.append(generation)
        return made

    def _speech(self, api_request: ApiRequest, limit: int, choice: int) -> tuple[PretendedText, int, str]:
        """Return what is said to a request, how many tokens of it, and what ends it."""
        random = self._random if api_request.seed is None else random_stream(api_request.seed, f"choice {choice}")
        speech = PretendedText(random.getrandbits(30), bare=api_request.chat)
        own_end = random.randint(*self._spec.answer_tokens)
        target, reason = limit, "length"
        own_end = max(own_end, api_request.min_tokens)
        if not api_request.ignore_eos and own_end < limit:
            target, reason = own_end, "stop"
        speech.stop_at(api_request.stop, target, api_request.min_tokens, include=api_request.include_stop)
        if speech.end is not None:
            target, reason = speech.end, "stop"
        return speech, target, reason

    # The prefix cache

    def learn(self, choice: Choice) -> None:
        """Make the blocks of an answer that is over known: the next turn of its conversation begins with them."""
        if self.prefixes is None:
            return
        parent, rest = self._tails.pop(choice.generation)
        content = choice.generation.content
        before = 0 if len(content) < 2 else content[-2][1] // self.prefixes.block_size
        self.prefixes.add_answer(content, parent, rest + choice.speech.numbers(choice.generation.made), before)

    def drop(self, generation: Generation) -> None:
        """Hear that a generation will not come to its end."""
        self._tails.pop(generation, None)

    def tidy(self, clock: EngineClock) -> None:
        """Forget the prefixes whose blocks are gone, if there are many."""
        if self.prefixes is not None and self.prefixes.crowded:
            alive = {key: depth for key, depth in clock.engine.pool.depths_alive().items() if isinstance(key, int)}
            self.prefixes.forget(alive, clock.streams_in_use())
