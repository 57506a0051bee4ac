"""The model's numbers and the draw: logits against float64, ids against the host's, the traced kernel."""

import random
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.gpu.attention_sections import VARIANTS, traceable
from bench.gpu.device_time import median_ms
from bench.gpu.sizes import Sizes
from bench.load.spec import TOKEN_BINS
from services.contract.model_folder import ModelFolder, ModelFolderError
from services.engine.executors.kernel_proof import prove_kernel
from services.engine.executors.registry import UnprovenKernelError
from services.engine.executors.torch_executor import TorchExecutor, TorchOptions
from services.engine.model.config import DecoderConfig
from services.engine.sampling.device_sampler import DeviceSampler
from services.engine.sampling.sampler import Sampler
from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import Row as StepRow
from services.engine.step import SamplingSpec, SequenceSpec

Row = dict[str, object]
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"temperature": 1.5, "top_p": 0.95},
    {"top_k": 50},
    {"min_p": 0.05},
    {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
)


def logit_errors(sizes: Sizes) -> Iterator[Row]:
    """A random Qwen2: transformers' eager in the same type and every way of ours, against float64."""
    from transformers import Qwen2ForCausalLM  # noqa: PLC0415

    length = 300 if sizes.device.type == "cuda" else 12
    ids = torch.randint(
        0, sizes.small_model.embedding_size, (length,), generator=torch.Generator().manual_seed(0)
    )
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        config = _transformers_config(sizes.small_model)
        model: Any = Qwen2ForCausalLM(config)
        model.to(sizes.dtype).eval()
        model.save_pretrained(place)
        given = ids[None].to(sizes.device)
        with torch.inference_mode():
            eager = model.to(sizes.device)(given, use_cache=False).logits[0].double()
            exact = model.double()(given, use_cache=False).logits[0]
        own = float((eager - exact).abs().max())
        yield {"way": "transformers eager", "largest error": f"{own:.2e}", "to eager's": "1.00"}
        for attention, is_invariant in VARIANTS:
            name = attention + " invariant" * is_invariant
            options = TorchOptions(
                dtype=str(sizes.dtype).removeprefix("torch."),
                device=str(sizes.device),
                attention=attention,
                is_invariant=is_invariant,
                block_size=256 if attention == "flash" else 16,
            )
            got = _last_logits(Path(place), config.to_dict(), options, ids.tolist())
            if isinstance(got, str):
                yield {"way": name, "largest error": got}
                continue
            error = float((got.to(exact) - exact[-1]).abs().max())
            last = float((eager[-1] - exact[-1]).abs().max())
            yield {
                "way": name,
                "largest error": f"{error:.2e}",
                "to eager's": f"{error / last:.2f}",
                "ok": error <= 2 * last + 1e-6,
            }


def _transformers_config(c: DecoderConfig) -> Any:
    from transformers import Qwen2Config  # noqa: PLC0415

    options: dict[str, Any] = {"head_dim": c.head_size, "attn_implementation": "eager"}
    return Qwen2Config(
        vocab_size=c.embedding_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        tie_word_embeddings=False,
        **options,
    )


def _last_logits(
    place: Path, config: dict[str, Any], options: TorchOptions, ids: list[int]
) -> torch.Tensor | str:
    """Of the last position, the prompt run in two chunks and a decode step; or why not."""
    weights = tuple(sorted(place.glob("*.safetensors")))
    folder = ModelFolder(place, "random", config, frozenset(), config["vocab_size"], weights)
    executor = TorchExecutor(folder, options)
    try:
        executor.load()
    except (ModelFolderError, UnprovenKernelError) as error:
        return str(error)
    blocks = range(1, 1 + -(-len(ids) // options.block_size))
    executor.allocate(1 + len(blocks))
    executor.add(SequenceSpec(1, tuple(ids), len(ids), SamplingSpec(temperature=0.0)))
    seen: list[torch.Tensor] = []
    executor.watch_logits(lambda _, logits: seen.append(torch.from_numpy(logits.copy())[0]))
    cuts = [0, len(ids) // 3, len(ids) - 1, len(ids)]
    for start, end in pairwise(cuts):
        executor.run([StepRow(1, tuple(ids[start:end]), start, blocks, is_sampled=end == len(ids))])
    executor.unload()
    return seen[-1].double()


def draws(sizes: Sizes) -> Iterator[Row]:
    """Ids drawn on the device against those drawn on the host from the same logits, and the time of each."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.randn(max(sizes.batches), sizes.model.embedding_size, generator=generator) * 3
        yield {"logits": str(dtype).removeprefix("torch."), **_compare_draws(logits.to(dtype), sizes)}


def _compare_draws(logits: torch.Tensor, sizes: Sizes) -> Row:
    (rows, vocab_size), chance = logits.shape, random.Random(0)
    there = logits.to(sizes.device)
    states = [_state(number, WAYS[number % len(WAYS)], chance) for number in range(rows)]
    host, device = Sampler(vocab_size), DeviceSampler(vocab_size, sizes.device)
    for state in states:
        device.penalties.add(state)
    expected = [output.ids for output in host.draw(logits, states)]
    got = [output.ids for output in device.draw(there, states)]
    same = sum(a == b for a, b in zip(got, expected, strict=True))
    plain = DeviceSampler(vocab_size, sizes.device)
    device_ms = median_ms(lambda: plain.draw(there, states), sizes.repeats, sizes.device)
    host_ms = median_ms(lambda: host.draw(logits, states), 1, torch.device("cpu"))
    return {
        "rows": rows,
        "vocabulary": vocab_size,
        "same ids": same,
        "device ms": f"{device_ms:.2f}",
        "host ms": f"{host_ms:.1f}",
        "ok": same == rows,
    }


def _state(number: int, way: dict[str, Any], chance: random.Random) -> SequenceState:
    ids = tuple(chance.randrange(50) for _ in range(20))
    return SequenceState(SequenceSpec(number, ids, 10, SamplingSpec(seed=number, **way)))


def kernel_proofs(sizes: Sizes) -> Iterator[Row]:
    """A1: what a profiler's trace of one attention call shows."""
    for name, is_invariant in VARIANTS:
        found = traceable(name, is_invariant, sizes)
        if isinstance(found, str):
            yield {"backend": name, "traced": found}
            continue
        step, promised = found
        traced = prove_kernel(step, promised, sizes.device)
        yield {"backend": name + " invariant" * is_invariant, "traced": traced[:90], "ok": True}


def utilization(sizes: Sizes) -> Iterator[Row]:
    """K1: the share of allocated positions that hold one, by kernel block; TOKEN_BINS and 64 more ids."""
    chance = np.random.default_rng(0)
    shares, least, most = map(np.array, zip(*TOKEN_BINS, strict=True))
    bins = chance.choice(len(TOKEN_BINS), 20_000, p=shares)
    lengths = chance.integers(least[bins], most[bins] + 1) + 64
    for block in (16, 32, 64, 128, 256):
        share = lengths.sum() / (-(-lengths // block) * block).sum()
        yield {"kernel block": block, "utilization": f"{share:.1%}"}
