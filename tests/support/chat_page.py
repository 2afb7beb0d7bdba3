"""What the tests do with the tab Chat in a browser."""

import json

from selenium.webdriver.common.keys import Keys

from support.browser import element, elements, open_tab, set_value, wait_until

PREFIX = "onnx-textgen.chat."
FIGURES = "#turns .turn:last-of-type .figures"


def open_chat(driver, address):
    """The page at its tab; if it was open before, as its address showed it."""
    address, (before, _, shown) = address.partition("#")[0], driver.current_url.partition("#")
    driver.get("about:blank")  # else an address that differs only after "#" would not be loaded
    driver.get(f"{address}#{shown}" if shown and before.startswith(address.partition("?")[0]) else address)
    wait_until(driver, lambda: elements(driver, "button[role=tab][aria-selected=true]"), "the page")
    open_tab(driver, "Chat")
    wait_until(driver, lambda: elements(driver, "#send") and element(driver, "#send").is_displayed(), "the tab")


def open_empty_chat(driver, address):
    """The page at its tab, with no conversations in its storage."""
    driver.get(address)
    driver.execute_script("localStorage.clear(); history.replaceState(null, '', location.pathname + location.search)")
    open_chat(driver, address)


def say(driver, text):
    set_value(driver, "#message textarea", text)
    element(driver, "#message textarea").send_keys(Keys.ENTER)


def turns_of(driver):
    """Who said what."""
    script = """return [...document.querySelectorAll("#turns .turn")].map((turn) => {
        const said = turn.querySelector(".said, .markdown");
        return [turn.classList.contains("user") ? "user" : "assistant", said ? said.innerText.trim() : ""]; })"""
    return [tuple(each) for each in driver.execute_script(script)]


def is_at_rest(driver):
    return bool(elements(driver, "#turns [aria-busy=false]")) and element(driver, "#send").is_displayed()


def wait_for_turns(driver, count):
    wait_until(driver, lambda: is_at_rest(driver) and len(turns_of(driver)) == count, f"{count} messages")
    return turns_of(driver)


def press(driver, does, turn=-1):
    """Press a button of the last message, or of another one."""
    article = elements(driver, "#turns .turn")[turn]
    button = article.find_element("css selector", f"button[data-does={does}], button[aria-label='{does}']")
    driver.execute_script("arguments[0].click()", button)


def press_head(driver, does):
    driver.execute_script("arguments[0].click()", element(driver, f"#conversations [data-does={does}]"))


def press_name(driver, name):
    """Press a button of the list of conversations, by its name."""
    driver.execute_script("document.querySelector(arguments[0]).click()", f"#conversations [aria-label='{name}']")


def figures_of(driver):
    shown = elements(driver, FIGURES)
    return shown[0].text if shown else ""


def kept(driver):
    """The conversations in the browser's storage, by key."""
    script = "return Object.entries(localStorage).filter(([key]) => key.startsWith(arguments[0]))"
    return {key.removeprefix(PREFIX): json.loads(value) for key, value in driver.execute_script(script, PREFIX)}


def keep(driver, key, value):
    """Put a value into the browser's storage, as the conversation of a key that a reload opens."""
    driver.execute_script("localStorage.setItem(arguments[0], arguments[1])", PREFIX + key, value)
    driver.execute_script("keepInAddress('chat', arguments[0])", key)


def open_conversation(driver, address, tree, count):
    """The page at its tab with a conversation, of which so many messages are shown."""
    keep(driver, tree.key, json.dumps({"saved": 1, "conversation": tree.to_json()}))
    open_chat(driver, address)
    wait_for_turns(driver, count)


def names_of_conversations(driver):
    script = "return [...document.querySelectorAll('#conversation-list .pick')].map((each) => each.textContent)"
    return driver.execute_script(script)
