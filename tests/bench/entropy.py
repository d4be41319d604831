"""How often `entropy_shift` stops for nothing, and how soon it stops for something.

Small models are trained on made-up text with the watch armed. A *false stop* is one in a run in
which nothing was done to the model. Then the query and key projections of one layer are multiplied
before a step, as when attention explodes, and the *delay* is counted from that step. The seeds and
the text are not those that the detector was made with.

    python -m tests.bench.entropy SEEDS...
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CONDITION = 'entropy_shift("*") > 6'
FACTORS = (1.25, 1.5, 2.0, 3.0)
#: Below it a change is no news to the watch.
LEAST_CHANGE = 0.05
_WORDS, _ROWS, _LENGTH, _WIDTH, _HEADS = 53, 8, 40, 64, 4
#: Steps of a run before something is done to it, and of watching afterwards.
_SETTLED, _AFTER = 150, 8
_STEPS = 300
#: The watch's own.
_WARM_UP = 30


@dataclass
class Detection:
    """What came of the runs of one architecture."""

    what: str
    #: Heads times steps in which a stop was possible, in runs to which nothing was done.
    looks: int = 0
    #: Of these, how often the whole batch was looked at, and how often that made a stop.
    confirmed: int = 0
    false_stops: int = 0
    #: By factor, for each run: by how much the entropy of some head of the layer changed, and the
    #: steps until the first stop there, None where there was none.
    exploded: dict[str, list[tuple[float, int | None]]] = field(
        default_factory=lambda: {f"{factor:g}": [] for factor in FACTORS}
    )

    def delays(self, factor: float) -> tuple[list[int], int, int]:
        """For the runs whose entropy changed enough: delays, how many ran, and how many did not."""
        runs = self.exploded[f"{factor:g}"]
        enough = [delay for change, delay in runs if change >= LEAST_CHANGE]
        found = [delay for delay in enough if delay is not None]
        return found, len(enough), len(runs) - len(enough)


def measure(seeds: Sequence[int]) -> list[Detection]:
    """In a process of its own: torch is not imported here."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.entropy", *map(str, seeds)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    return [Detection(**item) for item in json.loads(done.stdout)]


# In that process -------------------------------------------------------------------------------


def _measure(seeds: Sequence[int]) -> list[Detection]:
    return [_detect(what, make, seeds) for what, make in _models().items()]


def _models() -> dict[str, Callable[[], Any]]:
    """Trainings by name: fused, eager with padding, and torch's own layers with a mask."""
    import torch
    import transformers as hf
    from torch import nn

    small: dict[str, Any] = {
        "hidden_size": _WIDTH,
        "intermediate_size": 2 * _WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": _HEADS,
        "pad_token_id": 0,
    }

    def llama() -> _Training:
        config = hf.LlamaConfig(vocab_size=_WORDS, num_key_value_heads=2, **small)
        config._attn_implementation = "sdpa"
        model = hf.LlamaForCausalLM(config)
        layer: Any = model.model.layers[1].self_attn
        weights = [layer.q_proj.weight, layer.k_proj.weight]
        return _Training(model, layer, weights, lambda x: model(input_ids=x, labels=x).loss)

    def bert() -> _Training:
        config = hf.BertConfig(vocab_size=_WORDS + 1, max_position_embeddings=_LENGTH, **small)
        config._attn_implementation = "eager"
        model = hf.BertForMaskedLM(config)
        block: Any = model.bert.encoder.layer[1]
        layer = block.attention.self

        def loss(x: Any) -> Any:
            there = torch.arange(_LENGTH) < torch.randint(_LENGTH // 2, _LENGTH + 1, (_ROWS, 1))
            hidden = (torch.rand(x.shape) < 0.2) & there
            return model(
                input_ids=x.masked_fill(hidden, _WORDS),
                attention_mask=there.long(),
                labels=x.masked_fill(~hidden, -100),
            ).loss

        return _Training(model, layer, [layer.query.weight, layer.key.weight], loss)

    def encoder() -> _Training:
        block = nn.TransformerEncoderLayer(
            _WIDTH, _HEADS, 2 * _WIDTH, dropout=0.1, batch_first=True, norm_first=True
        )
        blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        model: Any = nn.Sequential(nn.Embedding(_WORDS, _WIDTH), blocks, nn.Linear(_WIDTH, _WORDS))
        layer: Any = blocks.layers[1].self_attn
        causal = nn.Transformer.generate_square_subsequent_mask(_LENGTH)
        positions = torch.randn(_LENGTH, _WIDTH) * 0.1

        def loss(x: Any) -> Any:
            seen = model[2](model[1](model[0](x) + positions, mask=causal))
            return nn.functional.cross_entropy(seen[:, :-1].flatten(0, 1), x[:, 1:].flatten())

        projections = layer.in_proj_weight[: 2 * _WIDTH]
        return _Training(model, layer, [projections], loss)

    return {"Llama, fused": llama, "BERT, eager, padded": bert, "nn.TransformerEncoder": encoder}


@dataclass
class _Training:
    """A model, the attention to explode and what of it to multiply, and the loss of a batch."""

    model: Any
    layer: Any
    weights: list[Any]
    loss: Callable[[Any], Any]


def _detect(what: str, make: Callable[[], _Training], seeds: Sequence[int]) -> Detection:
    import torch

    found = Detection(what)
    for seed in seeds:
        torch.manual_seed(seed)
        run = _Run(make(), _text(seed))
        with run.armed():
            run.train(_SETTLED)
            at_rest = run.save()
            for factor in FACTORS:
                run.restore(at_rest)
                found.exploded[f"{factor:g}"].append(run.explode(factor))
            run.restore(at_rest)
            run.train(_STEPS - _SETTLED)
        found.looks += run.looks
        found.confirmed += run.confirmed
        found.false_stops += len(run.stops)
    return found


def _text(seed: int) -> Callable[[], Any]:
    """Batches of a random language: each word depends on the last, some repeat what was before."""
    import torch

    language = torch.softmax(torch.randn(_WORDS, _WORDS) * 2.5, -1)

    def batch() -> Any:
        words = [torch.randint(_WORDS, (_ROWS, 1))]
        for position in range(1, _LENGTH):
            word = torch.multinomial(language[words[-1][:, 0]], 1)
            repeat = torch.rand(_ROWS, 1) < 0.3
            words.append(torch.where(repeat, words[max(0, position - 6)], word))
        return torch.cat(words, 1)

    return batch


class _Run:
    """A training with the watch armed, which can be set back to where it was."""

    def __init__(self, training: _Training, batch: Callable[[], Any]) -> None:
        import torch

        from tensorpoint.agent import adapters
        from tensorpoint.agent.hooks import Hooks
        from tensorpoint.agent.judge import Judge
        from tensorpoint.agent.modules import Names
        from tensorpoint.agent.rules import Rule
        from tensorpoint.agent.taps import Taps
        from tensorpoint.agent.watches.entropy import EntropyShift
        from tensorpoint.wire import Tensorpoint

        training.model.train()
        self._training = training
        self._batch = batch
        self._optimizer = torch.optim.AdamW(training.model.parameters(), 1e-3)
        names = Names()
        judge = Judge(names, self._stop)
        self._rule = Rule(Tensorpoint(1, "condition", CONDITION))
        judge.arm([self._rule], [EntropyShift.metric])
        self._watch = EntropyShift(names, judge)
        self._hooks = Hooks(names, _fail)
        self._taps = Taps(lambda: adapters.find(_fail), names, self._hooks, _fail)
        #: The layers that were stopped at since the last reset.
        self.stops: list[Any] = []
        self.looks = self.confirmed = 0
        #: The newest attention of each layer.
        self._newest: dict[Any, Any] = {}

    def _stop(self, rules: Sequence[Any], event: Any) -> bool:
        self.stops.append(event.module)
        return True

    @contextmanager
    def armed(self) -> Iterator[None]:
        run, watch = self, self._watch

        class Counts(type(watch)):
            """The watch, with what it hears of counted."""

            def on_attention(self, call: Any, attention: Any) -> None:
                watch.on_attention(call, attention)
                run._newest[call.module] = attention
                kinds = watch._kinds[call.module].values()
                if any(heads.steps > _WARM_UP for heads in kinds):
                    run.looks += len(attention.sampled)
                run.confirmed += "exact" in vars(attention)

        self._hooks.install()
        self._taps.listen([Counts(None, None)])  # type: ignore[arg-type]
        try:
            yield
        finally:
            self._taps.remove()
            self._hooks.remove()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            loss = self._training.loss(self._batch())
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()

    def explode(self, factor: float) -> tuple[float, int | None]:
        """How much the layer's entropy changed by it, and the steps until it was stopped at."""
        import torch

        before = self._newest[self._training.layer].exact
        with torch.no_grad():
            for weight in self._training.weights:
                weight.mul_(factor)
        change, delay = 0.0, None
        for step in range(_AFTER):
            self.stops.clear()
            self.train(1)
            if step == 0:
                after = self._newest[self._training.layer].exact
                change = max(abs(a - b) for a, b in zip(before, after))
            if delay is None and self._training.layer in self.stops:
                delay = step
        return change, delay

    def save(self) -> Any:
        import torch

        return (
            deepcopy(self._training.model.state_dict()),
            deepcopy(self._optimizer.state_dict()),
            torch.get_rng_state(),
            {module: deepcopy(kinds) for module, kinds in self._watch._kinds.items()},
            (set(self._rule.true_at), list(self.stops), self.looks, self.confirmed),
        )

    def restore(self, saved: Any) -> None:
        import torch

        model, optimizer, random, kinds, counted = deepcopy(saved[:3]) + saved[3:]
        self._training.model.load_state_dict(model)
        self._optimizer.load_state_dict(optimizer)
        torch.set_rng_state(random)
        self._watch._kinds.update({module: deepcopy(item) for module, item in kinds.items()})
        self._rule.true_at, self.stops = set(counted[0]), list(counted[1])
        self.looks, self.confirmed = counted[2:]


def _fail(culprit: Any, error: Exception) -> None:
    raise error


if __name__ == "__main__":
    sys.path[:0] = ["server", "adapters"]
    print(json.dumps([asdict(item) for item in _measure([int(seed) for seed in sys.argv[1:]])]))
