"""Faults in the engine: the model's arithmetic, draws, blocks, the prefix cache, and the ends of an admit."""

from tests.mutants.mutant import Mutant

TORCH = "tests/unit/engine/test_torch_executor.py::"
SAMPLER = "tests/unit/engine/test_sampler.py::"
RANDOMNESS = "tests/unit/engine/test_randomness.py::"
COMMIT = "tests/unit/engine/test_commit.py::"
CACHE = "tests/unit/engine/test_prefix_cache.py::"
POSITION = "tests/unit/engine/test_position.py::"
WINDOW = "tests/unit/engine/test_window.py::"
CORE = "tests/unit/engine/test_running_set.py::"

MODEL = (
    Mutant(
        name="rope off by one after a hit",
        file="services/engine/executors/torch_executor.py",
        old="np.arange(row.start, row.start + len(row.chunk_ids)) for",
        new="np.arange(row.start, row.start + (n := len(row.chunk_ids))) + (row.start and n > 1) for",
        tests=(TORCH + "test_alone_batched_warm_and_resumed_draw_the_same_ids[llama]",),
    ),
    Mutant(
        name="mask off by one: a token sees the next",
        file="services/engine/attention/reference.py",
        old="is_hidden = columns > ends",
        new="is_hidden = columns > ends + 1",
        tests=(TORCH + "test_logprobs_equal_transformers_at_every_position[llama]",),
    ),
    Mutant(
        name="mask off by one: a token does not see itself",
        file="services/engine/attention/reference.py",
        old="is_hidden = columns > ends",
        new="is_hidden = columns >= ends.clamp(min=1)",
        tests=(TORCH + "test_logprobs_equal_transformers_at_every_position[llama]",),
    ),
    Mutant(
        name="window off by one",
        file="services/engine/attention/reference.py",
        old="columns <= ends - self._shape.window",
        new="columns < ends - self._shape.window",
        tests=(TORCH + "test_logprobs_equal_transformers_at_every_position[mistral window]",),
    ),
    Mutant(
        name="tail of a reused block not cleared",
        file="services/engine/attention/reference.py",
        old="self._pool[:, :, begun] = 0",
        new="pass",
        tests=(TORCH + "test_blocks_used_again_after_poison_change_nothing",),
    ),
)

DRAWS = (
    Mutant(
        name="penalty blind to prompt ids that were not run",
        file="services/engine/sampling/sequence_state.py",
        old="dict.fromkeys(spec.ids)",
        new="dict.fromkeys(spec.ids[spec.num_prompt_tokens :])",
        tests=(
            SAMPLER + "test_repetition_penalty_sees_prompt_and_output_presence_and_frequency_output_only",
        ),
    ),
    Mutant(
        name="penalty blind to output of an earlier admission",
        file="services/engine/sampling/sequence_state.py",
        old="Counter(spec.ids[spec.num_prompt_tokens :])",
        new="Counter()",
        tests=(SAMPLER + "test_a_state_built_at_once_equals_one_that_grew",),
    ),
    Mutant(
        name="seed without choice",
        file="services/engine/sampling/randomness.py",
        old="seed, choice, position), digest_size",
        new="seed, 0, position), digest_size",
        tests=(RANDOMNESS + "test_each_part_of_the_key_matters",),
    ),
    Mutant(
        name="draw keyed by a counter, not by position",
        file="services/engine/sampling/sampler.py",
        old="        return _invert(scores, spec, uniform(spec.seed, spec.choice, len(state.ids)))",
        new=(
            '        self._num_draws = getattr(self, "_num_draws", 0) + 1\n'
            "        return _invert(scores, spec, uniform(spec.seed, spec.choice, self._num_draws))"
        ),
        tests=(TORCH + "test_seeded_draws_with_penalties_do_not_depend_on_neighbours_or_cache",),
    ),
    Mutant(
        name="draw keyed by the output's index, not by position",
        file="services/engine/sampling/sampler.py",
        old="uniform(spec.seed, spec.choice, len(state.ids))",
        new="uniform(spec.seed, spec.choice, state.num_output_tokens)",
        tests=(POSITION + "test_where_the_prompt_ends_does_not_matter",),
    ),
    Mutant(
        name="min-tokens mask dropped",
        file="services/engine/sampling/sampler.py",
        old="return bool(state.sampling.stop_ids) and",
        new="return False and",
        tests=(SAMPLER + "test_stop_ids_are_masked_until_min_tokens_whatever_their_bias",),
    ),
)

BLOCKS = (
    Mutant(
        name="two block ids swapped",
        file="services/engine/core/planner.py",
        old="sequence.block_table = tuple(sequence.block_ids)",
        new="sequence.block_table = (*sequence.block_ids[:-2], *sequence.block_ids[:-3:-1])",
        tests=(CORE + "test_chunks_change_nothing[lag0-16]", CORE + "test_output_blocks_serve_the_next_turn"),
    ),
    Mutant(
        name="block freed while still referenced",
        file="services/engine/core/block_pool.py",
        old="if self._num_references[block_id]:\n            return False",
        new="self._num_references[block_id] = 0",
        tests=(CORE + "test_twins_that_arrive_together_are_one_prefill[lag0]",),
    ),
    Mutant(
        name="block freed while still indexed",
        file="services/engine/core/prefix_cache.py",
        old="keep_cached=is_indexed",
        new="keep_cached=False",
        tests=(CORE + "test_a_second_request_finds_all_full_blocks_but_never_its_last_id[lag0-33-32]",),
    ),
    Mutant(
        name="evicted block still indexed",
        file="services/engine/core/prefix_cache.py",
        old="self._unindex(block_id)\n        self.pool.uncache",
        new="self.pool.uncache",
        tests=(CACHE + "test_an_evicted_block_is_not_found_and_serves_another_name",),
    ),
    Mutant(
        name="reserve ignored",
        file="services/engine/core/running_set.py",
        old="kept = self.limits.num_reserve_blocks + ",
        new="kept = ",
        tests=(CORE + "test_an_empty_engine_admits_up_to_the_pool_and_a_busy_one_keeps_its_reserve[lag0]",),
    ),
    Mutant(
        name="index before compute",
        file="services/engine/core/planner.py",
        old="        self._holdings.register(sequence, end)\n",
        new=(
            "        self._holdings.register(sequence, end)\n"
            "        self._holdings.index(sequence, min(end, len(sequence.token_ids)))\n"
        ),
        tests=(COMMIT + "test_blocks_are_found_once_their_step_is_committed_and_not_before[lag0]",),
    ),
    Mutant(
        name="index of what is not finite",
        file="services/engine/core/running_set.py",
        old="self.cache.forget(sequence.inserted_hashes)",
        new="pass",
        tests=(CORE + "test_a_row_that_is_not_finite_ends_alone_and_leaves_nothing_in_the_cache[lag0]",),
    ),
    Mutant(
        name="block passed while the window still touches it",
        file="services/engine/core/holdings.py",
        old="max(0, sequence.num_planned - self._window + 1) // self.block_size",
        new="max(0, sequence.num_planned - self._window + 1) // self.block_size + 1",
        tests=(WINDOW + "test_a_running_sequence_holds_its_window_and_no_more[lag0-CachePolicy.USE]",),
    ),
    Mutant(
        name="block passed before it was computed",
        file="services/engine/core/holdings.py",
        old="min(num_behind, sequence.num_indexed_blocks)",
        new="num_behind",
        tests=(WINDOW + "test_what_a_chunk_in_flight_computes_is_passed_only_after_its_commit[lag1]",),
    ),
    Mutant(
        name="hit covers the last id",
        file="services/engine/core/holdings.py",
        old="sequence.num_planned + self.block_size >= sequence.num_known",
        new="sequence.num_planned + self.block_size > sequence.num_known",
        tests=(CORE + "test_a_second_request_finds_all_full_blocks_but_never_its_last_id[lag0-32-16]",),
    ),
    Mutant(
        name="salt dropped by the engine",
        file="services/engine/core/running_set.py",
        old="self.limits.block_size, admission.cache_salt, self._revision",
        new='self.limits.block_size, b"", self._revision',
        tests=(CORE + "test_a_salt_of_another_tenant_finds_nothing[lag0]",),
    ),
    Mutant(
        name="salt dropped from a block's name",
        file="services/contract/block_hash.py",
        old="(parent, salt, revision_digest,",
        new="(parent, revision_digest,",
        tests=("tests/unit/contract/test_block_hash.py::test_salt_and_revision_part_name_spaces",),
    ),
    Mutant(
        name="salt dropped from blocks that output fills",
        file="services/engine/core/holdings.py",
        old="block_hash(parent, sequence.admission.cache_salt,",
        new='block_hash(parent, b"",',
        tests=(CORE + "test_output_blocks_serve_the_next_turn[lag0]",),
    ),
)

ENDS = (
    Mutant(
        name="cancel lost by the engine",
        file="services/engine/core/running_set.py",
        old="sequence = self.roster.by_handle(stream_id, handle)",
        new="sequence = None",
        tests=(COMMIT + "test_tokens_after_a_cancel_are_not_told[lag0]",),
    ),
    Mutant(
        name="finish not evaluated at admission",
        file="services/engine/core/running_set.py",
        old="sequence.finish_reason()\n        if reason is not None:\n            self.totals",
        new="None\n        if reason is not None:\n            self.totals",
        tests=(CORE + "test_ids_that_are_an_end_already_need_no_step[lag0]",),
    ),
    Mutant(
        name="equal attempt admitted twice",
        file="services/engine/core/attempts.py",
        old="attempt <= record.attempt",
        new="attempt < record.attempt",
        tests=(CORE + "test_a_higher_attempt_supersedes_and_a_lower_or_equal_one_is_stale[lag0]",),
    ),
    Mutant(
        name="broken stream goes on",
        file="services/engine/core/running_set.py",
        old="if sequence.admission.stream_id == stream_id:",
        new="if False:",
        tests=(CORE + "test_a_broken_stream_takes_its_sequences_along_but_not_their_blocks[lag0]",),
    ),
    Mutant(
        name="late draws after a stop are told",
        file="services/engine/core/running_set.py",
        old="            if reason is not None:\n                break",
        new="",
        tests=(COMMIT + "test_ids_after_the_end_in_one_step_are_discarded[lag0]",),
    ),
)

ENGINE_MUTANTS = MODEL + DRAWS + BLOCKS + ENDS
