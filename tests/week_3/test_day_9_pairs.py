"""Day 3.9: every feature next to drafts."""

import pytest
from tests.helpers.pairs import FEATURES, served_on


@pytest.fixture(scope="module", params=["cpp", "off"])
def served(request, llm):
    with served_on(request.param, llm) as found:
        yield found


@pytest.mark.task("3.9.6")
@pytest.mark.parametrize("name", FEATURES)
def test_beside_drafts(llm, served, name):
    served.serve(llm, (name, "drafts"))
