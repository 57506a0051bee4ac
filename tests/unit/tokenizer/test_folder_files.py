"""What is read beside the vocabulary: templates in their several places, and hot queries."""

import json
from pathlib import Path

import pytest

from services.tokenizer.make_hot_queries import ASKS, SUBJECTS
from services.tokenizer.preheat import HotQueriesError, read_hot_queries
from services.tokenizer.settings import HOT_QUERIES
from services.tokenizer.template_source import read_template


def write_config(folder: Path, **values: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def test_a_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    write_config(
        tmp_path, chat_template="old", bos_token="<s>", eos_token={"content": "</s>"}, pad_token=None
    )
    source = read_template(tmp_path)
    assert source is not None and source.text == "old"
    assert source.variables == {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "chat_template.jinja").write_text("new")
    newer = read_template(tmp_path)
    assert newer is not None and newer.text == "new"
    assert newer.sha256 != source.sha256


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    write_config(
        tmp_path, chat_template=[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    )
    source = read_template(tmp_path)
    assert source is not None and source.text == "d"


def test_a_folder_may_have_no_template(tmp_path: Path) -> None:
    assert read_template(tmp_path) is None
    write_config(tmp_path, chat_template=None)
    assert read_template(tmp_path) is None


def test_hot_queries_are_plain_lines_or_json_strings(tmp_path: Path) -> None:
    file = tmp_path / "hot.txt"
    file.write_text('What is 2 + 2?\n"two\\nlines"\n\n"quoted" start\n  kept spaces \n')
    assert read_hot_queries(file) == ["What is 2 + 2?", "two\nlines", '"quoted" start', "  kept spaces "]


def test_the_shipped_hot_queries_are_what_the_script_prints() -> None:
    queries = read_hot_queries(HOT_QUERIES)
    assert queries == [ask.format(subject) for subject in SUBJECTS for ask in ASKS]
    assert len(set(queries)) == 1000


def test_a_bad_hot_query_file_is_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for file in (binary, tmp_path / "missing", tmp_path):
        with pytest.raises(HotQueriesError, match=str(file)):
            read_hot_queries(file)
