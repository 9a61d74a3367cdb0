"""Dead letters on the page of `turnflow serve`: page_letters.py URL TOKEN.

Needs what page_browser.py needs. There are letters of a document and of a turn, which succeeds when it is retried.
"""

import sys
import time

from page_browser import NAMELESS, Page

page = Page(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
try:
    page.open()
    page.wait("the view is offered", lambda: page.shown("#tab-letters"))
    page.tab("letters")
    page.wait("both letters are listed", lambda: page.number(".letters > li") == 2)
    rows = page.driver.execute_script("return [...document.querySelectorAll('.letters > li')].map(e => e.textContent)")
    document = next(row for row in rows if row.startswith("Document"))
    turn = next(row for row in rows if row.startswith("Turn"))
    page.need("broken.md" in document and "still missing" in document and "Not retried: a document is read again when it changes" in document, document)
    page.need("node `answer`" in turn and "Retry" in turn, turn)
    page.need(page.number(".letters .retry") == 1, "a document has a button to retry it")
    nameless = page.driver.execute_script(NAMELESS)
    page.need(not nameless, f"without an accessible name: {nameless[:4]}")
    page.shot("letters.png")
    page.click(".letters .retry")
    page.wait("the turn is queued again", lambda: page.number(".letters > li") == 1)
    page.click(".letters [aria-label^=Remove]")
    page.driver.switch_to.alert.accept()
    page.wait("the letter is removed", lambda: "There are none" in page.text("#panel-letters") or not page.shown("#panel-letters"))
    complaints = page.complaints()
    page.need(not complaints, f"the console complained: {complaints[:4]}")
    print("ok: dead letters are shown, retried and removed")
finally:
    page.close()
