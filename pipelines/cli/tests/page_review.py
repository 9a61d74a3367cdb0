"""The review queue on the page of `turnflow serve`: page_review.py URL TOKEN [DIR].

Needs what page_browser.py needs. There are 32 answers; the last question tries to be a part of the page.
"""

import sys

from page_browser import NAMELESS, SMALL, WIDE, Page
from selenium.webdriver.common.keys import Keys

page = Page(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
ROWS = ".review > li"


def counted(words):
    page.wait(f"the counts say `{words}`", lambda: words in page.text("#panel-review .hint"))


def focused():
    return page.driver.execute_script("return document.activeElement.getAttribute('aria-label') || document.activeElement.id || document.activeElement.textContent")


try:
    page.open()
    page.wait("the view is offered", lambda: page.shown("#tab-review"))
    page.tab("review")
    page.wait("a part of the queue is listed", lambda: page.number(ROWS) == 20)
    counted("32 answers open, 0 judged.")
    first = page.text(f"{ROWS}:first-child")
    page.need("What is the plan for the ferry?" in first and "sell it" in first, first)
    page.click("#panel-review .more")
    page.wait("all are listed", lambda: page.number(ROWS) == 32)
    last = page.text(f"{ROWS}:last-child h3")
    page.need("<img src=x" in last and "\u202e" not in last, f"the question is shown as {last!r}")
    page.need(page.driver.title == "turnflow" and not page.number("main img, main script"), "the text of a question became elements")
    nameless = page.driver.execute_script(NAMELESS)
    page.need(not nameless, f"without an accessible name: {nameless[:4]}")
    page.shot("review-light.png")

    # A verdict that contradicts itself is refused, and what was written stays.
    row = f"{ROWS}:first-child"
    page.click(f"{row} .judge > details:nth-of-type(1) > summary")
    page.click(f"{row} [data-mark=relevant]")
    page.need(page.number(f"{row} [data-mark=relevant][aria-pressed=true]") == 1, "the passage is not marked")
    page.click(f"{row} .judge > details:nth-of-type(2) > summary")
    page.one(f"{row} textarea").send_keys("At nine o'clock.")
    page.click(f"{row} [data-verdict=good]")
    page.wait("it says why", lambda: "needs no `correction`" in page.text(f"{row} .problem"))
    page.click(f"{row} [data-verdict=bad]")
    page.wait("the answer is judged", lambda: page.number(ROWS) == 31)
    counted("31 answers open, 1 judged.")
    # The keyboard goes on with the next one.
    page.wait("the next verdict has the focus", lambda: focused() == "Good: Xylophones 0?")
    page.driver.switch_to.active_element.send_keys(Keys.TAB, Keys.TAB)
    page.need(focused() == "Unsure: Xylophones 0?", focused())
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    page.wait("the answer is judged by the keyboard", lambda: page.number(ROWS) == 30)

    # Judged ones, and one of them again.
    choose = "const s = document.getElementById(arguments[0]); s.value = arguments[1]; s.dispatchEvent(new Event('change'))"
    page.driver.execute_script(choose, "review-state", "judged")
    page.wait("the judged ones are listed", lambda: page.number(ROWS) == 2)
    page.need("At nine o'clock." in page.text("#panel-review"), page.text("#panel-review"))
    page.click(f"{row} [data-verdict=good]")
    page.wait("it is judged again", lambda: page.text(f"{row} .verdict").startswith("good by chief"))
    page.driver.execute_script(choose, "review-state", "open")
    page.wait("the open ones are listed", lambda: page.number(ROWS) == 20)
    page.driver.execute_script(choose, "review-rule", "declined")
    page.wait("those of a rule are listed", lambda: page.number(ROWS) == 20 and "ferry" not in page.text(".review"))
    page.driver.execute_script(choose, "review-rule", "")

    # On a telephone, light and dark.
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True})
    page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 5})
    page.tab("review")
    page.wait("the queue is listed", lambda: page.number(ROWS) == 20)
    page.driver.execute_script("document.querySelectorAll('.review details').forEach(e => { e.open = true; })")
    for shade in ("light", "dark"):
        small = page.driver.execute_script(SMALL)
        page.need(not small, f"{shade}: controls that are too small: {small[:4]}")
        width, most = page.driver.execute_script(WIDE)
        page.need(width <= most, f"{shade}: the page is {width} pixels wide of {most}")
        page.shot(f"review-telephone-{shade}.png")
        page.click("#theme")
    # The verdict that was refused is in the console.
    complaints = [entry for entry in page.complaints() if not ("/v1/review/" in entry and "400" in entry)]
    page.need(not complaints, f"the console complained: {complaints[:4]}")
    print("ok: the queue is shown, judged, judged again, and fits a telephone")
finally:
    page.close()
