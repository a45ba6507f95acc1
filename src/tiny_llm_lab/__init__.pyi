from tiny_llm_lab.async_llm import AsyncLLM as AsyncLLM
from tiny_llm_lab.llm import LLM as LLM
from tiny_llm_lab.models import load_checkpoint as load_checkpoint
from tiny_llm_lab.solution import load_solution as load_solution
from tiny_llm_lab.types import SamplingParams as SamplingParams
