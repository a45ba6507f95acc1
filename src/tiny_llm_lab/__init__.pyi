from tiny_llm_lab.runtime.models import load_checkpoint as load_checkpoint
from tiny_llm_lab.runtime.solution import load_solution as load_solution
from tiny_llm_lab.serving.async_llm import AsyncLLM as AsyncLLM
from tiny_llm_lab.serving.llm import LLM as LLM
from tiny_llm_lab.types import SamplingParams as SamplingParams
