"""What tests of several days of this week need; kernels run where those of week 2 do."""

import pytest
from tests.helpers.serving import four_prompts
from tests.helpers.toy import ByteTokenizer, toy_model
from tests.week_2.conftest import kernels, metal, probe

__all__ = ["kernels", "metal", "probe"]


@pytest.fixture(scope="module")
def model(llm):
    return toy_model(llm)


@pytest.fixture(scope="module")
def wanted(llm, model):
    """What each of `four_prompts` is answered without interference."""
    return [each.token_ids for each in llm.batch_generate(model, ByteTokenizer(), four_prompts())]
