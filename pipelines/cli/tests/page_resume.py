"""An answer goes on while the page of `turnflow serve` is loaded again: page_resume.py URL TOKEN FILE.

Needs what page_browser.py needs. The model of the server does not reply until FILE is there.
"""

import pathlib
import sys

from page_browser import Page

url, token, file = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
page = Page(url, token, None)
try:
    page.open()
    page.ask("Where is ferry 7?", wait=False)
    page.wait("the turn runs", lambda: page.number(".turns .turn.running"))
    # In another conversation, it goes on as well.
    page.click("#fresh")
    page.need(not page.number(".turns .turn"), "the conversation is not a new one")
    page.click("#all")
    page.wait("the running one is listed", lambda: "Where is ferry 7?" in page.text("#conversations"))
    page.click("#conversations .name")
    page.wait("it is open and runs", lambda: page.number(".turns .turn.running"))
    page.driver.refresh()
    page.wait("the turn runs after the page is loaded again", lambda: page.number(".turns .turn.running"))
    page.need(page.shown("#stop"), "it cannot be stopped")
    file.touch()
    page.need(page.ended() in ("answered", "idk"), f"the turn is `{page.text('.turns')}`")
    page.need(page.text(".turns .turn .answer"), "the answer is empty")
    page.wait("its steps are there", lambda: page.number("#panel-turn .step.done") and not page.number("#panel-turn .step:not(.done)"))
    answer = page.text(".turns .turn .answer")
    page.driver.refresh()
    page.wait("it is there for good", lambda: page.text(".turns .turn .answer") == answer)
    complaints = page.complaints()
    page.need(not complaints, f"the console complained: {complaints[:4]}")
    print("ok: an answer goes on while the page is loaded again")
finally:
    page.close()
