"""The default model's tokenizer."""

import pytest
from tokenizers import Tokenizer

from services.contract.model_folder import resolve_model


@pytest.fixture(scope="session")
def default_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(resolve_model("smollm2") / "tokenizer.json"))
