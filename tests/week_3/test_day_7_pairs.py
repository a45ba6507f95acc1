"""Day 3.7: two requests in the same steps, each with another feature, get what each gets alone."""

import pytest
from tests.helpers.pairs import UNDRAFTED, served_on


@pytest.fixture(scope="module", params=["cpp", "off"])
def served(request, llm):
    with served_on(request.param, llm) as found:
        yield found


@pytest.mark.task("3.7.3")
@pytest.mark.parametrize("name", UNDRAFTED)
def test_beside_every_feature(llm, served, name):
    for other in UNDRAFTED[UNDRAFTED.index(name) :]:
        served.serve(llm, (name, other))
