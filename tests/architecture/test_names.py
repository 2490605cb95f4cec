from __future__ import annotations

import pytest

from tests.support.rules.naming_rules import questions, shared_class_names
from tests.support.rules.source_tree import project

# what breaks a rule today: whatever is mended leaves its list, and nothing is added
QUESTIONS_LEFT: set[str] = set()
CLASSES_LEFT: set[str] = set()


@pytest.mark.parametrize(
    ("rule", "left", "remedy"),
    [
        (questions, QUESTIONS_LEFT, "open the docstring with a noun or a verb in the third person: Writes checkpoints"),
        (shared_class_names, CLASSES_LEFT, "name one of the classes by what only it is"),
    ],
)
def test_names_and_openings_say_what_is_there(rule, left, remedy):
    """A listing of the modules tells them apart, and what each of them holds."""
    found = set(rule(project()))
    assert not found - left, "\n".join([remedy, *sorted(found - left)])
    assert not left - found, "\n".join(["mended: take it off the list in this test", *sorted(left - found)])
