"""An executor on random weights of a shape, made where they are used: no files, no copy."""

from pathlib import Path

import torch

from services.contract.model_folder import ModelFolder
from services.engine.executors.torch_executor import TorchExecutor, TorchOptions
from services.engine.model.config import DecoderConfig
from services.engine.model.weights import DecoderWeights, LayerWeights, Linear
from services.engine.step import Row, SamplingSpec, SequenceSpec

GREEDY = SamplingSpec(temperature=0.0)


def random_weights(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """Small enough that nothing overflows; with biases on queries, keys and values, as Qwen2 has them."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        values = torch.empty(shape, dtype=dtype, device=device)
        return values.normal_(0, shape[-1] ** -0.5, generator=generator)

    c, ones = config, torch.ones(config.hidden_size, dtype=dtype, device=device)
    q_size, kv_size = c.num_heads * c.head_size, c.num_kv_heads * c.head_size
    qkv, gate_up = (q_size, kv_size, kv_size), (c.intermediate_size, c.intermediate_size)
    layers = tuple(
        LayerWeights(
            attention_norm=ones,
            qkv=Linear(draw(sum(qkv), c.hidden_size), draw(sum(qkv)), "qkv", qkv),
            head_norm=None,
            attention_out=Linear(draw(c.hidden_size, q_size), None),
            mlp_norm=ones,
            gate_up=Linear(draw(sum(gate_up), c.hidden_size), None, "gate_up", gate_up),
            down=Linear(draw(c.hidden_size, c.intermediate_size), None),
        )
        for _ in range(c.num_layers)
    )
    size = (c.embedding_size, c.hidden_size)
    return DecoderWeights(draw(*size), layers, ones, draw(*size))


def weight_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    """What a decode step must read: all but the embedding's rows that it does not look up."""
    c = config
    per_layer = c.hidden_size * c.head_size * (2 * c.num_heads + 2 * c.num_kv_heads)
    per_layer += 3 * c.hidden_size * c.intermediate_size
    return (c.num_layers * per_layer + c.embedding_size * c.hidden_size) * dtype.itemsize


class RandomExecutor(TorchExecutor):
    """Takes its configuration and weights as they are given."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, options: TorchOptions) -> None:
        folder = ModelFolder(Path("random"), "random", {}, frozenset(), config.embedding_size, ())
        super().__init__(folder, options)
        self.config = config
        self.block_size = options.block_size
        self._weights = weights

    def _read_config(self) -> DecoderConfig:
        return self.config

    def _load_weights(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device
    ) -> DecoderWeights:
        return self._weights


class Rows:
    """Rows of random ids for an executor: all with the same context, each in blocks of its own."""

    def __init__(self, executor: "RandomExecutor", count: int, context: int) -> None:
        self.executor = executor
        self._count = count
        self._context = context
        generator = torch.Generator().manual_seed(1)
        vocab_size = executor.config.embedding_size
        ids = torch.randint(0, vocab_size, (count, context + 1), generator=generator).tolist()
        self._ids = [tuple(row) for row in ids]
        self._blocks = -(-(context + 1) // executor.block_size)

    def __enter__(self) -> "Rows":
        for number, ids in enumerate(self._ids, 1):
            self.executor.add(SequenceSpec(number, ids, len(ids), GREEDY))
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(1, self._count + 1):
            self.executor.remove(number)

    def prefill(self, number: int, start: int = 0, end: int | None = None) -> Row:
        """Tokens start..end-1 of one sequence, all but its last where no end is given."""
        end = self._context if end is None else end
        ids = self._ids[number - 1]
        return Row(number, ids[start:end], start, self._table(number), is_sampled=end > self._context)

    def decode(self) -> list[Row]:
        """The last token of every sequence; may be run again and again."""
        return [
            Row(number, ids[-1:], self._context, self._table(number), is_sampled=True)
            for number, ids in enumerate(self._ids, 1)
        ]

    def _table(self, number: int) -> range:
        first = 1 + (number - 1) * self._blocks
        return range(first, first + self._blocks)


def blocks_for(count: int, context: int, block_size: int) -> int:
    """Of the pool that Rows need, the null block among them."""
    return 1 + count * -(-(context + 1) // block_size)
