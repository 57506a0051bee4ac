"""Builds a tokenizer process from its settings: the only place that does."""

import asyncio
import logging
import secrets
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from pagemesh.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from services.chassis.server import Server
from services.chassis.telemetry import start_metrics, start_telemetry
from services.contract.model_folder import ModelFolder, ModelFolderError, open_model_folder, resolve_model
from services.tokenizer.definition import Definition
from services.tokenizer.lru import Lru
from services.tokenizer.metrics import TokenizerMetrics
from services.tokenizer.plans import Plans
from services.tokenizer.preheat import preheat, read_hot_queries
from services.tokenizer.prompt_encoder import Chat, Limit, PromptEncoder
from services.tokenizer.run_encoder import Ids, RunEncoder
from services.tokenizer.service import Frozen, TokenizerServicer
from services.tokenizer.settings import TokenizerSettings
from services.tokenizer.survey import Survey, survey
from services.tokenizer.template_source import TemplateSource, read_template
from services.tokenizer.template_worker import TemplateError, TemplateWorker
from services.tokenizer.truncation import Side
from services.tokenizer.vocabulary import RunText, Vocabulary, VocabularyError

SERVICE = "pagemesh-tokenizer"
FULL_NAME = tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"].full_name
MIB = 1 << 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a model folder comes to."""

    folder: ModelFolder
    definition: Definition
    vocabulary: Vocabulary
    template: TemplateSource | None
    mark: str


async def serve(settings: TokenizerSettings) -> int:
    """Runs the process. Raises ModelFolderError, HotQueriesError or BindError for what its user can mend."""
    queries = read_hot_queries(settings.hot_queries)
    loaded = await asyncio.to_thread(load, settings.model)
    registry = CollectorRegistry()
    metrics = TokenizerMetrics(registry)
    start_metrics(settings, registry)
    telemetry = start_telemetry(SERVICE, settings)
    with (
        ThreadPoolExecutor(settings.encode_threads, "encode") as threads,
        ThreadPoolExecutor(1, "encode large") as large_thread,
    ):
        worker = None if loaded.template is None else await _start_worker(loaded, settings)
        try:
            encoder, frozen = await build(settings, loaded, worker, (threads, large_thread), metrics)
            await _warm(encoder, frozen, queries)
            server = Server(settings, SERVICE, telemetry)
            servicer = TokenizerServicer(frozen, encoder, metrics, telemetry.tracer)
            server.add(tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server, servicer, FULL_NAME)
            server.readiness.set("preheated", True)
            server.readiness.set_model(settings.served_name, True)
            return await server.run()
        finally:
            if worker is not None:
                await worker.stop()


def load(model: str) -> Loaded:
    """Reads a model's tokenizer and template. Blocks. Raises ModelFolderError."""
    folder = open_model_folder(resolve_model(model))
    file = folder.path / "tokenizer.json"
    definition = Definition.of(file.read_bytes())
    mark = f"\ufdd0{secrets.token_hex(16)}:"
    try:
        vocabulary = Vocabulary(definition.content, mark)
    except VocabularyError as error:
        raise ModelFolderError(file, str(error), "save the fast tokenizer again") from error
    return Loaded(folder, definition, vocabulary, _template(folder.path), mark)


def _template(folder: Path) -> TemplateSource | None:
    try:
        return read_template(folder)
    except (OSError, ValueError, KeyError) as error:
        cause = "its chat template cannot be read"
        raise ModelFolderError(folder, cause, "save the tokenizer again") from error


async def _start_worker(loaded: Loaded, settings: TokenizerSettings) -> TemplateWorker:
    assert loaded.template is not None
    worker = TemplateWorker(loaded.template, settings.template_time_limit_s)
    try:
        await worker.start()
    except TemplateError as error:
        raise ModelFolderError(loaded.folder.path, f"chat template: {error}", "mend the template") from error
    return worker


async def build(
    settings: TokenizerSettings,
    loaded: Loaded,
    worker: TemplateWorker | None,
    threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor],
    metrics: TokenizerMetrics,
) -> tuple[PromptEncoder, Frozen]:
    """The pipeline and the constants. `threads` are those for long texts, and the one for large texts."""
    vocabulary = loaded.vocabulary
    max_prompt_tokens = settings.max_prompt_tokens or _model_limit(loaded.folder)
    segment_cache: Lru[RunText, Ids] = Lru(settings.segment_cache_mib * MIB)
    exact_cache: Lru[Hashable, Ids] = Lru(settings.exact_cache_mib * MIB)
    metrics.cache_bytes.labels("segment").set_function(lambda: segment_cache.cost)
    metrics.cache_bytes.labels("exact").set_function(lambda: exact_cache.cost)
    runs = RunEncoder(
        vocabulary,
        *threads,
        segment_cache,
        lambda hits, misses: metrics.note_lookups("segment", hits, misses),
    )
    chat, found = None, Survey(has_safe_seams=False, is_append_only=False)
    if worker is not None:
        metrics.template_restarts.set_function(lambda: worker.num_restarts)
        plans = Plans(vocabulary, worker, loaded.mark)
        found = await survey(vocabulary, plans, worker)
        chat = Chat(plans, worker, found.is_append_only, found.has_safe_seams)
    encoder = PromptEncoder(
        vocabulary=vocabulary,
        runs=runs,
        chat=chat,
        cache=exact_cache,
        note_lookup=lambda is_hit: metrics.note_lookups("exact", is_hit, not is_hit),
        mark=loaded.mark,
    )
    info = _info(settings, loaded, found, max_prompt_tokens)
    return encoder, Frozen(loaded.definition, vocabulary.token_bytes, info, max_prompt_tokens)


def _model_limit(folder: ModelFolder) -> int:
    limit = folder.config.get("max_position_embeddings")
    if not isinstance(limit, int):
        remedy = "say the limit with --max-prompt-tokens"
        raise ModelFolderError(folder.path / "config.json", "has no max_position_embeddings", remedy)
    return limit


def _info(
    settings: TokenizerSettings, loaded: Loaded, found: Survey, max_prompt_tokens: int
) -> tokenizer_pb2.GetTokenizerInfoResponse:
    vocabulary = loaded.vocabulary
    mode = tokenizer_pb2.SESSION_MODE_APPEND if found.is_append_only else tokenizer_pb2.SESSION_MODE_RERENDER
    return tokenizer_pb2.GetTokenizerInfoResponse(
        model=settings.served_name,
        definition_sha256=loaded.definition.sha256,
        template_sha256="" if loaded.template is None else loaded.template.sha256,
        vocab_size=vocabulary.size,
        eos_ids=sorted(loaded.folder.eos_ids),
        special_ids=sorted(vocabulary.special_ids),
        session_mode=mode,
        has_safe_seams=found.has_safe_seams,
        prefix_ids=vocabulary.prefix_ids,
        longest_token_bytes=vocabulary.token_bytes.longest,
        boot_id=secrets.token_hex(8),
        max_prompt_tokens=max_prompt_tokens,
    )


async def _warm(encoder: PromptEncoder, frozen: Frozen, queries: list[str]) -> None:
    has_chat = bool(frozen.info.template_sha256)
    limit = Limit(frozen.max_prompt_tokens, Side.NONE)
    refused = await preheat(encoder, queries, limit, has_chat=has_chat)
    logger.info("preheated", extra={"queries": len(queries), "refused": len(refused)})
