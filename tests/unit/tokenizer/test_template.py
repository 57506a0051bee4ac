"""What a template's outline tells, what a refusal says, and what the sandbox keeps in."""

import pytest

from services.tokenizer.chat_template import ChatTemplate, TemplateRefusal
from services.tokenizer.template_source import TemplateSource
from tests.support.tokenizer_families import CHATML, MARK, TRIMMING, template_of

ROLES = ("user", "assistant", "user")
LOOKING = {
    "trims": TRIMMING,
    "strips by a method": CHATML.replace("message['content']", "message.content.strip()"),
    "strips a joined text": CHATML.replace("message['content']", "('' + message.content).strip()"),
    "tests for emptiness": "{% for m in messages %}{% if m.content %}{{ m.content }}{% endif %}{% endfor %}",
    "tests for a part": "{% for m in messages %}{% if '</think>' in m.content %}-{% endif %}{% endfor %}",
    "compares": "{% for m in messages %}{% if m.content == 'x' %}-{% endif %}{{ m.content }}{% endfor %}",
    "splits": "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}",
    "slices": "{% for m in messages %}{{ m.content[:3] }}{% endfor %}",
    "measures": "{% for m in messages %}{{ m.content | length }}{% endfor %}",
    "dumps": "{{ messages | tojson }}",
    "upper-cases": "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    "replaces": "{% for m in messages %}{{ m.content | replace('a', 'b') }}{% endfor %}",
    "loops over characters": "{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
}
LOOP = "{{% for m in messages %}}{}{{% endfor %}}"
PLACING = {
    "concatenates": CHATML,
    "prints": LOOP.format("[{{ m.content }}]"),
    "sets a name": LOOP.format("{% set c = m['content'] %}{{ '<' ~ c ~ '>' }}"),
    "asks for a string": LOOP.format("{% if m.content is string %}{{ m.content }}{% endif %}"),
    "calls a macro": "{% macro show(c) %}({{ c }}){% endmacro %}" + LOOP.format("{{ show(m.content) }}"),
    "marks generations": LOOP.format("{% generation %}{{ m.content }}{% endgeneration %}"),
    "fills a default": LOOP.format("{{ m.content | default('') }}"),
}


def template(text: str) -> ChatTemplate:
    return template_of(TemplateSource(text, {"bos_token": "<s>", "eos_token": "</s>"}))


def messages(*contents: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in zip(ROLES, contents, strict=False)]


@pytest.mark.parametrize("text", LOOKING.values(), ids=LOOKING.keys())
def test_a_template_that_looks_into_contents_has_no_outline(text: str) -> None:
    assert template(text).outline(ROLES, MARK).parts is None


@pytest.mark.parametrize("text", PLACING.values(), ids=PLACING.keys())
def test_a_template_that_only_places_contents_has_one(text: str) -> None:
    contents = (" a ", "", "</think>")
    parts = template(text).outline(ROLES, MARK).parts
    assert parts is not None
    filled = "".join(part if isinstance(part, str) else contents[part] for part in parts)
    assert filled == template(text).render(messages(*contents)).text


def test_a_later_outline_is_not_spoilt_by_an_earlier_look() -> None:
    body = "{% if m.role == 'tool' %}{{ m.content | trim }}{% else %}{{ m.content }}{% endif %}"
    some = template(LOOP.format(body))
    assert some.outline(("tool",), MARK).parts is None
    assert some.outline(("user",), MARK).parts == (0,)


def test_a_dated_template_says_so() -> None:
    dated = template("{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}")
    assert dated.outline(("user",), MARK).is_dated
    assert dated.render(messages("a")).is_dated
    assert dated.render(messages("a")).text == "26 Jul 2024a"
    assert not template(CHATML).outline(("user",), MARK).is_dated


def test_a_refusal_names_the_message_and_the_templates_own_words() -> None:
    alternate = template(
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate') }}{% endif %}{% endfor %}"
    )
    with pytest.raises(TemplateRefusal) as caught:
        alternate.render([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    assert (caught.value.reason, caught.value.index) == ("Roles must alternate", 1)


def test_a_refusal_quotes_neither_contents_nor_source() -> None:
    quoting = template("{% for m in messages %}{{ raise_exception('bad: ' + m.content) }}{% endfor %}")
    failing = template("{% for m in messages %}{{ m.content + 1 }}{% endfor %}")
    for some in (quoting, failing):
        with pytest.raises(TemplateRefusal) as caught:
            some.render(messages("secret text"))
        assert "secret" not in caught.value.reason and "{{" not in caught.value.reason
        assert caught.value.index == 0


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ namespace(_x=1) }}",
        "{{ range(10000000) | list }}",
        "{{ nothing.at.all }}",
    ],
)
def test_the_sandbox_keeps_templates_in(text: str) -> None:
    with pytest.raises(TemplateRefusal):
        template(text).render(messages("a"))
