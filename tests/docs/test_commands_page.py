"""The page of commands is what the parsers say, and every argument says something."""

import pytest

from roller_tvm.cli import VERBS

from .commands_page import PAGE, parser_of, text


def test_the_page_is_what_the_parsers_say(request):
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text())
    assert PAGE.read_text() == text(), "run pytest tests/docs/test_commands_page.py --update-golden, and read it"


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_has_a_help_text(verb):
    assert not [action.dest for action in parser_of(verb)._actions if not action.help]
