"""Programs that use the server: each in the way of its recipe in docs/serving.md, with a model that knows nothing.

`pip install -e .[clients]` installs them all; a test is left out if its own is missing.
"""

import asyncio
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # other projects' warnings
QUESTION = "What is the weather in Oslo?"


class Animal(pydantic.BaseModel):
    """An animal."""

    model_config = pydantic.ConfigDict(extra="forbid")
    kind: Literal["cat", "dog"]
    is_small: bool


def get_weather(city: Literal["Oslo", "Bergen"]) -> str:
    """The weather of a city."""
    return f"rain in {city}"


@pytest.fixture(autouse=True)
def rest_of_connections() -> Iterator[None]:
    """What clients leave open is closed while their warnings are ignored."""
    yield
    gc.collect()


@pytest.fixture
def url(live: tuple[str, Any]) -> str:
    pytest.importorskip("llguidance")
    return live[0]


def test_langchain_calls_tools_and_returns_objects(url: str) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    for more in ({}, {"use_responses_api": True}):
        chat = langchain_openai.ChatOpenAI(model="chatty", base_url=f"{url}/v1", api_key="unused", temperature=0, **more)
        answer = chat.bind(max_tokens=12).invoke(QUESTION)
        assert answer.text
        assert answer.usage_metadata["output_tokens"] == 12
        streamed = "".join(chunk.text for chunk in chat.bind(max_tokens=12).stream(QUESTION))
        assert streamed == answer.text
        called = chat.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False).invoke(QUESTION)
        (call,) = called.tool_calls
        assert (call["name"], call["args"]["city"] in ("Oslo", "Bergen")) == ("get_weather", True)
        said = [("user", QUESTION), called, {"role": "tool", "tool_call_id": call["id"], "content": get_weather(**call["args"])}]
        assert chat.bind(max_tokens=12).invoke(said).text
        assert isinstance(chat.with_structured_output(Animal).invoke("A dog."), Animal)
    assert isinstance(chat.with_structured_output(Animal, method="function_calling").invoke("A dog."), Animal)


def test_llama_index_chats_and_calls_tools(url: str) -> None:
    openai_like = pytest.importorskip("llama_index.llms.openai_like")
    tools = pytest.importorskip("llama_index.core.tools")
    llm = openai_like.OpenAILike(
        model="chatty",
        api_base=f"{url}/v1",
        api_key="unused",
        context_window=512,
        max_tokens=200,
        temperature=0,
        is_chat_model=True,
        is_function_calling_model=True,
    )
    whole = str(llm.complete(QUESTION))
    assert whole
    assert "".join(each.delta for each in llm.stream_complete(QUESTION)) == whole
    tool = tools.FunctionTool.from_defaults(get_weather)
    answer = llm.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
    (call,) = llm.get_tool_calls_from_response(answer)
    assert tool.call(**call.tool_kwargs).raw_output in ("rain in Oslo", "rain in Bergen")
    assert isinstance(
        llm.structured_predict(Animal, pytest.importorskip("llama_index.core.prompts").PromptTemplate("A dog.")), Animal
    )


@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama_chat"])
def test_litellm_takes_each_of_the_wire_formats(url: str, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    base = f"{url}/v1" if provider == "openai" else url
    asked = {"model": f"{provider}/chatty", "api_base": base, "api_key": "unused", "temperature": 0, "max_tokens": 12}
    said = [{"role": "user", "content": QUESTION}]
    answer = litellm.completion(**asked, messages=said)
    text = answer.choices[0].message.content
    assert text
    assert answer.usage.completion_tokens == 12
    assert "".join(part.choices[0].delta.content or "" for part in litellm.completion(**asked, messages=said, stream=True)) == text
    if provider != "ollama_chat":  # whose API cannot require a call
        place = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Bergen"]}}, "required": ["city"]}
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": place}}]
        more = {"messages": said, "tools": tools, "tool_choice": "required", "max_tokens": 100}
        (call, *_) = litellm.completion(**asked | more).choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Bergen")


def test_llm_takes_models_from_its_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"model_id": "own", "model_name": "chatty", "api_base": f"{url}/v1", "supports_schema": True, "supports_tools": True}
    (tmp_path / "extra-openai-models.yaml").write_text(f"- {json.dumps(model)}\n")
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.setenv("LLM_LOAD_PLUGINS", "")
    llm = pytest.importorskip("llm")
    found = llm.get_model("own")
    found.key = "unused"
    whole = found.prompt(QUESTION, stream=False, max_tokens=12, temperature=0).text()
    assert whole
    assert "".join(found.prompt(QUESTION, max_tokens=12, temperature=0)) == whole
    assert Animal.model_validate_json(found.prompt("A dog.", schema=Animal, temperature=0).text())


def test_an_agent_of_pydantic_ai_returns_an_object_and_calls_a_tool(url: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models, providers = pytest.importorskip("pydantic_ai.models.openai"), pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{url}/v1", api_key="unused")
    for kind in (models.OpenAIChatModel, models.OpenAIResponsesModel):
        agent = pydantic_ai.Agent(kind("chatty", provider=provider), output_type=Animal, model_settings={"temperature": 0})
        assert isinstance(agent.run_sync("A dog.").output, Animal)


def test_an_agent_of_openai_calls_a_tool(url: str) -> None:
    agents, openai = pytest.importorskip("agents"), pytest.importorskip("openai")
    agents.set_tracing_disabled(True)

    async def run(kind: type) -> str:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused") as client:
            agent = agents.Agent(
                name="Reporter",
                instructions="Use the tool.",
                model=kind(model="chatty", openai_client=client),
                tools=[agents.function_tool(get_weather)],
                model_settings=agents.ModelSettings(tool_choice="required", temperature=0, parallel_tool_calls=False),
                tool_use_behavior="stop_on_first_tool",
            )
            return (await agents.Runner.run(agent, QUESTION)).final_output

    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        assert asyncio.run(run(kind)) in ("rain in Oslo", "rain in Bergen")
