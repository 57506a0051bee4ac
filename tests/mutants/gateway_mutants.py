"""Faults in the gateway: who may speak, what text is certain, what salts keep apart, what is saved."""

from tests.mutants.mutant import Mutant

LIFE = "tests/unit/gateway/test_request.py::"
STOPS = "tests/unit/gateway/test_stop_text.py::"
TEXT = "tests/unit/gateway/test_output_text.py::"
DETOKENIZER = "tests/unit/gateway/test_detokenizer.py::"
GENERATION = "tests/unit/gateway/test_generation.py::"
SESSIONS = "tests/unit/gateway/test_sessions.py::"
STORE = "tests/unit/gateway/test_store.py::"
IDENTITY = "tests/unit/gateway/test_identity.py::"

ATTEMPTS = (
    Mutant(
        name="attempt check removed",
        file="services/gateway/life/choice.py",
        old="return gateway_attempt == self.gateway_attempt and self.is_out",
        new="return self.is_out",
        tests=(LIFE + "test_stale_steps_of_a_thawed_engine_are_dropped_and_counted",),
    ),
    Mutant(
        name="duplicate step accepted",
        file="services/gateway/life/request.py",
        old="ids = ids[num_known:]",
        new="ids = ids[:]",
        tests=(LIFE + "test_a_repeated_step_is_dropped_and_an_overlapping_one_gives_only_its_new_ids",),
    ),
    Mutant(
        name="skipped index accepted",
        file="services/gateway/life/request.py",
        old="if num_known < 0:",
        new="if False:",
        tests=(LIFE + "test_a_skipped_index_moves_the_choice_away_from_that_engine",),
    ),
    Mutant(
        name="attempt not raised with an admit",
        file="services/gateway/life/choice.py",
        old="self.gateway_attempt += 1",
        new="self.gateway_attempt = 1",
        tests=(LIFE + "test_a_stream_moves_when_its_engine_dies_and_goes_on_with_the_ids_so_far",),
    ),
    Mutant(
        name="moved stream starts over",
        file="services/gateway/life/request.py",
        old="attempt, choice.output_ids, placement,",
        new="attempt, [], placement,",
        tests=(LIFE + "test_a_stream_moves_when_its_engine_dies_and_goes_on_with_the_ids_so_far",),
    ),
    Mutant(
        name="crash count never reset",
        file="services/gateway/life/request.py",
        old="choice.crashed_attempts.clear()",
        new="choice.num_refusals = 0",
        tests=(LIFE + "test_an_accepted_token_resets_the_crash_count",),
    ),
    Mutant(
        name="cancel lost after a stop text",
        file="services/gateway/life/request.py",
        old="if not is_known_to_engine:",
        new="if False:",
        tests=(LIFE + "test_stop_text_cancels_the_engine_and_counts_what_it_drew_meanwhile",),
    ),
    Mutant(
        name="cancel lost when a request fails",
        file="services/gateway/life/request.py",
        old="            if choice.is_out:\n",
        new="            if False:\n",
        tests=(LIFE + "test_a_failed_request_cancels_what_runs_and_ignores_the_rest",),
    ),
    Mutant(
        name="finish not evaluated on the ids a caller brings",
        file="services/gateway/life/request.py",
        old="        if delta.finish is not None:\n            choice.move(Phase.DONE)",
        new="",
        tests=(LIFE + "test_a_resume_that_has_everything_needs_no_engine",),
    ),
)

TEXTS = (
    Mutant(
        name="stop hold-back lost",
        file="services/gateway/text/stop_text.py",
        old="certain = len(text) - max(self._matched)",
        new="certain = len(text)",
        tests=(STOPS + "test_the_match_that_ends_first_wins_and_the_longer_of_two",),
    ),
    Mutant(
        name="held text lost at the end",
        file="services/gateway/text/output_text.py",
        old="return self._stop_text.flush() + self._detokenizer.flush()",
        new="return self._detokenizer.flush()",
        tests=(LIFE + "test_run_time_completes_with_what_is_there_and_tells_the_held_text",),
    ),
    Mutant(
        name="stop before min_tokens",
        file="services/gateway/text/output_text.py",
        old="may_stop = self._num_tokens >= self._rules.min_tokens",
        new="may_stop = True",
        tests=(TEXT + "test_nothing_stops_before_min_tokens[byte_level]",),
    ),
    Mutant(
        name="split characters become U+FFFD",
        file="services/gateway/text/detokenizer.py",
        old="self._decoder.decode(self._next_bytes(token_id))",
        new="self._decoder.decode(self._next_bytes(token_id), final=True)",
        tests=(DETOKENIZER + "test_nothing_but_an_unfinished_character_is_held_back[byte_level]",),
    ),
    Mutant(
        name="prompt's text forgotten at the seam",
        file="services/gateway/text/detokenizer.py",
        old="self._decoder.decode(self._tail(prompt_ids))",
        new="pass",
        tests=(DETOKENIZER + "test_a_character_that_the_prompt_began_is_completed_or_blamed_on_the_prompt",),
    ),
)

TENANTS = (
    Mutant(
        name="salt without tenant",
        file="services/gateway/access/salt.py",
        old="    parts = [tenant.name]\n",
        new="    parts: list[str] = []\n",
        tests=(IDENTITY + "test_every_tenant_user_session_and_scope_has_its_own_salt",),
    ),
    Mutant(
        name="session key without user",
        file="services/gateway/access/salt.py",
        old="[tenant.name, user_id, session_id]",
        new="[tenant.name, session_id]",
        tests=(SESSIONS + "test_another_users_session_is_not_found_and_not_disturbed",),
    ),
)

TURNS = (
    Mutant(
        name="commit after complete",
        file="services/gateway/generation.py",
        old="await turn.save_for_good(",
        new="None; turn.save_later(",
        tests=(GENERATION + "test_a_turn_is_saved_before_its_end_is_told",),
    ),
    Mutant(
        name="failed turn saved",
        file="services/gateway/generation.py",
        old="                raise end.error\n",
        new="                self._keep_delivered(plan, delivery)\n                raise end.error\n",
        tests=(GENERATION + "test_a_turn_that_fails_saves_nothing",),
    ),
    Mutant(
        name="saving twice is two turns",
        file="services/gateway/history/sessions.py",
        old="return found.version if is_saved else None",
        new="return None",
        tests=(SESSIONS + "test_saving_twice_is_saving_once",),
    ),
    Mutant(
        name="turn saved again by its resume",
        file="services/gateway/history/session.py",
        old="return self.version - 1 if self._is_last(request_id) else self.version",
        new="return self.version",
        tests=(SESSIONS + "test_a_turn_saved_in_part_is_replaced_by_the_resumed_ones_end",),
    ),
    Mutant(
        name="older attempt saves over a higher one",
        file="services/gateway/history/sessions.py",
        old="if owner.client_attempt <= last:",
        new="if False:",
        tests=(SESSIONS + "test_an_older_attempt_never_overwrites_a_higher_one",),
    ),
    Mutant(
        name="turn lease not asked for",
        file="services/gateway/history/store/memory.py",
        old="if lease is not None and not _takes_over(owner, lease.owner):",
        new="if False:",
        tests=(SESSIONS + "test_a_second_turn_waits_for_the_first",),
    ),
    Mutant(
        name="commit by an owner who lost the lease",
        file="services/gateway/history/store/memory.py",
        old="or entry.record.revision != revision or is_taken",
        new="or entry.record.revision != revision",
        tests=(STORE + "test_replacing_needs_that_nobody_else_has_the_lease",),
    ),
    Mutant(
        name="commit over another's version",
        file="services/gateway/history/store/memory.py",
        old="or entry.record.revision != revision or is_taken",
        new="or is_taken",
        tests=(STORE + "test_replacing_needs_the_last_revision",),
    ),
)

GATEWAY_MUTANTS = ATTEMPTS + TEXTS + TENANTS + TURNS
