"""The default model's tokenizer and three made on the spot, with their templates."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from services.contract.default_model import fetch_default_model
from services.tokenizer.chat_template import ChatTemplate
from services.tokenizer.template_source import TemplateSource
from services.tokenizer.vocabulary import Vocabulary
from tests.support.tokenizer_families import (
    MARK,
    Family,
    Pipeline,
    byte_level,
    llama_bpe,
    open_pipeline,
    template_of,
    unigram,
)

OpenPipeline = Callable[..., AbstractAsyncContextManager[Pipeline]]


@pytest.fixture(scope="session")
def real_folder() -> Path:
    """The default model's folder."""
    return fetch_default_model()


@pytest.fixture(scope="session")
def families(real_folder: Path) -> dict[str, Family]:
    """By name: the real one and three made here."""
    template = (real_folder / "chat_template.jinja").read_text()
    definition = (real_folder / "tokenizer.json").read_bytes()
    real = Family("real", definition, TemplateSource(template, {"bos_token": "<|im_start|>"}))
    return {family.name: family for family in (real, byte_level(), unigram(), llama_bpe())}


@pytest.fixture(scope="session")
def vocabularies(families: dict[str, Family]) -> dict[str, Vocabulary]:
    """By the family's name."""
    return {name: Vocabulary(family.definition, MARK) for name, family in families.items()}


@pytest.fixture(scope="session")
def templates(families: dict[str, Family]) -> dict[str, ChatTemplate]:
    """Each family's template, in this process."""
    return {name: template_of(family.source) for name, family in families.items()}


@pytest.fixture(scope="session")
def pipeline(families: dict[str, Family], vocabularies: dict[str, Vocabulary]) -> OpenPipeline:
    """A context manager: pipeline(name, template=..., cache_bytes=...)."""

    def opened(name: str, **options: object) -> AbstractAsyncContextManager[Pipeline]:
        return partial(open_pipeline, families[name], vocabularies[name])(**options)

    return opened
