"""Faults in what a GPU runs, found on a CPU: kernels, recorded steps, the draw on the device, the table."""

from tests.mutants.mutant import Mutant

TRITON = "tests/unit/engine/test_attention_triton.py::"
FLASH = "tests/unit/engine/test_attention_flash.py::"
REGISTRY = "tests/unit/engine/test_attention_registry.py::"
EXECUTOR = "tests/unit/engine/test_torch_executor_gpu.py::"
SAMPLER = "tests/unit/engine/test_device_sampler.py::"

GPU_MUTANTS = (
    Mutant(
        name="kernel's mask off by one",
        file="services/engine/kernels/attention.py",
        old="(key[None, :] <= position[:, None])",
        new="(key[None, :] <= position[:, None] + 1)",
        tests=(TRITON + "test_prefill_chunks_and_decode_are_exact_attention[None]",),
    ),
    Mutant(
        name="kernel weighs positions before the window by zero instead of not reading them",
        file="services/engine/kernels/attention.py",
        old="is_live = (key >= first_key) & (key < stop_key)",
        new="is_live = key < stop_key",
        tests=(TRITON + "test_positions_before_a_window_are_not_read",),
    ),
    Mutant(
        name="parts of a long row joined without their maxima",
        file="services/engine/kernels/attention.py",
        old="old, new = tl.exp2(top - higher), tl.exp2(other - higher)",
        new="old, new = 1.0, 1.0",
        tests=(TRITON + "test_a_long_row_is_decoded_in_parts[None]",),
    ),
    Mutant(
        name="flash sees the future",
        file="services/engine/attention/flash.py",
        old="return (-1, 0) if self.shape.window is None",
        new="return (-1, -1) if self.shape.window is None",
        tests=(FLASH + "test_prefill_mixed_and_decode_steps_mean_causal_attention[TorchFlash-None]",),
    ),
    Mutant(
        name="flash falls back to another backend",
        file="services/engine/attention/registry.py",
        old="    return find_backend(name, shape)(shape)\n",
        new="    return find_backend('reference' if name == 'flash' else name, shape)(shape)\n",
        tests=(REGISTRY + "test_flash_is_refused_on_a_cpu_in_one_line_that_names_every_generation",),
    ),
    Mutant(
        name="padding rows of a recorded step keep what a step before put there",
        file="services/engine/executors/decode_graphs.py",
        old="rows[num_rows:size, :3], rows[num_rows:size, 3], rows[num_rows:size, _NUM_COLUMNS] = 0, 1, 0",
        new="rows[num_rows:size, 3] = 1",
        tests=(EXECUTOR + "test_padding_rows_write_to_the_null_block_alone",),
    ),
    Mutant(
        name="ties at the cut of the device's candidates go to higher ids",
        file="services/engine/sampling/device_sampler.py",
        old="at.cumsum(dim=1) <= size - _count(above)",
        new="at.flip(1).cumsum(dim=1).flip(1) <= size - _count(above)",
        tests=(SAMPLER + "test_likeliest_is_a_stable_sort_cut_short",),
    ),
    Mutant(
        name="the device counts no draws",
        file="services/engine/sampling/penalty_table.py",
        old="self._counts.index_put_(at, is_usable[rows].int(), accumulate=True)",
        new="pass",
        tests=(SAMPLER + "test_counts_grow_with_what_is_drawn_and_end_with_the_sequence",),
    ),
)
