"""The template's process is killed at its limit, replaced, and never gives one call another's answer."""

import asyncio

import pytest

from services.contract.errors import MeshError, Reason
from services.tokenizer.template_source import TemplateSource
from services.tokenizer.template_worker import TemplateError, TemplateWorker
from tests.support.tokenizer_families import CHATML, MARK, talk

LOOP = "{{% for m in messages %}}{}{{{{ m.content }}}}{{% endfor %}}"
NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = LOOP.format("{% if m.content == 'loop' %}" + NESTED + "{% endif %}")
GREEDY = LOOP.format("{% if m.content == 'big' %}{{ 'a' * 4000000000 }}{% endif %}")


async def started(text: str, time_limit_s: float = 5.0) -> TemplateWorker:
    worker = TemplateWorker(TemplateSource(text, {}), time_limit_s)
    await worker.start()
    return worker


async def test_an_endless_template_is_killed_and_the_next_prompt_served() -> None:
    worker = await started(ENDLESS, time_limit_s=0.5)
    with pytest.raises(MeshError) as caught:
        await worker.render(["loop"], talk(("user", "loop")))
    assert caught.value.reason is Reason.TEMPLATE
    assert await worker.render(["fine"], talk(("user", "fine"))) == ("fine", False)
    assert worker.num_restarts == 1
    await worker.stop()


async def test_a_template_that_takes_all_memory_ends_alone() -> None:
    worker = await started(GREEDY)
    with pytest.raises(MeshError) as caught:
        await worker.render(["big"], talk(("user", "big")))
    assert caught.value.reason is Reason.TEMPLATE
    assert await worker.render(["fine"], talk(("user", "fine"))) == ("fine", False)
    await worker.stop()


async def test_callers_that_go_away_leave_no_answer_for_the_next() -> None:
    worker = await started("{% for m in messages %}{{ m.content }}{% endfor %}")
    for index in range(20):
        leaving = asyncio.create_task(worker.render(["left"], talk(("user", "left"))))
        for _ in range(index % 4):
            await asyncio.sleep(0)
        leaving.cancel()
        assert await worker.render([str(index)], talk(("user", "x"))) == (str(index), False)
    await worker.stop()


async def test_large_contents_pass_through_the_pipe() -> None:
    worker = await started("{% for m in messages %}{{ m.content }}{% endfor %}")
    content = "é\n" * 500_000
    assert await worker.render([content], talk(("user", content))) == (content, False)
    await worker.stop()


async def test_an_outline_comes_back_as_parts() -> None:
    worker = await started(CHATML)
    outline = await worker.outline(("system",), MARK, talk(("system", "")))
    assert outline.parts == ("<|im_start|>system\n", 0, "<|im_end|>\n<|im_start|>assistant\n")
    await worker.stop()


async def test_a_template_that_does_not_compile_is_one_short_cause() -> None:
    worker = TemplateWorker(TemplateSource("{% for m in %}", {}), 1.0)
    with pytest.raises(TemplateError, match=r"line 1"):
        await worker.start()
