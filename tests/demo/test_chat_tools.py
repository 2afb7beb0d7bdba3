"""Functions of the user's own in a chat: run by a press, and by nobody who does not have the page's key."""

import itertools
import json

import pytest
from selenium.webdriver.common.keys import Keys

from onnx_textgen.chat.own_functions import MOST_ROUNDS, NOT_ALLOWED, OwnFunctions
from onnx_textgen_demo.chat.own_tools import OwnTools
from onnx_textgen_demo.conversation.message_tree import ROOT, MessageTree
from onnx_textgen_demo.models import ModelRegistry
from support import patient_http
from support.browser import close_messages, element, elements, wait_until, window
from support.calling_model import FAIL, TOOLS, UNREAD_TEMPLATE, make_calling, mark
from support.chat_page import kept, open_chat, open_conversation, open_empty_chat, say, wait_for_turns
from support.paced_runs import PacedRuns

CALL = {"id": "abc", "type": "function", "function": {"name": "mark", "arguments": '{"name": "stranger"}'}}
WAITING = MessageTree("ab").add(ROOT, {"role": "user", "content": "Go."})
WAITING = WAITING.add(0, {"role": "assistant", "content": "", "tool_calls": [CALL]})
"""A conversation in which a call waits."""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "tools.py").write_text(TOOLS)
    return OwnTools(OwnFunctions(tmp_path / "tools.py"))


@pytest.fixture
def chat(chromium, served, own):
    """Call it with what the model writes, for a chat of a page that was opened with the key."""

    def start(*texts, **more):
        open_empty_chat(chromium, served(make_calling(*texts, **more), own=own) + own.query)
        return chromium

    return start


def buttons(driver):
    script = "return [...document.querySelectorAll('#turns [data-does=decide]')].map((each) => each.ariaLabel)"
    return driver.execute_script(script)


def wait_for_buttons(driver, *names):
    wait_until(driver, lambda: element(driver, "#send").is_displayed() and buttons(driver) == list(names), f"the buttons {names}")


def of(name):
    return f"Run {name}", f"Always run this function: {name}", f"Refuse {name}"


def messages_of(driver):
    (conversation,) = [each["conversation"] for each in kept(driver).values()]
    return [node["message"] for node in conversation["nodes"]]


def test_a_call_waits_for_a_press_and_its_result_is_in_its_card(chat, marks):
    driver = chat(f"I try.{mark('x')}", "It is done.")
    wait_until(driver, lambda: "may call mark, fail" in element(driver, "#chat-tools").text, "the names")
    say(driver, "Go.")
    wait_for_buttons(driver, *of("mark"))
    assert marks() == []
    assert "waiting for you" in element(driver, "#chat-note").text
    run = element(driver, "#turns [data-decision=run]")
    run.send_keys(Keys.ENTER)  # by the keyboard
    assert wait_for_turns(driver, 3)[-1] == ("assistant", "It is done.")
    assert marks() == ["x"]
    card = element(driver, "#turns .tool-call")
    assert card.text.splitlines() == ["Tool mark done", "{", '  "name": "x"', "}", "Result", "marked x"]
    assert not buttons(driver)
    assert driver.switch_to.active_element == element(driver, "#messages")
    roles = ["user", "assistant", "tool", "assistant"]
    wait_until(driver, lambda: [each["role"] for each in messages_of(driver)] == roles, "the conversation in the browser")
    call, result = messages_of(driver)[1]["tool_calls"][0], messages_of(driver)[2]
    assert json.loads(call["function"]["arguments"]) == {"name": "x"}
    assert result == {"role": "tool", "tool_call_id": call["id"], "name": "mark", "content": "marked x"}


def test_the_arguments_of_a_call_are_seen_while_the_model_writes_them(chat, monkeypatch):
    runs = PacedRuns(monkeypatch)
    driver = chat(mark("a cat with a long name"))
    runs.seconds = 0.1
    say(driver, "Go.")
    script = "return document.querySelector('#growing .tool-call pre')?.textContent"
    written = lambda: driver.execute_script(script)  # noqa: E731
    first = wait_until(driver, written, "the first arguments")
    more = wait_until(driver, lambda: (now := written()) != first and now, "more of them")
    assert more.startswith(first)
    assert not buttons(driver)
    assert all("tool_calls" not in each for each in messages_of(driver)), "a part of a call is none of the message"
    runs.seconds = 0
    wait_for_buttons(driver, *of("mark"))


def test_a_call_that_was_cut_off_is_shown_as_such_and_never_runs(chat, marks):
    driver = chat(f"I try.{mark('x' * 200)}", most_tokens=60)
    say(driver, "Go.")
    wait_for_turns(driver, 2)
    cut_off(driver)
    open_chat(driver, driver.current_url)
    wait_for_turns(driver, 2)
    cut_off(driver)
    say(driver, "Go on.")  # the model reads the answer without it
    wait_for_turns(driver, 4)
    assert marks() == []


def cut_off(driver):
    """There is the card, and nothing to run it with."""
    head, *written, note = element(driver, "#turns .tool-call").text.splitlines()
    assert head == "Tool mark cut off"
    assert written[0].startswith('{"name": "xx')
    assert note == "The answer ended within this call, so it cannot run."
    assert not buttons(driver)
    assert "max new tokens" in element(driver, "#turns .figures").text


def test_a_model_whose_calls_cannot_be_read_is_named_in_one_line(chromium, served, own, marks):
    unread, other = make_calling(mark("x"), template=UNREAD_TEMPLATE), make_calling()
    registry = ModelRegistry({"unread": lambda: unread, "other": lambda: other})
    open_empty_chat(chromium, served(registry, own=own) + own.query)
    line = lambda: element(chromium, "#chat-tools").text  # noqa: E731
    wait_until(
        chromium, lambda: line().startswith("unread is told of mark, fail, but how it writes calls is not known"), "the line"
    )
    say(chromium, "Go.")
    assert "<call>" in wait_for_turns(chromium, 2)[-1][1]
    assert not buttons(chromium)
    element(chromium, "#picker input").click()
    wait_until(chromium, lambda: elements(chromium, "[role=option]"), "the models")[1].click()
    wait_until(chromium, lambda: line().startswith("The model may call mark, fail"), "the line of the other")
    assert marks() == []


def test_each_call_is_decided_and_always_holds_until_the_page_is_loaded_again(chat, marks, served, own):
    driver = chat(mark("x") + FAIL, mark("y"), "So.", mark("z"))
    say(driver, "Go.")
    wait_for_buttons(driver, *of("mark"), *of("fail"))
    element(driver, "#turns [data-decision=refuse][aria-label='Refuse fail']").click()
    wait_for_buttons(driver, *of("mark"))
    assert driver.switch_to.active_element == element(driver, "#turns [data-decision=run]")
    assert NOT_ALLOWED in element(driver, "#turns").text
    element(driver, "#turns [data-decision=always]").click()
    assert wait_for_turns(driver, 4)[-1] == ("assistant", "So.")
    assert marks() == ["x", "y"]
    open_chat(driver, driver.current_url)
    wait_for_turns(driver, 4)
    say(driver, "Again.")
    wait_for_buttons(driver, *of("mark"))
    assert marks() == ["x", "y"]
    say(driver, "Leave it.")
    wait_for_turns(driver, 8)
    assert NOT_ALLOWED in messages_of(driver)[-3]["content"]
    assert marks() == ["x", "y"]


def test_a_model_that_calls_without_end_is_stopped_in_one_line(chat, marks, monkeypatch):
    monkeypatch.setattr("onnx_textgen_demo.conversation.open_calls.MOST_ROUNDS", 2)
    driver = chat(*[mark("x")] * MOST_ROUNDS)
    say(driver, "Go.")
    wait_for_buttons(driver, *of("mark"))
    element(driver, "#turns [data-decision=always]").click()
    wait_until(driver, lambda: "was stopped" in element(driver, "#chat-note").text, "the line")
    assert not buttons(driver)
    assert marks() == ["x", "x"]


def test_calls_that_were_left_undecided_are_offered_again_where_the_page_has_the_key(chromium, served, own, marks):
    address = served(make_calling(), own=own)
    open_empty_chat(chromium, address + own.query)
    open_conversation(chromium, address, WAITING, 2)
    assert not buttons(chromium)
    assert "open it by the address that the terminal shows" in element(chromium, "#chat-tools").text
    open_chat(chromium, address + own.query)
    wait_for_buttons(chromium, *of("mark"))
    assert marks() == []
    element(chromium, "#turns [data-decision=run]").click()
    assert wait_for_turns(chromium, 3)[-1] == ("assistant", "Done.")
    assert marks() == ["stranger"]


def test_the_buttons_fit_a_phone(chat):
    driver = chat(mark("x"))
    with window(driver, 400, 800):
        say(driver, "Go.")
        wait_for_buttons(driver, *of("mark"))
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 400


def test_a_page_without_functions_shows_no_buttons(chromium, served):
    address = served(make_calling())
    open_empty_chat(chromium, address)
    open_conversation(chromium, address, WAITING, 2)
    assert not buttons(chromium)
    assert not elements(chromium, "#chat-tools")
    close_messages(chromium)


SESSIONS = itertools.count()


def press_run(address, query="", **headers):
    """Ask the server, without a browser, what a press of Run asks; gives what its queue says at the end."""
    config = patient_http.get(f"{address}config").json()
    (decide,) = [each for each in config["dependencies"] if each["api_name"] == "decide"]
    values = {each["id"]: each["props"].get("value") for each in config["components"]}
    ids = {each["props"].get("elem_id"): each["id"] for each in config["components"]}
    values[ids["conversations"]] = WAITING.to_json()
    body = {
        "data": [values.get(each) for each in decide["inputs"]],
        "event_data": {"index": 1, "call": 0, "decision": "run"},
        "fn_index": decide["id"],
        "trigger_id": ids["turns"],
        "session_hash": f"stranger{next(SESSIONS)}",
    }
    answer = patient_http.post(f"{address}gradio_api/queue/join{query}", json=body, headers=headers)
    if answer.status_code != 200:
        return answer.text
    said = []
    with patient_http.stream("GET", f"{address}gradio_api/queue/data", params={"session_hash": body["session_hash"]}) as events:
        for line in events.iter_lines():
            said.append(line)
            if "process_completed" in line:
                break
    return "\n".join(said)


@pytest.mark.parametrize("query", ["", "?key=", "?key=wrong", "?key=%C3%A9", "?other=x"])
def test_a_request_without_the_key_runs_no_function(served, own, marks, query):
    address = served(make_calling(), own=own)
    assert "no function can run here" in press_run(address, query)
    assert marks() == []


def test_the_same_request_with_the_key_runs_it_so_that_the_key_is_what_protects(served, own, marks):
    assert "marked stranger" in press_run(served(make_calling(), own=own), own.query)
    assert marks() == ["stranger"]


def test_a_page_of_another_origin_gets_nothing_to_run_a_function_with(served, own, marks):
    address = served(make_calling(), own=own)
    foreign = {"Origin": "https://evil.example"}
    press_run(address, **foreign)
    assert marks() == []
    for path in ("", "config", "gradio_api/info"):
        answer = patient_http.get(f"{address}{path}", headers=foreign)
        assert own.key not in answer.text, "the page does not say its key"
        assert "access-control-allow-origin" not in answer.headers


def test_the_functions_are_not_of_the_api(served, own, marks):
    address = served(make_calling(), own=own)
    offered = patient_http.get(f"{address}gradio_api/info").json()
    assert list(offered["named_endpoints"]) == ["/generate"]
    config = patient_http.get(f"{address}config").json()
    assert [each["api_name"] for each in config["dependencies"] if each["api_visibility"] != "private"] == ["generate"]
    (decide,) = [each for each in config["dependencies"] if each["api_name"] == "decide"]
    assert decide["queue"] is not False
    assert marks() == []
